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
    place: ClassVar[int] = 16

    def runs(self, preset: Preset) -> list[Spec]:
        """Models and attacks for every number of rounds."""
        specs: list[Spec] = []
        for rounds in preset.sweeps.rounds:
            for data in preset.training.datasets[:2]:
                specs += _models(preset, data, rounds)
            for direction in _directions(preset):
                for runs, _ in _attacks(preset, direction, rounds).values():
                    specs += runs
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
                        _models(preset, data, rounds),
                        ROUNDS_FIDELITY.get(data, {}).get(rounds),
                    )
                    for rounds in sweep
                ),
            )
            for data in sets
        )
        slip = "the paper's column of R=4 is VoteMark's of its table 1: a slip"
        tables = [
            Table(
                "Accuracy (detection rate) by rounds",
                ("data set", *heads),
                fidelity,
                slip if 4 in sweep else "",
                specs=tuple(
                    spec
                    for data in sets
                    for rounds in sweep
                    for spec in _models(preset, data, rounds)
                ),
            )
        ]
        for direction in _directions(preset):
            attacks = {rounds: _attacks(preset, direction, rounds) for rounds in sweep}
            rows: tuple[tuple[Cell | str, ...], ...] = tuple(
                (
                    name,
                    *(filled(results, *attacks[rounds][name]) for rounds in sweep),
                )
                for name in attacks[sweep[0]]
            )
            title = f"Attacks by rounds, {arrow(direction)}: accuracy (detection rate)"
            specs = tuple(
                spec for each in attacks.values() for runs, _ in each.values() for spec in runs
            )
            note = "the paper has pruning by rounds as a figure only"
            tables.append(Table(title, ("attack", *heads), rows, note, specs=specs))
        return tables


def _directions(preset: Preset) -> list[tuple[str, str]]:
    return [direction for direction in preset.training.directions if direction in CIFAR]


def _models(preset: Preset, data: str, rounds: int) -> list[Training]:
    changes = {"rounds": rounds}
    return [
        training(preset, data, "neuralmark", seed=seed, changes=changes)
        for seed in preset.training.seeds
    ]


def _attacks(
    preset: Preset, direction: tuple[str, str], rounds: int
) -> dict[str, tuple[list[Assault], Pair | None]]:
    """Every attack by name: its runs, and appendix G's value."""

    def over(weight: float = 1.0, rate: float | None = None) -> list[Assault]:
        return [
            overwriting(
                preset, direction, "neuralmark", seed, weight=weight, rate=rate, rounds=rounds
            )
            for seed in preset.training.seeds
        ]

    victims, usual = _models(preset, direction[0], rounds), preset.attack.rate
    tuned = {"scope": "all", **course(preset)}
    weights = ROUNDS_WEIGHTS.get(direction, {}) if usual == RATE else {}
    attacks: dict[str, tuple[list[Assault], Pair | None]] = {
        f"overwrite λ={weight:g}": (
            over(weight=weight),
            weights.get(weight, {}).get(rounds),
        )
        for weight in preset.sweeps.weights
    }
    attacks |= {
        f"overwrite η={rate:g}": (
            over(rate=rate),
            ROUNDS_RATES.get(direction, {}).get(rate, {}).get(rounds),
        )
        for rate in preset.sweeps.rates
        if rate != usual
    }
    attacks["finetune all"] = (
        [assault(preset, each, "finetune", tuned, data=direction[1]) for each in victims],
        ROUNDS_FINETUNE.get(direction, {}).get(rounds) if usual == RATE else None,
    )
    attacks |= {
        f"prune {share:g}": ([pruning(preset, each, share) for each in victims], None)
        for share in preset.sweeps.pruned
    }
    return attacks
