"""Experiments that are a grid: places, points of a sweep, schemes; one attack in each cell."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import Any, ClassVar

from neuralmark.attacks.engine.training import TuningScope
from neuralmark.lab.comparing import UNTESTED, Cell, beside, interval, kept, least, percent
from neuralmark.lab.contract import (
    Experiment,
    Figure,
    Line,
    Results,
    Table,
    finetuning,
    imprinted,
    training,
)
from neuralmark.lab.execution.store import Row
from neuralmark.lab.experiments._paper import Pair
from neuralmark.lab.plan.columns import TITLES, WRITTEN
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Assault, Spec, Victim

BOUNDARY = 227 / 256
"""Of the paper's marks; ours are held against that of their own bits (`least`)."""

CHANCE = 0.5
"""What a mark that cannot be read any more is worth."""

Direction = tuple[str, str]
Point = float | str
"""A point of a sweep: how strong an attack is, or which."""
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
    movement: float = 0.0
    """‖Δw‖/‖w‖ at which the schemes are compared; 0: trained in, at their own strength."""

    @property
    def title(self) -> str:
        """In words."""
        equal = f", at equal movement ({100 * self.movement:g} %)" if self.movement else ""
        return f"{arrow(self.direction)}, {self.architecture}{equal}"


class AttackGrid(Experiment):
    """A table of accuracy (detection rate): one row per point, one column per scheme."""

    axis: ClassVar[str]
    """What the points count: the head of the first column, and the x axis of figures."""
    heading: ClassVar[str]
    """What the table shows; the place is put behind it."""
    with_clean: ClassVar[bool] = False
    """Whether clean models are attacked too."""
    drawn: ClassVar[bool] = False
    """Whether the rates are also drawn over the points."""
    log: ClassVar[bool] = False
    """Whether the points are drawn on a logarithmic axis."""
    accuracies: ClassVar[bool] = False
    """Whether the accuracies are drawn as well, in a figure of their own."""
    note: ClassVar[str] = ""
    shows: ClassVar[str] = "accuracy (detection rate)"
    """What stands in a cell."""

    @abstractmethod
    def points(self, preset: Preset, place: GridPlace) -> Sequence[Point]:
        """The points of the sweep."""

    @abstractmethod
    def attack(
        self, preset: Preset, place: GridPlace, scheme: str, point: Any, seed: int
    ) -> Assault:
        """The attack of one cell, for one seed."""

    def reference(self, preset: Preset, place: GridPlace, point: Any, scheme: str) -> Pair | None:
        """What the paper has in this cell, at the schemes' own strength."""
        return None

    def places(self, preset: Preset) -> list[GridPlace]:
        """Between the CIFAR sets, on the main architecture."""
        directions = [each for each in preset.training.directions if each in CIFAR]
        return compared(preset, directions, [preset.training.main])

    def columns(self, preset: Preset, place: GridPlace) -> list[str]:
        """The schemes that are attacked there."""
        clean = ["clean"] if self.with_clean else []
        left_out = () if place.movement else (*preset.training.too_weak, *WRITTEN)
        return clean + [name for name in preset.training.schemes if name not in left_out]

    def runs(self, preset: Preset) -> list[Spec]:
        """Every cell, for every seed."""
        return [spec for stage in self.stages(preset) for spec in stage]

    def stages(self, preset: Preset) -> list[list[Spec]]:
        """The last point (the strongest attack) first; at equal movement, then at own strength."""
        stages: list[list[Spec]] = []
        by_place = groupby(self.places(preset), lambda each: (each.direction, each.architecture))
        for _, places in by_place:
            rows = [reversed(self._by_point(preset, place)) for place in places]
            stages += [[*row] for turn in zip_longest(*rows, fillvalue=()) for row in turn if row]
        return stages

    def attacks(self, preset: Preset, place: GridPlace) -> list[Assault]:
        """Every cell of a place, for every seed."""
        return [spec for row in self._by_point(preset, place) for spec in row]

    def _by_point(self, preset: Preset, place: GridPlace) -> list[list[Assault]]:
        return [
            [
                spec
                for scheme in self.columns(preset, place)
                for spec in self.cell(preset, place, scheme, point)
            ]
            for point in self.points(preset, place)
        ]

    def cell(self, preset: Preset, place: GridPlace, scheme: str, point: Any) -> list[Assault]:
        """The runs of one cell, one for each seed."""
        seeds = preset.training.seeds
        return [self.attack(preset, place, scheme, point, seed) for seed in seeds]

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """One table per place, as in the paper."""
        return [self._table(preset, results, place) for place in self.places(preset)]

    def _table(self, preset: Preset, results: Results, place: GridPlace) -> Table:
        columns = self.columns(preset, place)
        rows: list[tuple[Cell | str, ...]] = []
        for point in self.points(preset, place):
            cells = []
            for scheme in columns:
                paper = None if place.movement else self.reference(preset, place, point, scheme)
                runs = self.cell(preset, place, scheme, point)
                cells.append(self.shown(results, runs, scheme, paper))
            rows.append((point if isinstance(point, str) else f"{point:g}", *cells))
        return Table(
            f"{self.heading}, {place.title}: {self.shows}",
            (self.axis, *(TITLES[scheme] for scheme in columns)),
            tuple(rows),
            note="; ".join(
                filter(None, (self.remark(preset, results, place), _absent(preset, place)))
            ),
            specs=tuple(self.attacks(preset, place)),
            left_out=tuple(self._left_out(preset, place)),
        )

    def _left_out(self, preset: Preset, place: GridPlace) -> list[str]:
        """The paper's cells of marks that are too weak to be attacked at their own strength."""
        absent = () if place.movement else preset.training.too_weak
        cells = [(point, name) for name in absent for point in self.points(preset, place)]
        pairs = [(each, self.reference(preset, place, *each)) for each in cells]
        return [
            f"{point if isinstance(point, str) else f'{point:g}'} {TITLES[name]}"
            for (point, name), pair in pairs
            if pair is not None and pair[1] is not None
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
            marked = next(run for run in self.attacks(preset, place) if run.victim.mark is not None)
            proof = least(marked)
            title = f"{self.heading}, {place.title}"
            lines = self._lines(preset, results, place, "rate")
            rate = "detection rate (%)"
            figures.append(
                Figure(title, self.axis, rate, lines, log=self.log, boundary=100 * proof)
            )
            if self.accuracies:
                lines = self._lines(preset, results, place, "accuracy")
                figures.append(Figure(title, self.axis, "accuracy (%)", lines, log=self.log))
            if preset.training.movements:
                lines, accuracy = self._traded(preset, results, place), "accuracy (%)"
                figures.append(
                    Figure(title, rate, accuracy, lines, boundary=100 * proof, traded=True)
                )
        return figures

    def _lines(
        self, preset: Preset, results: Results, place: GridPlace, name: str
    ) -> tuple[Line, ...]:
        lines = []
        for scheme in self.columns(preset, place):
            found, band = [], []
            for point in self.points(preset, place):
                values = results.values(self.cell(preset, place, scheme, point), name)
                if values:
                    mean, half = interval([100 * value for value in values])
                    found.append((float(point), mean))
                    band.append((mean - half, mean + half))
            if found:
                lines.append(Line(TITLES[scheme], tuple(found), _finite(band)))
        return tuple(lines)

    def _traded(self, preset: Preset, results: Results, place: GridPlace) -> tuple[Line, ...]:
        """Accuracy over bits: a line through the points of each scheme."""
        lines = []
        for scheme in self.columns(preset, place):
            found = []
            for point in self.points(preset, place):
                rows = results.of(self.cell(preset, place, scheme, point))
                pairs = [(r["rate"], r["accuracy"]) for r in rows if r.get("rate") is not None]
                if pairs:
                    rate = 100 * sum(rate for rate, _ in pairs) / len(pairs)
                    found.append((rate, *interval([100 * accuracy for _, accuracy in pairs])))
            found.sort()
            if found:
                points = tuple((rate, mean) for rate, mean, _ in found)
                band = [(mean - half, mean + half) for _, mean, half in found]
                lines.append(Line(TITLES[scheme], points, _finite(band)))
        return tuple(lines)


class OverwriteGrid(AttackGrid):
    """Overwriting: drawn over a logarithmic axis, with the adversary's own marks in the note."""

    drawn: ClassVar[bool] = True
    log: ClassVar[bool] = True

    def remark(self, preset: Preset, results: Results, place: GridPlace) -> str:
        """How well the adversary's own marks are found, and what ended his training."""
        lowest, stopped, ended = {}, [], 0
        for scheme in self.columns(preset, place):
            rates = []
            for point in self.points(preset, place):
                rows = results.of(self.cell(preset, place, scheme, point))
                found = [r["figures"]["attacker_rate"] for r in rows if _has_rate(r)]
                short = sum(rate < 1 for rate in found)
                rates += found
                ended += len(found) - short
                if short:
                    stopped.append(f"{TITLES[scheme]} {point:g} ({short} of {len(found)})")
            if rates:
                lowest[TITLES[scheme]] = min(rates)
        said = [self.note] if self.note else []
        if lowest:
            each = ", ".join(f"{title} {100 * rate:.2f}" for title, rate in lowest.items())
            said.append(f"the adversary's own marks, at the lowest: {each} (the paper: all 100)")
        if lowest and preset.attack.limit is not None:
            said.append(
                f"adversaries train at least {preset.attack.epochs} epochs and until their mark is"
                f" whole ({ended} runs), or {preset.attack.limit:,} steps in all:"
                f" {', '.join(stopped) or 'none'}"
            )
        return "; ".join(said)


def _has_rate(row: Row) -> bool:
    return row.get("figures", {}).get("attacker_rate") is not None


class FinetuneGrid(AttackGrid):
    """Fine-tuning in all of the preset's directions, on both of the paper's architectures."""

    scope: ClassVar[TuningScope]
    """What is trained."""
    axis: ClassVar[str] = "η"
    with_clean: ClassVar[bool] = True

    def places(self, preset: Preset) -> list[GridPlace]:
        """Every direction on every architecture."""
        return compared(preset, preset.training.directions, preset.training.architectures)

    def attack(
        self, preset: Preset, place: GridPlace, scheme: str, point: Any, seed: int
    ) -> Assault:
        """At a learning rate."""
        victim = victim_at(preset, place, scheme, seed)
        return finetuning(preset, victim, place.direction[1], scope=self.scope, rate=point)


def _absent(preset: Preset, place: GridPlace) -> str:
    """Which marks could not be tested at their own strength."""
    if place.movement:
        return ""
    weak = [TITLES[name] for name in preset.training.too_weak]
    written = [TITLES[name] for name in preset.training.schemes if name in WRITTEN]
    reasons = (
        (weak, "whose published λ does not bring a mark in here"),
        (written, "which was published without a loss"),
    )
    told = [f"{', '.join(names)}, {why}" for names, why in reasons if names]
    return f"not tested: {'; '.join(told)}" if told else ""


def _finite(band: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Bands of several seeds; a single one has none."""
    return tuple(band) if all(map(math.isfinite, (low for low, _ in band))) else ()


def compared(
    preset: Preset, directions: Sequence[Direction], architectures: Sequence[str]
) -> list[GridPlace]:
    """Places for each direction and architecture: at equal movement, then at own strength."""
    return [
        GridPlace(direction, architecture, movement)
        for architecture in architectures
        for direction in directions
        for movement in (*preset.training.movements, 0.0)
    ]


def on_own_data(preset: Preset) -> list[GridPlace]:
    """Places for attacks that need no other task: every data set on every architecture."""
    scale = preset.training
    return compared(preset, [(data, data) for data in scale.datasets], scale.architectures)


def victim_at(preset: Preset, place: GridPlace, scheme: str, seed: int) -> Victim:
    """The model that is attacked in a place."""
    data, equal = place.direction[0], bool(place.movement) and scheme != "clean"
    trained = "clean" if equal else scheme
    model = training(preset, data, trained, architecture=place.architecture, seed=seed)
    return imprinted(preset, model, scheme, place.movement) if equal else model


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
    beside_it = f"{theirs} ({rate:.2f})"
    before = results.values([spec.victim for spec in specs], "rate")
    if before and not kept(specs, before):  # nothing was there to be attacked
        return Cell(ours, beside_it, standing=UNTESTED)
    found = rates + [CHANCE] * broken
    return beside(ours, beside_it, specs, found, theirs=rate / 100 >= BOUNDARY)
