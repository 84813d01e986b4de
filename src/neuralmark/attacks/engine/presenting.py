"""How a card shows itself in a notebook: one line per sweep, from its JSON."""

from collections.abc import Mapping
from typing import Any

from neuralmark.attacks.contract import KEY, WEIGHTS
from neuralmark.records import presenting

Told = Mapping[str, Any]
"""A card, or a sweep of one, as `Card.to_dict` gives it."""

NONE = "–"
TRIED = "as tried"
"""Where an attack has a single strength."""


def table(told: Told) -> str:
    """A small HTML table, without scripts or anything from elsewhere."""
    before, radius = told["before"], told["certified_radius"]["relative"]
    facts = [
        ("model", told["model"]),
        ("key", told["fingerprint"]),
        ("before", f"{before['matched']} of {before['bits']} bits match ({before['status']})"),
    ]
    if radius is not None:
        facts.append(("certified radius", f"{radius:.2%} of the weights' norm"))
    names = ", ".join(dict.fromkeys(each["attack"] for each in told["skipped"]))
    facts += [("not run", names)] if names else []
    rows = [row for row in told["rows"] if row["kind"] in (WEIGHTS, KEY)]
    heads = ["attack", "withstood up to", "undone from"]
    if any(row["survived_all_aligned"] is not None for row in rows):
        heads.append("with the anchor undone from")
    blank = [("td", "")] * (len(heads) - 2)
    lines = [presenting.line(("th", name), ("td", value), *blank) for name, value in facts]
    lines.append(presenting.line(*(("th", head) for head in heads)))
    for (attack, *reached), variants in _sweeps(rows, len(heads) - 1).items():
        label = f"{attack} ({', '.join(variants)})" if any(variants) else attack
        lines.append(presenting.line(*(("td", cell) for cell in (label, *reached))))
    return presenting.framed("what this mark withstands", "".join(lines))


def _sweeps(rows: list[Told], columns: int) -> dict[tuple[str, ...], list[str]]:
    """Variants by attack and by what was withstood and what was not."""
    found: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        names = ("largest_survived", "flip", "flip_aligned")[:columns]
        reached = (_at(row, name) for name in names)
        found.setdefault((row["attack"], *reached), []).append(row["variant"])
    return found


def _at(row: Told, name: str) -> str:
    if row[name] is None:
        return NONE
    return f"{row['dial']} {row[name]:g}" if row["dial"] and len(row["points"]) > 1 else TRIED
