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
    pruning,
    trained,
    training,
)
from neuralmark.lab.experiments._grid import CIFAR, arrow, filled
from neuralmark.lab.experiments._paper import (
    RATE,
    ROUNDS_FIDELITY,
    ROUNDS_FINETUNE,
    ROUNDS_RATES,
    ROUNDS_WEIGHTS,
    Pair,
)
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
        sweep = preset.sweeps.rounds
        heads = tuple(f"R={rounds}" for rounds in sweep)
        sets = preset.training.datasets[:2]
        fidelity: tuple[tuple[Cell | str, ...], ...] = tuple(
            (
                data,
                *(
                    trained(
                        results,
                        [_model(preset, data, rounds)],
                        ROUNDS_FIDELITY.get(data, {}).get(rounds),
                    )
                    for rounds in sweep
                ),
            )
            for data in sets
        )
        tables = [
            Table(
                "Accuracy (detection rate) by rounds",
                ("data set", *heads),
                fidelity,
                "the paper's column of R=4 is VoteMark's of its table 1: a slip",
                specs=tuple(_model(preset, data, rounds) for data in sets for rounds in sweep),
            )
        ]
        for direction in _directions(preset):
            attacks = {rounds: _attacks(preset, direction, rounds) for rounds in sweep}
            papers = {rounds: _papers(preset, direction, rounds) for rounds in sweep}
            rows: tuple[tuple[Cell | str, ...], ...] = tuple(
                (
                    name,
                    *(
                        filled(results, [attacks[rounds][name]], papers[rounds].get(name))
                        for rounds in sweep
                    ),
                )
                for name in attacks[sweep[0]]
            )
            title = f"Attacks by rounds, {arrow(direction)}: accuracy (detection rate)"
            specs = tuple(spec for each in attacks.values() for spec in each.values())
            note = "the paper has pruning by rounds as a figure only"
            tables.append(Table(title, ("attack", *heads), rows, note, specs=specs))
        return tables


def _directions(preset: Preset) -> list[tuple[str, str]]:
    return [direction for direction in preset.training.directions if direction in CIFAR]


def _model(preset: Preset, data: str, rounds: int) -> Training:
    return training(preset, data, "neuralmark", changes={"rounds": rounds})


def _points(preset: Preset) -> tuple[float, float]:
    """The largest λ, and the rate above the usual one."""
    return max(preset.sweeps.weights), sorted(preset.sweeps.rates)[1]


def _attacks(preset: Preset, direction: tuple[str, str], rounds: int) -> dict[str, Assault]:
    source, target = direction
    victim = _model(preset, source, rounds)
    largest, higher = _points(preset)
    tuned = {"scope": "all", **course(preset)}
    return {
        f"overwrite λ={largest:g}": overwriting(
            preset, direction, "neuralmark", 0, weight=largest, rounds=rounds
        ),
        f"overwrite η={higher:g}": overwriting(
            preset, direction, "neuralmark", 0, rate=higher, rounds=rounds
        ),
        "finetune all": assault(preset, victim, "finetune", tuned, data=target),
        **{f"prune {share:g}": pruning(preset, victim, share) for share in preset.sweeps.pruned},
    }


def _papers(preset: Preset, direction: tuple[str, str], rounds: int) -> dict[str, Pair | None]:
    """Appendix G's values, under the names of the attacks."""
    largest, higher = _points(preset)
    usual = preset.attack.rate == RATE
    by_weight = ROUNDS_WEIGHTS.get(direction, {}).get(largest, {})
    by_rate = ROUNDS_RATES.get(direction, {}).get(higher, {})
    tuned = ROUNDS_FINETUNE.get(direction, {})
    return {
        f"overwrite λ={largest:g}": by_weight.get(rounds) if usual else None,
        f"overwrite η={higher:g}": by_rate.get(rounds),
        "finetune all": tuned.get(rounds) if usual else None,
    }
