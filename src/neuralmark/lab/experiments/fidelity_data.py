"""Accuracy with each scheme's mark, by data set (table 1)."""

from typing import ClassVar

from neuralmark.lab.comparing import Cell, percent, spread
from neuralmark.lab.contract import Experiment, Results, Table, trained, training
from neuralmark.lab.experiments._grid import GridPlace, victim_at
from neuralmark.lab.experiments._paper import ALEXNET, FIDELITY, RESNET
from neuralmark.lab.plan.columns import TITLES, WRITTEN
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Spec, Training, Victim

NEAR = 0.02
"""Within which share of it a movement counts as met."""


class FidelityData(Experiment):
    """Clean and the schemes on every data set; at equal movement too where a scale asks for it."""

    answers: ClassVar[str] = "what does a mark cost in accuracy, by data set?"
    paper: ClassVar[str] = "table 1"
    place: ClassVar[int] = 1

    def runs(self, preset: Preset) -> list[Spec]:
        """Every data set, architecture, scheme and seed."""
        return [spec for stage in self.stages(preset) for spec in stage]

    def stages(self, preset: Preset) -> list[list[Spec]]:
        """One for each data set and way of marking."""
        scale = preset.training
        stages: list[list[Spec]] = []
        for data in scale.datasets:
            stages += [[*_equal(preset, data, each)] for each in scale.movements]
            stages.append(
                [
                    spec
                    for architecture in scale.architectures
                    for scheme in _trained(preset)
                    for spec in _cell(preset, data, architecture, scheme)
                ]
            )
        return stages

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """One table per architecture: accuracy, and the rate where a mark is."""
        columns = _trained(preset)
        own = [
            Table(
                f"Accuracy (detection rate) by data set, {architecture}",
                ("data set", *(TITLES[scheme] for scheme in columns)),
                tuple(
                    (
                        data,
                        *(
                            trained(
                                results,
                                _cell(preset, data, architecture, scheme),
                                _paper(data, architecture, scheme),
                            )
                            for scheme in columns
                        ),
                    )
                    for data in preset.training.datasets
                ),
                note=_note(preset, architecture),
                specs=tuple(
                    spec
                    for data in preset.training.datasets
                    for scheme in columns
                    for spec in _cell(preset, data, architecture, scheme)
                ),
            )
            for architecture in preset.training.architectures
        ]
        return own + [_at(preset, results, each) for each in preset.training.movements]


def _at(preset: Preset, results: Results, movement: float) -> Table:
    """What each scheme makes of the same movement."""
    columns = _columns(preset)
    rows: list[tuple[Cell | str, ...]] = []
    for data in preset.training.datasets:
        cells = {scheme: _pressed(preset, data, scheme, movement) for scheme in columns}
        rows.append((data, *(trained(results, runs, None) for runs in cells.values())))
        margins = (spread(results.values(runs, "strength"), "{:.2f}") for runs in cells.values())
        rows.append((f"{data}, margin in σz", *margins))
    note = (
        "every mark written into the same clean model, ‖Δw‖/‖w‖ of its layer the same for all; by"
        " the smallest change that gives all bits one margin, GreedyMark by its own loss"
    )
    return Table(
        f"Accuracy (detection rate) at equal movement ({100 * movement:g} %)",
        ("data set", *(TITLES[scheme] for scheme in columns)),
        tuple(rows),
        "; ".join([note, *_short_of(preset, results, movement)]),
        specs=tuple(s for data in preset.training.datasets for s in _equal(preset, data, movement)),
    )


def _short_of(preset: Preset, results: Results, movement: float) -> list[str]:
    """Which marks moved the layer by less, and how far."""
    said = []
    for scheme in preset.training.schemes:
        runs = [
            run
            for data in preset.training.datasets
            for run in _pressed(preset, data, scheme, movement)
        ]
        moved = results.values(runs, "moved")
        if moved and max(moved) < (1 - NEAR) * movement:
            said.append(f"{TITLES[scheme]} can move it by {percent(moved)} % only")
    return said


def _columns(preset: Preset) -> list[str]:
    return ["clean", *preset.training.schemes]


def _trained(preset: Preset) -> list[str]:
    return [scheme for scheme in _columns(preset) if scheme not in WRITTEN]


def _pressed(preset: Preset, data: str, scheme: str, movement: float) -> list[Victim]:
    place = GridPlace((data, data), preset.training.main, movement)
    return [victim_at(preset, place, scheme, seed) for seed in preset.training.seeds]


def _equal(preset: Preset, data: str, movement: float) -> list[Victim]:
    return [s for scheme in _columns(preset) for s in _pressed(preset, data, scheme, movement)]


def _paper(data: str, architecture: str, scheme: str) -> float | None:
    """The paper's accuracy; ResNet-18's for an architecture that it does not have."""
    own = FIDELITY.get((data, architecture), FIDELITY.get((data, RESNET), {}))
    return own.get(scheme)


def _note(preset: Preset, architecture: str) -> str:
    stands_in = architecture not in (ALEXNET, RESNET) and any(
        (data, RESNET) in FIDELITY for data in preset.training.datasets
    )
    return f"the paper has no {architecture}: its values are ResNet-18's" if stands_in else ""


def _cell(preset: Preset, data: str, architecture: str, scheme: str) -> list[Training]:
    return [
        training(preset, data, scheme, architecture=architecture, seed=seed)
        for seed in preset.training.seeds
    ]
