"""The page of a lineage: how alike two models are, tensor by tensor."""

from pathlib import PurePath

from neuralmark.records import NOT_LOOKED_FOR, RELATED_SCORE, Kinship, Lineage
from neuralmark.reports.alignment import fates_picture
from neuralmark.reports.render import svg
from neuralmark.reports.render.page import code, page, paragraphs, section, table, text

_MEANS = (
    "The second model's weights were put into the order of the first's by likeness alone, then"
    " compared; no direction of a tensor counts for more than the middle one. The score counts only"
    " likeness above what the same alignment finds in strangers that have the spectra of the second"
    " model's tensors: it is about 0 for models trained apart, and 1 for the same weights. What was"
    " not looked for, or could not be compared, does not count; where less than half could be"
    " compared, the rest counts as unlike."
)
_NOT = (
    "It is a sign of <strong>descent, not of ownership</strong>: it does not say which model came"
    " first, or whose it is, and there is no exact bound on its error. Only a key that was in the"
    " weights before says that."
)


def _absent(each: Kinship) -> str:
    if each.looked_for and not each.compared:
        return "not compared"
    return "not found" if each.looked_for else NOT_LOOKED_FOR


def _compared(found: Lineage) -> list[str]:
    """Words for what could not be compared, and why."""
    if found.compared == 1:
        return []
    share = f"{100 * found.compared:.3g}\u00a0%"
    said = f"Only {share} of the weights could be compared: {text(found.hindrance, 400)}."
    if not found.decided:
        said += " In so few, that no relation shows says nothing."
    return [said]


def lineage_page(found: Lineage) -> str:
    """One self-contained HTML page."""
    title = "Related" if found.related else "No sign of a relation"
    title = title if found.decided else "Could not be compared"
    names = [PurePath(path).name or path for path in (found.model, found.other)]
    marks = [svg.PlotMark(RELATED_SCORE, f"related from {RELATED_SCORE:g}")]
    value = svg.PlotMark(found.score, f"score {found.score:.3f}")
    said = f"Score {found.score:.3f} of 1; related from {RELATED_SCORE:g}"
    drawn = svg.meter(value, 1.0, marks, 0 if found.related else 1, said)
    models = paragraphs(f"First: {code(found.model)}<br>Second: {code(found.other)}")
    rows = [
        (
            code(each.fate.name),
            code(each.fate.source) if each.fate.source else _absent(each),
            f"{each.weights:,}",
            f"{each.fate.restored:.3f}",
            f"{each.chance:.3f}",
            text("; ".join(each.fate.changes) or "nothing"),
        )
        for each in found.tensors
    ]
    words = paragraphs(*_compared(found), _MEANS, _NOT)
    head = ("Tensor", "Most like it", "Weights", "Alike", "By chance", "What was done")
    parts = (
        '<p class="kicker"><span>Lineage of two neural networks</span>'
        f"<span>NeuralMark {text(found.version)}</span></p>",
        f"<h1>{title}</h1>",
        section("The finding", models + f"<figure>{drawn}</figure>" + words),
        section(
            "Tensor by tensor",
            fates_picture([each.fate for each in found.tensors])
            + table(head, rows, name="All tensors"),
        ),
    )
    return page(f"{title}: {names[0]} and {names[1]} (NeuralMark lineage)", "\n".join(parts))
