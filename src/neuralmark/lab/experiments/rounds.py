"""More rounds of the filter, against every attack (appendix G)."""

from typing import ClassVar

from neuralmark.lab.comparing import Cell, least
from neuralmark.lab.contract import (
    Experiment,
    Figure,
    Line,
    Results,
    Table,
    assault,
    overwriting,
    pruning,
    trained,
    training,
    tuning_course,
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
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Assault, Spec, Training


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
                for runs in _pruned(preset, data, rounds).values():
                    specs += runs
            for direction in _directions(preset):
                for runs, _ in _attacks(preset, direction, rounds).values():
                    specs += runs
        return specs

    def figures(self, preset: Preset, results: Results) -> list[Figure]:
        """Pruning: one line per number of rounds, on each data set (the appendix's figure)."""
        figures = []
        for data in preset.training.datasets[:2]:
            by_rounds = {rounds: _pruned(preset, data, rounds) for rounds in preset.sweeps.rounds}
            first = next(iter(by_rounds.values()))
            proof = 100 * least(next(iter(first.values()))[0])
            title = f"Random pruning by rounds, {data}"
            for name, axis in (("rate", "detection rate (%)"), ("accuracy", "accuracy (%)")):
                lines = tuple(
                    Line(f"R={rounds}", _points(results, runs, name))
                    for rounds, runs in by_rounds.items()
                )
                lines = tuple(line for line in lines if line.points)
                boundary = proof if name == "rate" else None
                figures.append(Figure(title, "share set to zero", axis, lines, boundary=boundary))
        return figures

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Fidelity, one table of attacks that train a direction, one of pruning a data set."""
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
            tables.append(Table(title, ("attack", *heads), rows, specs=specs))
        return tables + [_pruning_table(preset, results, data) for data in sets]


def _pruning_table(preset: Preset, results: Results, data: str) -> Table:
    sweep = preset.sweeps.rounds
    by_rounds = {rounds: _pruned(preset, data, rounds) for rounds in sweep}
    rows: tuple[tuple[Cell | str, ...], ...] = tuple(
        (f"{share:g}", *(filled(results, by_rounds[rounds][share], None) for rounds in sweep))
        for share in preset.sweeps.pruned
    )
    return Table(
        f"Random pruning by rounds, {data}: accuracy (detection rate)",
        ("share set to zero", *(f"R={rounds}" for rounds in sweep)),
        rows,
        "the paper has a figure only",
        specs=tuple(s for by in by_rounds.values() for runs in by.values() for s in runs),
    )


def _points(
    results: Results, by_share: dict[float, list[Assault]], name: str
) -> tuple[tuple[float, float], ...]:
    found = ((share, results.values(runs, name)) for share, runs in by_share.items())
    return tuple((share, 100 * sum(values) / len(values)) for share, values in found if values)


def _pruned(preset: Preset, data: str, rounds: int) -> dict[float, list[Assault]]:
    """Pruning by share, on the model's own data."""
    victims = _models(preset, data, rounds)
    return {
        float(share): [pruning(preset, each, share) for each in victims]
        for share in preset.sweeps.pruned
    }


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
    """Every attack that trains, by name: its runs, and appendix G's value."""

    def over(weight: float = 1.0, rate: float | None = None) -> list[Assault]:
        return [
            overwriting(preset, victim, direction[1], weight=weight, rate=rate)
            for victim in victims
        ]

    victims, usual = _models(preset, direction[0], rounds), preset.attack.rate
    tuned = {"scope": "all", **tuning_course(preset)}
    weights = ROUNDS_WEIGHTS.get(direction, {}) if usual == RATE else {}
    attacks: dict[str, tuple[list[Assault], Pair | None]] = {
        f"overwriting, λ={weight:g}, η={usual:g}": (
            over(weight=weight),
            weights.get(weight, {}).get(rounds),
        )
        for weight in preset.sweeps.weights
    }
    attacks |= {
        f"overwriting, λ=1, η={rate:g}": (
            over(rate=rate),
            ROUNDS_RATES.get(direction, {}).get(rate, {}).get(rounds),
        )
        for rate in preset.sweeps.rates
        if rate != usual
    }
    attacks[f"fine-tuning, all layers, η={usual:g}"] = (
        [assault(preset, each, "finetune", tuned, data=direction[1]) for each in victims],
        ROUNDS_FINETUNE.get(direction, {}).get(rounds) if usual == RATE else None,
    )
    return attacks
