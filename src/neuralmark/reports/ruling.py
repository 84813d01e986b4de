"""The page of a ruling: who the owner is by the criterion, why, and all that influenced it."""

from collections.abc import Sequence

from neuralmark.core.bound import SECURITY_BITS
from neuralmark.disputes.parties import Party, Shown
from neuralmark.disputes.records import Case, Ruling
from neuralmark.disputes.relations import Relation
from neuralmark.disputes.sightings import UNPROVEN, Sighting
from neuralmark.records import RELATED_SCORE
from neuralmark.reports.render.page import (
    code,
    facts,
    number,
    page,
    paragraphs,
    power_of_two,
    section,
    table,
    text,
    with_powers,
)

_GLYPHS = {True: (0, "M19 33l9 9 18-20"), False: (4, "M20 26h24M20 38h24")}
_CRITERION = (
    "The owner is the party that can show a model with <strong>only its own mark</strong>, while"
    " its mark is also present in what the other parties show and in the disputed model. Whoever"
    " takes a marked model can add a mark to it, but then both are in it: without the first mark"
    " he cannot show it.",
    "Everything must hold; where anything is missing for every party, the dispute is undecided."
    " That says nothing against any of them.",
)
_STATES = (
    "<strong>Present</strong>: verified, the chance of error is below {least}."
    " <strong>Absent</strong>: luck matches as well with a chance above"
    " {absent}. <strong>Traces</strong>: between the two; weakening a mark is"
    " not removing it, so traces never count as absent. <strong>Unproven</strong>: the key is a"
    " matrix made elsewhere, which can be fitted to any model, or has too few bits; such a match is"
    " not a mark, neither for nor against anybody."
)
_RELATION = (
    "Models trained apart do not correlate weight by weight; copies do, also after fine-tuning,"
    " pruning or quantising. From a correlation of {related:g} on two models count as related."
    " Models that do not correlate as they lie are put in the same order first; what is then alike"
    " has a score from 0 to 1, and counts from {score:g}."
    " The larger of two figures is taken: over the tensors that no party's mark touches, and over"
    " all. An unrelated exhibit is set aside: nobody's mark need be in it, and nobody wins, as it"
    " may be of the same model, rearranged beyond recognition."
)
_ABSENT = (
    "Keys, watermarks, the bits read from the models and the positions of the weights that carry"
    " marks are not on this page, and cannot be worked out from it. Whoever holds the keys can"
    " repeat this arbitration on the files with the digests above and must arrive at the same"
    " ruling."
)


def ruling_page(ruling: Ruling) -> str:
    """One self-contained HTML page, fit to be printed and signed."""
    headline = f"Owner: {ruling.owner}" if ruling.decided else "Undecided"
    parts = (
        '<p class="kicker"><span>Ruling on the ownership of a neural network</span>'
        f"<span>NeuralMark {text(ruling.version)}</span></p>",
        _banner(ruling, headline),
        section("The reasons", _list(ruling.reasons)),
        section("Cautions", _list(ruling.cautions)) if ruling.cautions else "",
        _marks(ruling),
        _criterion(ruling),
        _relations(ruling),
        _brought(ruling),
        _commitments(ruling),
        section("What this page does not contain", paragraphs(_ABSENT)),
        _signature(),
    )
    return page(f"{headline} (NeuralMark ruling)", "\n".join(part for part in parts if part))


def _banner(ruling: Ruling, headline: str) -> str:
    colour, glyph = _GLYPHS[ruling.decided]
    icon = (
        '<svg viewBox="0 0 64 64" aria-hidden="true"><circle class="stroke" cx="32" cy="32" r="28"'
        f' stroke-width="5"/><path class="stroke" stroke-width="6" d="{glyph}"/></svg>'
    )
    names = ", ".join(text(party.name) for party in ruling.parties)
    about = code(ruling.disputed.path) if ruling.disputed else "the models that the parties show"
    said = "No party satisfies the criterion; the reasons are below."
    if ruling.decided:
        said = "This party alone satisfies the criterion."
    words = f'<p class="lead">{said}</p>\n<p>Parties: {names}. In dispute: {about}.</p>'
    return (
        f'<header class="banner c{colour}">{icon}<div><h1>{text(headline)}</h1>\n{words}</div>'
        "</header>"
    )


def _marks(ruling: Ruling) -> str:
    rows = [
        [
            f"<strong>{text(party.name)}</strong>",
            *(_cell(ruling.sighting(party.name, label)) for label in ruling.models),
        ]
        for party in ruling.parties
    ]
    heads = ["Mark of", *(_heading(label) for label in ruling.models)]
    looks = [
        (f"{s.party} in {s.model}", with_powers(s.reason), _where(s)) for s in ruling.sightings
    ]
    limits = {"least": power_of_two(-SECURITY_BITS), "absent": power_of_two(ruling.absent_above)}
    states = _STATES.format(**limits)
    return section("Whose mark is where", table(heads, rows) + paragraphs(states) + facts(looks))


def _cell(sighting: Sighting) -> str:
    if sighting.matched is None or sighting.bound_log2 is None:
        return f"{text(sighting.state)}<br>no place for it"
    said = f"{text(sighting.state)}<br>{sighting.matched:,} of {sighting.bits:,} bits"
    if sighting.state == UNPROVEN:  # no chance holds for such a key
        return said
    return f"{said}<br>{power_of_two(sighting.bound_log2)}"


def _where(sighting: Sighting) -> str:
    if not sighting.trials:
        return ""
    shown = ", ".join(code(name) for name in sighting.tensors[:5])
    more = f" and {len(sighting.tensors) - 5:,} more" if len(sighting.tensors) > 5 else ""
    return f"read in {shown}{more}; ways of looking: {sighting.trials:,}"


def _criterion(ruling: Ruling) -> str:
    rows = [(case.party, _standing(case), "") for case in ruling.cases]
    return section("The criterion", paragraphs(*_CRITERION) + facts(rows))


def _standing(case: Case) -> str:
    head = "satisfies the criterion" if case.complete else "does not satisfy the criterion"
    lines = [f"missing: {line}" for line in case.missing]
    lines += [f"holds: {line}" for line in case.holds]
    return f"<strong>{head}</strong>" + _list(lines)


def _relations(ruling: Ruling) -> str:
    rows = [_relation(relation) for relation in ruling.relations]
    heads = (
        *("Model", "Compared with", "Unmarked tensors", "All tensors"),
        *("Put in order", "Weights", "Result"),
    )
    aside = [f"the exhibit of {name} was set aside" for name in ruling.set_aside]
    words = paragraphs(_RELATION.format(related=ruling.related_from, score=RELATED_SCORE))
    return section("Are the models related?", table(heads, rows) + _list(aside) + words)


def _relation(relation: Relation) -> Sequence[str]:
    return (
        text(_heading(relation.one)),
        text(_heading(relation.two)),
        _figure(relation.unmarked, "too few"),
        _figure(relation.overall, "nothing to compare"),
        _figure(relation.aligned, "not needed"),
        f"{relation.weights:,}",
        "related" if relation.related else "unrelated",
    )


def _figure(value: float | None, otherwise: str) -> str:
    return otherwise if value is None else number(round(value, 3))


def _brought(ruling: Ruling) -> str:
    rows = [row for party in ruling.parties for row in _party(party)]
    if ruling.disputed is not None:
        rows.append(("Disputed model", code(ruling.disputed.path), _digests(ruling.disputed)))
    return section("What was brought", facts(rows))


def _party(party: Party) -> Sequence[tuple[str, str, str]]:
    kind = "derived from a secret" if party.key_kind == "native" else "a matrix made elsewhere"
    committed = f"{kind}; commitment {code(party.commitment)}"
    return (
        (f"Key of {party.name}", code(party.fingerprint), committed),
        (f"Exhibit of {party.name}", code(party.exhibit.path), _digests(party.exhibit)),
    )


def _digests(shown: Shown) -> str:
    return "<br>".join(f"sha256 of {code(n)}: {code(d)}" for n, d in shown.files.items())


def _commitments(ruling: Ruling) -> str:
    stated = ruling.commitments()
    if not stated:
        return ""
    rows = [(party.name, text(party.stated_time), code(party.commitment)) for party in stated]
    said = (
        "Times at which the keys' commitments are said to have been registered, the earliest first:"
        " <strong>as stated, not checked</strong>. The ruling does not depend on them."
    )
    return section("Stated times of the commitments", paragraphs(said) + facts(rows))


def _signature() -> str:
    lines = (
        '<div class="sign"><div>Name</div><div>Place and date</div>'
        '<div class="whole">Signature</div></div>'
    )
    said = "I have read this page and confirm that it is the result of the arbitration described."
    return section("Signature", paragraphs(said) + lines, name="closing")


def _heading(label: str) -> str:
    plain = label.removeprefix("the ")
    return plain[:1].upper() + plain[1:]


def _list(lines: Sequence[str]) -> str:
    """A list of sentences, escaped."""
    if not lines:
        return ""
    return "<ul>" + "".join(f"<li>{with_powers(line)}</li>" for line in lines) + "</ul>"
