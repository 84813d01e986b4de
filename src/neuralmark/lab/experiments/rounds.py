"""More rounds of the filter, against every attack (appendix G)."""

from typing import ClassVar

from neuralmark.lab.experiments._base import (
    Cell,
    Experiment,
    Results,
    Table,
    assault,
    course,
    overwriting,
    percent,
    pruning,
    training,
)
from neuralmark.lab.experiments._grid import CIFAR, arrow, filled
from neuralmark.lab.experiments._paper import ROUNDS_FIDELITY
from neuralmark.lab.preset import Preset
from neuralmark.lab.spec import Assault, Spec, Training


class Rounds(Experiment):
    """R = 4, 6 and 8: fidelity, overwriting, fine-tuning, pruning."""

    answers: ClassVar[str] = "do more rounds of the filter make the mark stronger?"
    paper: ClassVar[str] = "appendix G"

    def runs(self, preset: Preset) -> list[Spec]:
        """Models and attacks for every number of rounds."""
        specs: list[Spec] = []
        for rounds in preset.sweeps.rounds:
            specs += [_model(preset, data, rounds) for data in preset.training.datasets[:2]]
            for direction in _directions(preset):
                specs += list(_attacks(preset, direction, rounds).values())
        return specs

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Fidelity, then one table of attacks a direction."""
        heads = tuple(f"R={rounds}" for rounds in preset.sweeps.rounds)
        fidelity: list[tuple[Cell | str, ...]] = []
        for data in preset.training.datasets[:2]:
            cells = []
            for rounds in preset.sweeps.rounds:
                found = results.values([_model(preset, data, rounds)], "accuracy")
                theirs = ROUNDS_FIDELITY.get(data, {}).get(rounds)
                cells.append(Cell(percent(found), "" if theirs is None else f"{theirs:.2f}"))
            fidelity.append((data, *cells))
        note = "the paper's row of R=4 is VoteMark's of its table 1: a slip"
        tables = [Table("Accuracy by rounds", ("data set", *heads), tuple(fidelity), note)]
        for direction in _directions(preset):
            names = list(_attacks(preset, direction, preset.sweeps.rounds[0]))
            rows = tuple(
                (
                    name,
                    *(
                        filled(results, [_attacks(preset, direction, rounds)[name]], None)
                        for rounds in preset.sweeps.rounds
                    ),
                )
                for name in names
            )
            title = f"Attacks by rounds, {arrow(direction)}: accuracy (detection rate)"
            tables.append(Table(title, ("attack", *heads), rows))
        return tables


def _directions(preset: Preset) -> list[tuple[str, str]]:
    return [direction for direction in preset.training.directions if direction in CIFAR]


def _model(preset: Preset, data: str, rounds: int) -> Training:
    return training(preset, data, "neuralmark", changes={"rounds": rounds})


def _attacks(preset: Preset, direction: tuple[str, str], rounds: int) -> dict[str, Assault]:
    source, target = direction
    victim = _model(preset, source, rounds)
    largest, highest = max(preset.sweeps.weights), sorted(preset.sweeps.rates)[1]
    tuned = {"scope": "all", **course(preset)}
    return {
        f"overwrite λ={largest:g}": overwriting(
            preset, direction, "neuralmark", 0, weight=largest, rounds=rounds
        ),
        f"overwrite η={highest:g}": overwriting(
            preset, direction, "neuralmark", 0, rate=highest, rounds=rounds
        ),
        "finetune all": assault(preset, victim, "finetune", tuned, data=target),
        **{f"prune {share:g}": pruning(preset, victim, share) for share in preset.sweeps.pruned},
    }
