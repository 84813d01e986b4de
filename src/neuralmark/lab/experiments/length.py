"""The length of the watermark, from 64 to 2048 bits (F.7)."""

from typing import ClassVar

from neuralmark.lab.comparing import Cell, beside, percent
from neuralmark.lab.contract import Experiment, Results, Table, training
from neuralmark.lab.experiments._paper import LENGTHS
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Spec, Training


class Length(Experiment):
    """k = max(512, 2n) pools, so that long marks can be written at all."""

    answers: ClassVar[str] = "what does a longer watermark cost?"
    paper: ClassVar[str] = "F.7"
    place: ClassVar[int] = 14

    def runs(self, preset: Preset) -> list[Spec]:
        """Every length and seed."""
        return [spec for bits in preset.sweeps.lengths for spec in _cell(preset, bits)]

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Accuracy and rate by length; below 129 bits nothing can be proven."""
        rows = []
        for bits in preset.sweeps.lengths:
            specs = _cell(preset, bits)
            theirs = LENGTHS.get(bits)
            rates = results.values(specs, "rate")
            shown = "" if theirs is None else f"{theirs:.2f}"
            found = percent(rates)
            rows.append(
                (
                    str(bits),
                    Cell(percent(results.values(specs, "accuracy")), shown),
                    Cell(found) if theirs is None else beside(found, "100", specs, rates),
                )
            )
        heads = ("bits", "accuracy", "detection rate")
        note = "each length has its own boundary; 64 and 128 bits never fall below 2^-128"
        return [Table(f"Watermark length, {_data(preset)}", heads, tuple(rows), note)]


def _data(preset: Preset) -> str:
    return preset.training.datasets[:2][-1]


def _cell(preset: Preset, bits: int) -> list[Training]:
    data = _data(preset)
    pools = max(dict(preset.key).get("pools", 512), 2 * bits)
    changes = {"bits": bits, "pools": int(pools)}
    return [
        training(preset, data, "neuralmark", seed=seed, changes=changes)
        for seed in preset.training.seeds
    ]
