"""Experiments that are a grid: places, points of a sweep, schemes; one attack in each cell."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from neuralmark.attacks.engine.training import TuningScope
from neuralmark.lab.contract import (
    MARKS,
    SCHEMES,
    TITLES,
    Cell,
    Experiment,
    Figure,
    Line,
    Results,
    Table,
    finetuning,
    kept,
    least,
    percent,
    training,
)
from neuralmark.lab.experiments._paper import Pair
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Assault, Spec

BOUNDARY = 227 / 256
"""Of the paper's marks; ours are held against that of their own bits (`least`)."""

Direction = tuple[str, str]
CIFAR: tuple[Direction, ...] = (
    ("cifar100", "cifar10"),
    ("cifar10", "cifar100"),
    ("digits", "digits"),
)


@dataclass(frozen=True)
class GridPlace:
    """Where an attack happens: from which data to which, on which architecture."""

    direction: Direction
    architecture: str

    @property
    def title(self) -> str:
        """In words."""
        return f"{arrow(self.direction)}, {self.architecture}"


class AttackGrid(Experiment):
    """A table of accuracy (detection rate): one row per point, one column per scheme."""

    axis: ClassVar[str]
    """What the points count: the head of the first column, and the x axis of figures."""
    heading: ClassVar[str]
    """What the table shows; the place is put behind it."""
    schemes: ClassVar[tuple[str, ...]] = MARKS
    drawn: ClassVar[bool] = False
    """Whether the rates are also drawn over the points."""
    log: ClassVar[bool] = False
    """Whether the points are drawn on a logarithmic axis."""
    accuracies: ClassVar[bool] = False
    """Whether the accuracies are drawn as well, in a figure of their own."""
    note: ClassVar[str] = ""

    @abstractmethod
    def points(self, preset: Preset, place: GridPlace) -> Sequence[float]:
        """The points of the sweep."""

    @abstractmethod
    def attack(
        self, preset: Preset, place: GridPlace, scheme: str, point: float, seed: int
    ) -> Assault:
        """The attack of one cell, for one seed."""

    def reference(self, preset: Preset, place: GridPlace, point: float, scheme: str) -> Pair | None:
        """What the paper has in this cell."""
        return None

    def places(self, preset: Preset) -> list[GridPlace]:
        """Between the CIFAR sets, on the main architecture."""
        directions = [each for each in preset.training.directions if each in CIFAR]
        return [GridPlace(direction, preset.training.main) for direction in directions]

    def runs(self, preset: Preset) -> list[Spec]:
        """Every cell, for every seed."""
        return [
            spec
            for place in self.places(preset)
            for scheme in self.schemes
            for point in self.points(preset, place)
            for spec in self.cell(preset, place, scheme, point)
        ]

    def cell(self, preset: Preset, place: GridPlace, scheme: str, point: float) -> list[Assault]:
        """The runs of one cell, one for each seed."""
        seeds = preset.training.seeds
        return [self.attack(preset, place, scheme, point, seed) for seed in seeds]

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """One table per place, as in the paper."""
        return [
            Table(
                f"{self.heading}, {place.title}: accuracy (detection rate)",
                (self.axis, *(TITLES[scheme] for scheme in self.schemes)),
                tuple(
                    (
                        f"{point:g}",
                        *(
                            self.shown(
                                results,
                                self.cell(preset, place, scheme, point),
                                scheme,
                                self.reference(preset, place, point, scheme),
                            )
                            for scheme in self.schemes
                        ),
                    )
                    for point in self.points(preset, place)
                ),
                note=self.remark(preset, results, place),
                specs=tuple(
                    spec
                    for scheme in self.schemes
                    for point in self.points(preset, place)
                    for spec in self.cell(preset, place, scheme, point)
                ),
            )
            for place in self.places(preset)
        ]

    def shown(
        self, results: Results, specs: Sequence[Assault], scheme: str, paper: Pair | None
    ) -> Cell:
        """What stands in a cell."""
        return filled(results, specs, paper)

    def remark(self, preset: Preset, results: Results, place: GridPlace) -> str:
        """What stands below a table."""
        return self.note

    def figures(self, preset: Preset, results: Results) -> list[Figure]:
        """Detection rate over the points, one line per scheme; accuracy likewise."""
        figures = []
        for place in self.places(preset) if self.drawn else ():
            points, schemes = self.points(preset, place), [s for s in self.schemes if s != "clean"]
            proof = least(self.cell(preset, place, schemes[0], points[0])[0])
            title = f"{self.heading}, {place.title}"
            lines = self._lines(preset, results, place, "rate")
            rate = "detection rate (%)"
            figures.append(
                Figure(title, self.axis, rate, lines, log=self.log, boundary=100 * proof)
            )
            if self.accuracies:
                lines = self._lines(preset, results, place, "accuracy")
                figures.append(Figure(title, self.axis, "accuracy (%)", lines, log=self.log))
        return figures

    def _lines(
        self, preset: Preset, results: Results, place: GridPlace, name: str
    ) -> tuple[Line, ...]:
        lines = []
        for scheme in self.schemes:
            found = []
            for point in self.points(preset, place):
                values = results.values(self.cell(preset, place, scheme, point), name)
                if values:
                    found.append((float(point), 100 * sum(values) / len(values)))
            if found:
                lines.append(Line(TITLES[scheme], tuple(found)))
        return tuple(lines)


class OverwriteGrid(AttackGrid):
    """Overwriting: drawn over a logarithmic axis, with the adversary's own marks in the note."""

    drawn: ClassVar[bool] = True
    log: ClassVar[bool] = True

    def remark(self, preset: Preset, results: Results, place: GridPlace) -> str:
        """How well the adversary's own marks are found."""
        lowest = {}
        for scheme in self.schemes:
            specs = [
                spec
                for point in self.points(preset, place)
                for spec in self.cell(preset, place, scheme, point)
            ]
            figures = [row.get("figures", {}) for row in results.of(specs)]
            rates = [each["attacker_rate"] for each in figures if "attacker_rate" in each]
            if rates:
                lowest[TITLES[scheme]] = min(rates)
        said = [self.note] if self.note else []
        if lowest:
            each = ", ".join(f"{title} {100 * rate:.2f}" for title, rate in lowest.items())
            said.append(f"the adversary's own marks, at the lowest: {each} (the paper: all 100)")
        return "; ".join(said)


class FinetuneGrid(AttackGrid):
    """Fine-tuning in all of the preset's directions, on both of the paper's architectures."""

    scope: ClassVar[TuningScope]
    """What is trained."""
    axis: ClassVar[str] = "η"
    schemes: ClassVar[tuple[str, ...]] = SCHEMES

    def places(self, preset: Preset) -> list[GridPlace]:
        """Every direction on every architecture."""
        scale = preset.training
        return [GridPlace(each, name) for name in scale.architectures for each in scale.directions]

    def attack(
        self, preset: Preset, place: GridPlace, scheme: str, point: float, seed: int
    ) -> Assault:
        """At a learning rate."""
        source, target = place.direction
        victim = training(preset, source, scheme, architecture=place.architecture, seed=seed)
        return finetuning(preset, victim, target, scope=self.scope, rate=point)


def arrow(direction: Direction) -> str:
    """From where to where."""
    source, target = direction
    return source if source == target else f"{source} to {target}"


def filled(results: Results, specs: Sequence[Assault], paper: Pair | None) -> Cell:
    """Accuracy (rate), the paper's beside it; marked when one keeps the mark and the other not."""
    rates = results.values(specs, "rate")
    accuracies = results.values(specs, "accuracy")
    rows = results.of(specs)
    broken = sum(bool(row.get("unreadable")) for row in rows)
    told = [percent(rates)] if rates else []
    told += [f"{broken} of {len(rows)} unreadable"] if broken else []
    ours = percent(accuracies) + (f" ({'; '.join(told)})" if told else "")
    if paper is None:
        return Cell(ours)
    accuracy, rate = paper
    theirs = "" if accuracy is None else f"{accuracy:.2f}"
    if rate is None:
        return Cell(ours, theirs)
    survives = bool(rates) and not broken and kept(specs, rates)
    against = bool(told) and survives != (rate / 100 >= BOUNDARY)
    return Cell(ours, f"{theirs} ({rate:.2f})", contradicts=against)
