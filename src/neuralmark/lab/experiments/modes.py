"""Ours: projection against gradient, at several margins, in the paper's attacks."""

from typing import ClassVar

from neuralmark.lab.experiments._base import (
    Cell,
    Experiment,
    Results,
    Table,
    assault,
    course,
    percent,
    pruning,
    training,
)
from neuralmark.lab.experiments._grid import filled
from neuralmark.lab.preset import Preset
from neuralmark.lab.spec import Assault, Spec, Training


class Modes(Experiment):
    """The paper's loss, and the smallest change that keeps every bit at a margin."""

    answers: ClassVar[str] = "gradient or projection: what survives, and at what movement?"
    paper: ClassVar[str] = "ours"

    def runs(self, preset: Preset) -> list[Spec]:
        """Gradient, and projection at every margin, each attacked."""
        specs: list[Spec] = []
        for victim in _victims(preset).values():
            specs += [victim, *_attacks(preset, victim).values()]
        return specs

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Movement, accuracy and rates side by side."""
        victims = _victims(preset)
        rows: list[tuple[Cell | str, ...]] = [
            ("layer moved", *(_moved(results, victim) for victim in victims.values())),
            (
                "none",
                *(
                    Cell(
                        f"{percent(results.values([victim], 'accuracy'))}"
                        f" ({percent(results.values([victim], 'rate'))})"
                    )
                    for victim in victims.values()
                ),
            ),
        ]
        first = next(iter(victims.values()))
        for name in _attacks(preset, first):
            cells = (
                filled(results, [_attacks(preset, victim)[name]], None)
                for victim in victims.values()
            )
            rows.append((name, *cells))
        title = "Gradient and projection: accuracy (detection rate)"
        return [Table(title, ("attack", *victims), tuple(rows))]


def _moved(results: Results, victim: Training) -> str:
    found = results.values([victim], "moved")
    return f"{100 * found[0]:.0f} %" if found else "–"


def _victims(preset: Preset) -> dict[str, Training]:
    data = preset.training.directions[0][0]
    victims = {"gradient": training(preset, data, "neuralmark")}
    for margin in preset.sweeps.margins:
        changes = {"mode": "projection", "strength": float(margin)}
        victims[f"projection {margin:g} σz"] = training(preset, data, "neuralmark", changes=changes)
    return victims


def _attacks(preset: Preset, victim: Training) -> dict[str, Assault]:
    target = preset.training.directions[0][1]
    largest = max(preset.sweeps.weights)
    over = {"weight": largest * preset.training.strength, **course(preset)}
    made = {f"overwrite λ={largest:g}": assault(preset, victim, "overwrite", over, data=target)}
    for rate in preset.sweeps.finetune_rates:
        tuned = {"scope": "all", **course(preset, rate)}
        made[f"finetune all η={rate:g}"] = assault(preset, victim, "finetune", tuned, data=target)
    for share in preset.sweeps.pruned:
        made[f"prune {share:g}"] = pruning(preset, victim, share)
    return made
