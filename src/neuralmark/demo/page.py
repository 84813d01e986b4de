"""The demo's report: pure functions of what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuralmark.attacks import Result
from neuralmark.marking.embedding import Embedding
from neuralmark.records import Verdict
from neuralmark.reports.render import page, svg


@dataclass(frozen=True)
class DemoRow:
    """One state of the network: its accuracy, and what was read from it."""

    name: str
    accuracy: float | None
    verdict: Verdict | None


@dataclass(frozen=True)
class Trained:
    """A training run, with the verdict on its saved file where it had a mark."""

    name: str
    history: Sequence[Mapping[str, float]]
    """What was measured after each epoch."""
    moved: float
    """How far the weights moved, relative to where they began."""
    verdict: Verdict | None


@dataclass(frozen=True)
class DemoOutcome:
    """Everything the demo measured."""

    embedding: Embedding
    verdict: Verdict
    foreign: Verdict
    rows: tuple[DemoRow, ...]
    curves: Mapping[str, Sequence[Result]]
    """Attacks of growing strength, by what grows."""
    trained: tuple[Trained, ...]
    exposures: Mapping[str, Result]
    """Marks that were looked for without the key, by name."""


def demo_page(outcome: DemoOutcome) -> str:
    """One self-contained page: the verdicts, what survives, and at what cost."""
    verdict, foreign, embedding = outcome.verdict, outcome.foreign, outcome.embedding
    figures = page.tiles(
        [
            ("owner's key", _bits(verdict), _said(verdict)),
            ("another key", _bits(foreign), _said(foreign)),
            (
                "change of the weights",
                f"{100 * embedding.change_relative:.2f} %",
                f"strength {embedding.strength:.2f}",
            ),
            (
                "chance of error",
                page.power_of_two(verdict.bound_log2),
                f"corrected for {verdict.trials} ways of looking",
            ),
        ]
    )
    parts = [
        "<h1>A mark in a small network</h1>",
        page.paragraphs(
            "A network was trained on real handwritten digits, marked afterwards without any data,"
            " and then put through what a stolen model goes through.",
            f"The mark lies in {', '.join(map(page.code, embedding.tensors))}.",
        ),
        figures,
        page.section("What survives", _table(outcome)),
    ]
    parts += [
        page.section(f"As {label} grows", _plot(label, results, verdict))
        for label, results in outcome.curves.items()
    ]
    parts.append(page.section("Marked while training", _training(outcome)))
    parts.append(page.section("A thief looks for the mark without the key", _exposures(outcome)))
    return page.page("NeuralMark demo", "\n".join(parts))


def _training(outcome: DemoOutcome) -> str:
    """Accuracy, embedding loss and rate over the epochs, and where the runs ended."""
    rows = [
        [
            page.text(run.name),
            _percent(run.history[-1]["accuracy"]),
            _bits(run.verdict),
            _said(run.verdict),
            _percent(run.moved, 1),
        ]
        for run in outcome.trained
    ]
    head = ["run", "test accuracy", "bits matched", "verdict", "weights moved by"]
    marked = [run for run in outcome.trained if run.verdict is not None]
    return "\n".join(
        [
            page.paragraphs(
                "The same network trained three times from the same start: plainly, with the"
                " paper's term added to the gradient, and with every bit kept at its margin by"
                " projection after each step."
            ),
            page.table(head, rows),
            _over_epochs(outcome.trained, "accuracy", "test accuracy"),
            _over_epochs(marked, "embedding_loss", "embedding loss"),
            _over_epochs(marked, "rate", "share of bits matched"),
        ]
    )


def _exposures(outcome: DemoOutcome) -> str:
    """What `expose` left of the mark as published and of ours."""
    rows = [
        [
            page.text(name),
            _bits(result.before),
            page.text(result.note),
            _bits(result.after),
            _said(result.after),
            f"{_percent(result.accuracy_before)} to {_percent(result.accuracy_after)}",
            _percent(result.change, 1),
        ]
        for name, result in outcome.exposures.items()
    ]
    head = ["mark", "bits before", "what stood out", "bits after", "verdict", "accuracy", "change"]
    return "\n".join(
        [
            page.paragraphs(
                "The attack expose knows the source and all documents, but not the key. The"
                " published filter lays the watermark over the weights again and again: the"
                " sizes of trained weights then show it, and from it follow all carriers. Ours"
                " grows a keystream from the watermark, and there is nothing to see."
            ),
            page.table(head, rows),
        ]
    )


def _over_epochs(runs: Sequence[Trained], what: str, label: str) -> str:
    series = [
        svg.Series(run.name, [(i + 1.0, epoch[what]) for i, epoch in enumerate(run.history)])
        for run in runs
    ]
    drawing = svg.line_plot(series, ("epoch", label), f"{label} after each epoch")
    return page.figure(drawing, page.text(f"{label} after each epoch"))


def _table(outcome: DemoOutcome) -> str:
    rows = [
        [page.text(row.name), _percent(row.accuracy), _bits(row.verdict), _said(row.verdict)]
        for row in outcome.rows
    ]
    return page.table(["state", "test accuracy", "bits matched", "verdict"], rows)


def _plot(label: str, results: Sequence[Result], verdict: Verdict) -> str:
    rates = [(each.strength, each.after.rate) for each in results if each.after is not None]
    reached = [(each.strength, each.accuracy_after or 0.0) for each in results]
    boundary = (verdict.boundary or verdict.bits) / verdict.bits
    drawing = svg.line_plot(
        [svg.Series("bits matched", rates), svg.Series("test accuracy", reached)],
        (label, "share"),
        f"Share of matched bits and test accuracy as {label} grows",
        y_range=(0.0, 1.0),
        levels=[svg.PlotMark(boundary, "verified above")],
    )
    return page.figure(drawing, "Each point is one damaged copy, tested and verified.")


def _percent(share: float | None, digits: int = 2) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def _bits(verdict: Verdict | None) -> str:
    return "-" if verdict is None else f"{verdict.matched} of {verdict.bits}"


def _said(verdict: Verdict | None) -> str:
    if verdict is None:
        return "-"
    return "verified" if verdict.verified else "not verified"
