"""Detection rate of counterfeit keys on marked models (table 4)."""

from typing import ClassVar

from neuralmark.lab.comparing import Cell, beside, percent
from neuralmark.lab.contract import MARKS, Experiment, Results, Table, assault, training
from neuralmark.lab.experiments._grid import BOUNDARY
from neuralmark.lab.experiments._paper import FORGED
from neuralmark.lab.plan.columns import TITLES
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Assault, Spec

LEARNT = ("vanillamark", "votemark")


class Forging(Experiment):
    """Ten random keys; for VanillaMark and VoteMark, a secret learnt with frozen weights."""

    answers: ClassVar[str] = "can a counterfeit key pass without touching the model?"
    paper: ClassVar[str] = "table 4"
    place: ClassVar[int] = 4

    def runs(self, preset: Preset) -> list[Spec]:
        """Every data set and scheme."""
        return [
            spec
            for data in preset.training.datasets[:2]
            for scheme in MARKS
            for spec in _cell(preset, data, scheme)
        ]

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Rates of the counterfeits: the mean of ten, or what was learnt."""
        rows: list[tuple[Cell | str, ...]] = []
        for data in preset.training.datasets[:2]:
            cells: list[Cell] = []
            for scheme in MARKS:
                specs = _cell(preset, data, scheme)
                found = [_rate(row, scheme) for row in results.of(specs)]
                theirs = FORGED.get(data, {}).get(scheme)
                if theirs is None:
                    cells.append(Cell(percent(found)))
                    continue
                proven = theirs / 100 >= BOUNDARY
                cells.append(beside(percent(found), f"{theirs:.2f}", specs, found, theirs=proven))
            rows.append((data, *cells))
        heads = ("data set", *(TITLES[scheme] for scheme in MARKS))
        return [Table("Detection rate of counterfeit keys", heads, tuple(rows))]


def _rate(row: dict[str, object], scheme: str) -> float:
    figures = row["figures"]
    assert isinstance(figures, dict)
    return float(figures["best_rate" if scheme in LEARNT else "mean_rate"])


def _cell(preset: Preset, data: str, scheme: str) -> list[Assault]:
    specs = []
    for seed in preset.training.seeds:
        victim = training(preset, data, scheme, seed=seed)
        if scheme in LEARNT:
            specs.append(assault(preset, victim, "forge-learn", {"steps": 10_000}))
        else:
            specs.append(assault(preset, victim, "forge-random", {"tries": 10}))
    return specs
