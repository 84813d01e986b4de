"""Ours: projection against gradient, at several margins, in the paper's attacks."""

from typing import Any, ClassVar

from neuralmark.lab.comparing import Cell
from neuralmark.lab.contract import (
    Experiment,
    Results,
    Table,
    assault,
    course,
    pruning,
    trained,
    training,
)
from neuralmark.lab.experiments._grid import filled
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Assault, Spec, Training, Value


class Modes(Experiment):
    """The paper's loss, and the smallest change that keeps every bit at a margin."""

    answers: ClassVar[str] = "gradient or projection: what survives, and at what movement?"
    paper: ClassVar[str] = "ours"

    def runs(self, preset: Preset) -> list[Spec]:
        """Gradient, and projection at every margin, each attacked."""
        specs: list[Spec] = [*_clean(preset)]
        for victims in _victims(preset).values():
            specs += victims
            for attacks in _attacks(preset, victims).values():
                specs += attacks
        return specs

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Movement, accuracy and rates side by side."""
        columns = _victims(preset)
        attacks = {name: _attacks(preset, victims) for name, victims in columns.items()}
        rows: list[tuple[Cell | str, ...]] = [
            ("layer moved", *(_moved(results, victims) for victims in columns.values())),
            ("none", *(trained(results, victims, None) for victims in columns.values())),
        ]
        for attack in next(iter(attacks.values())):
            cells = (filled(results, each[attack], None) for each in attacks.values())
            rows.append((attack, *cells))
        title = "Gradient and projection: accuracy (detection rate)"
        clean = _moved(results, _clean(preset))
        note = f"movement as a share of the norm of the fresh weights; a clean training: {clean}"
        return [Table(title, ("attack", *columns), tuple(rows), note)]


def _moved(results: Results, victims: list[Training]) -> str:
    found = results.values(victims, "moved")
    return f"{100 * sum(found) / len(found):.0f} %" if found else "–"


def _clean(preset: Preset) -> list[Training]:
    data, seeds = preset.training.directions[0][0], preset.training.seeds
    return [training(preset, data, "clean", seed=seed) for seed in seeds]


def _victims(preset: Preset) -> dict[str, list[Training]]:
    data, seeds = preset.training.directions[0][0], preset.training.seeds
    ways: dict[str, dict[str, Any]] = {"gradient": {}}
    for margin in preset.sweeps.margins:
        ways[f"projection {margin:g} σz"] = {"mode": "projection", "strength": float(margin)}
    return {
        name: [training(preset, data, "neuralmark", seed=seed, changes=way) for seed in seeds]
        for name, way in ways.items()
    }


def _attacks(preset: Preset, victims: list[Training]) -> dict[str, list[Assault]]:
    target = preset.training.directions[0][1]
    largest = max(preset.sweeps.weights)

    def each(attack: str, chosen: dict[str, Value]) -> list[Assault]:
        return [assault(preset, victim, attack, chosen, data=target) for victim in victims]

    over = {"weight": largest * preset.training.strength, **course(preset)}
    made = {f"overwrite λ={largest:g}": each("overwrite", over)}
    for rate in preset.sweeps.finetune_rates:
        made[f"finetune all η={rate:g}"] = each(
            "finetune", {"scope": "all", **course(preset, rate)}
        )
    for share in preset.sweeps.pruned:
        made[f"prune {share:g}"] = [pruning(preset, victim, share) for victim in victims]
    return made
