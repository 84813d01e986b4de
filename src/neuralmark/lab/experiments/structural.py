"""Ours: changes that keep the function and defeat every mark at positions but anchored ones."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from neuralmark import schemes
from neuralmark.lab.comparing import Cell, percent
from neuralmark.lab.contract import Results, assault
from neuralmark.lab.experiments._grid import (
    AttackGrid,
    GridPlace,
    compared,
    filled,
    victim_at,
)
from neuralmark.lab.experiments._paper import Pair
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Assault, ImprintSpec, Value

WAYS: dict[str, dict[str, Value]] = {
    "permute": {"how": "permute", "amount": 1.0},
    "flip signs": {"how": "flip", "amount": 1.0},
    "rescale": {"how": "rescale", "amount": 1.0},
}
ALL: dict[str, dict[str, Value]] = {"all, 8 channels added": {"how": "all", "amount": 8}}


class Structural(AttackGrid):
    """Permuting, flipping and rescaling channels: same outputs, no mark but with an anchor."""

    answers: ClassVar[str] = "does the mark survive a rearrangement that keeps the function?"
    paper: ClassVar[str] = "ours"
    axis: ClassVar[str] = "rearrangement"
    heading: ClassVar[str] = "Function-preserving changes"

    def places(self, preset: Preset) -> list[GridPlace]:
        """On the first data set; where schemes are compared at equal movement, on each."""
        scale = preset.training
        sets = scale.datasets if scale.movements else scale.datasets[:1]
        return compared(preset, [(data, data) for data in sets], [scale.main])

    def points(self, preset: Preset, place: GridPlace) -> Sequence[str]:
        """The ways; all of them together where there are anchors."""
        return [*WAYS, *(ALL if place.movement else ())]

    def attack(
        self, preset: Preset, place: GridPlace, scheme: str, point: Any, seed: int
    ) -> Assault:
        """Marks that are written into a finished model are bound to an anchor of it."""
        victim = victim_at(preset, place, scheme, seed)
        if isinstance(victim, ImprintSpec) and schemes.get(victim.mark.scheme).writes:
            victim = replace(victim, anchored=True)
        return assault(preset, victim, "restructure", (WAYS | ALL)[point])

    def shown(
        self, results: Results, specs: Sequence[Assault], scheme: str, paper: Pair | None
    ) -> Cell:
        """By position; and with the anchor, where there is one."""
        cell = filled(results, specs, paper)
        victim, rows = specs[0].victim, results.of(specs)
        if not rows or not isinstance(victim, ImprintSpec) or not victim.anchored:
            return cell
        found = [0.0 if row["aligned"] is None else row["aligned"]["rate"] for row in rows]
        return replace(cell, ours=f"{cell.ours}, with the anchor {percent(found)}")

    def remark(self, preset: Preset, results: Results, place: GridPlace) -> str:
        """Which marks have anchors."""
        if not place.movement:
            return "marks that are trained in have no anchor: read by position only"
        return "in brackets by position; GreedyMark is not written into a finished model, no anchor"
