"""The demo's report: pure functions of what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from neuralmark.records import Verdict
from neuralmark.reports.render import page, svg


@dataclass(frozen=True)
class DemoRow:
    """One state of the network: its accuracy, and what was read from it."""

    name: str
    accuracy: float
    matched: int | None
    verified: bool | None


@dataclass(frozen=True)
class Curve:
    """Accuracy and detection rate as a damage grows."""

    label: str
    accuracy: tuple[tuple[float, float], ...]
    rate: tuple[tuple[float, float], ...]


class Epoch(Protocol):
    """How training stood after one epoch."""

    @property
    def accuracy(self) -> float:
        """On the test images."""

    @property
    def loss(self) -> float | None:
        """The embedding loss, where there is a mark."""

    @property
    def rate(self) -> float | None:
        """Share of matching bits, where there is a mark."""


@dataclass(frozen=True)
class Trained:
    """A training run, with the verdict on its saved file where it had a mark."""

    name: str
    history: Sequence[Epoch]
    moved: float
    verdict: Verdict | None


@dataclass(frozen=True)
class Exposed:
    """A mark that was looked for without the key, and what erasing what was found left of it."""

    name: str
    accuracy: tuple[float, float]
    matched: tuple[int, int]
    verified: tuple[bool, bool]
    change: float
    found: str


@dataclass(frozen=True)
class DemoOutcome:
    """Everything the demo measured."""

    strength: float
    change_relative: float
    tensors: tuple[str, ...]
    verdict: Verdict
    foreign: Verdict
    rows: tuple[DemoRow, ...]
    curves: tuple[Curve, ...]
    trained: tuple[Trained, ...]
    exposures: tuple[Exposed, ...]


def demo_page(outcome: DemoOutcome) -> str:
    """One self-contained page: the verdicts, what survives, and at what cost."""
    verdict, foreign = outcome.verdict, outcome.foreign
    figures = page.tiles(
        [
            ("owner's key", f"{verdict.matched} of {verdict.bits}", _said(verdict.verified)),
            ("another key", f"{foreign.matched} of {foreign.bits}", _said(foreign.verified)),
            (
                "change of the weights",
                f"{100 * outcome.change_relative:.2f} %",
                f"strength {outcome.strength:.2f}",
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
            f"The mark lies in {', '.join(map(page.code, outcome.tensors))}.",
        ),
        figures,
        page.section("What survives", _table(outcome)),
    ]
    parts += [
        page.section(f"As {curve.label} grows", _plot(curve, verdict)) for curve in outcome.curves
    ]
    parts.append(page.section("Marked while training", _training(outcome)))
    parts.append(page.section("A thief looks for the mark without the key", _exposures(outcome)))
    return page.page("NeuralMark demo", "\n".join(parts))


def _training(outcome: DemoOutcome) -> str:
    """Accuracy, embedding loss and rate over the epochs, and where the runs ended."""
    rows = [
        [
            page.text(run.name),
            f"{100 * run.history[-1].accuracy:.2f} %",
            "-" if run.verdict is None else f"{run.verdict.matched} of {run.verdict.bits}",
            "-" if run.verdict is None else _said(run.verdict.verified),
            f"{100 * run.moved:.1f} %",
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
            _over_epochs(marked, "loss", "embedding loss"),
            _over_epochs(marked, "rate", "share of bits matched"),
        ]
    )


def _exposures(outcome: DemoOutcome) -> str:
    """What `expose` left of the mark as published and of ours."""
    rows = [
        [
            page.text(each.name),
            f"{each.matched[0]} of {outcome.verdict.bits}",
            page.text(each.found),
            f"{each.matched[1]} of {outcome.verdict.bits}",
            _said(each.verified[1]),
            f"{100 * each.accuracy[0]:.2f} % to {100 * each.accuracy[1]:.2f} %",
            f"{100 * each.change:.1f} %",
        ]
        for each in outcome.exposures
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
        svg.Series(run.name, [(i + 1.0, getattr(e, what)) for i, e in enumerate(run.history)])
        for run in runs
    ]
    drawing = svg.line_plot(series, ("epoch", label), f"{label} after each epoch")
    return page.figure(drawing, page.text(f"{label} after each epoch"))


def _table(outcome: DemoOutcome) -> str:
    bits = outcome.verdict.bits
    rows = [
        [
            page.text(row.name),
            f"{100 * row.accuracy:.2f} %",
            "-" if row.matched is None else f"{row.matched} of {bits}",
            "-" if row.verified is None else _said(row.verified),
        ]
        for row in outcome.rows
    ]
    return page.table(["state", "test accuracy", "bits matched", "verdict"], rows)


def _plot(curve: Curve, verdict: Verdict) -> str:
    boundary = (verdict.boundary or verdict.bits) / verdict.bits
    drawing = svg.line_plot(
        [svg.Series("bits matched", curve.rate), svg.Series("test accuracy", curve.accuracy)],
        (curve.label, "share"),
        f"Share of matched bits and test accuracy as {curve.label} grows",
        y_range=(0.0, 1.0),
        levels=[svg.PlotMark(boundary, "verified above")],
    )
    return page.figure(drawing, "Each point is one damaged copy, saved and read back.")


def _said(verified: bool) -> str:
    return "verified" if verified else "not verified"
