"""Random pruning of the marked layer (the pruning figure; F.3)."""

from collections.abc import Sequence
from typing import Any, ClassVar

from neuralmark.lab.comparing import Cell, beside
from neuralmark.lab.contract import Results, pruning
from neuralmark.lab.experiments._grid import AttackGrid, GridPlace, filled, on_own_data, victim_at
from neuralmark.lab.experiments._paper import Pair
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Assault, ImprintSpec

PAPER_DATA = ("cifar10", "cifar100", "caltech101", "caltech256")


class Pruning(AttackGrid):
    """A growing share of the marked layer set to zero at random."""

    answers: ClassVar[str] = "does the mark outlive the network when weights are zeroed?"
    paper: ClassVar[str] = "figure 2, F.3"
    place: ClassVar[int] = 9
    axis: ClassVar[str] = "share set to zero"
    heading: ClassVar[str] = "Random pruning of the marked layer"
    with_clean: ClassVar[bool] = True
    drawn: ClassVar[bool] = True
    accuracies: ClassVar[bool] = True
    note: ClassVar[str] = (
        "the paper has figures only; it says that NeuralMark's rate stays near 100 %"
    )

    def places(self, preset: Preset) -> list[GridPlace]:
        """On the model's own data, on both of the paper's architectures."""
        return on_own_data(preset)

    def points(self, preset: Preset, place: GridPlace) -> Sequence[float]:
        """The shares."""
        return preset.sweeps.pruned

    def attack(
        self, preset: Preset, place: GridPlace, scheme: str, point: Any, seed: int
    ) -> Assault:
        """Only the marked layer, as in the paper."""
        return pruning(preset, victim_at(preset, place, scheme, seed), point)

    def shown(
        self, results: Results, specs: Sequence[Assault], scheme: str, paper: Pair | None
    ) -> Cell:
        """NeuralMark's rate beside what the paper says of it, on the data that it has."""
        cell = filled(results, specs, paper)
        victim = specs[0].victim
        told = scheme == "neuralmark" and victim.data in PAPER_DATA
        if not told or isinstance(victim, ImprintSpec):
            return cell
        rates = results.values(specs, "rate")
        return beside(cell.ours, "(≈ 100)", specs, rates)
