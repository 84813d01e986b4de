"""How a ruling shows itself in a notebook: whose mark is where, and why; from its JSON."""

from collections.abc import Mapping
from typing import Any

from neuralmark.records import presenting

Told = Mapping[str, Any]
"""A ruling, or a sighting of one, as `Ruling.to_dict` gives it."""


def table(told: Told, models: tuple[str, ...]) -> str:
    """A small HTML table, without scripts or anything from elsewhere."""
    seen = {(each["party"], each["model"]): each for each in told["sightings"]}
    names = [party["name"] for party in told["parties"]]
    heads = ("mark of", *(label.removeprefix("the ") for label in models))
    lines = [presenting.line(*(("th", head) for head in heads))]
    for name in names:
        cells = [("td", _found(seen[name, label])) for label in models]
        lines.append(presenting.line(("th", name), *cells))
    facts = [("because", reason) for reason in told["reasons"]]
    facts += [("caution", caution) for caution in told["cautions"]]
    facts += [("set aside", f"the exhibit of {name}") for name in told["set_aside"]]
    lines += [presenting.fact(name, said, columns=len(models)) for name, said in facts]
    if not told["decided"]:
        return presenting.framed("undecided", "".join(lines))
    return presenting.framed(f"owner: {told['owner']}", "".join(lines), presenting.GOOD)


def _found(sighting: Told) -> str:
    if sighting["matched"] is None:
        return f"{sighting['state']} (no place for it)"
    return f"{sighting['state']} ({sighting['matched']} of {sighting['bits']} bits)"
