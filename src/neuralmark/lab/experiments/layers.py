"""Other layers, and all layers at once (F.6)."""

from dataclasses import replace
from typing import ClassVar

from neuralmark.lab.comparing import Cell, beside, percent
from neuralmark.lab.contract import Experiment, Results, Table, marked_tensors, training
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Spec, Training

LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "resnet18": (
        ("layer2.1.conv2.weight",),
        ("layer3.0.conv2.weight",),
        ("layer3.1.conv1.weight",),
        ("layer4.0.conv2.weight",),
        (
            "conv1.weight",
            *(
                f"layer{layer}.{block}.conv{i}.weight"
                for layer in (1, 2, 3, 4)
                for block in (0, 1)
                for i in (1, 2)
            ),
            *(f"layer{layer}.0.downsample.0.weight" for layer in (2, 3, 4)),
        ),
    ),
    "smallcnn": (
        ("conv3.weight",),
        ("conv4.weight",),
        tuple(f"conv{i}.weight" for i in (1, 2, 3, 4)),
    ),
    "digits": (("conv2.weight",), ("conv1.weight", "conv2.weight")),
}
"""Layers that hold a default key, then all convolutions as one mark.

The paper draws its four at random and does not name them.
"""

PAPER = (76.51, 76.68, 76.30, 76.73, 75.86)


class Layers(Experiment):
    """The mark in one layer after another, and in all of them."""

    answers: ClassVar[str] = "does it matter which layer carries the mark?"
    paper: ClassVar[str] = "F.6"
    place: ClassVar[int] = 13

    def runs(self, preset: Preset) -> list[Spec]:
        """Every choice and seed."""
        return [spec for tensors in _choices(preset) for spec in _cell(preset, tensors)]

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Accuracy and rate by choice; the paper's layers are not named, so only the last fits."""
        rows = []
        choices = _choices(preset)
        known = _data(preset) == "cifar100"
        for i, tensors in enumerate(choices):
            specs = _cell(preset, tensors)
            rates = results.values(specs, "rate")
            last = known and i == len(choices) - 1
            shown = percent(rates)
            rows.append(
                (
                    _called(tensors, choices),
                    Cell(
                        percent(results.values(specs, "accuracy")),
                        f"{PAPER[-1]:.2f}" if last else "",
                    ),
                    beside(shown, "100", specs, rates) if known else Cell(shown),
                )
            )
        theirs = ", ".join(f"{value:.2f}" for value in PAPER[:4])
        note = f"accuracies of the paper's four unnamed layers of ResNet-18: {theirs}"
        heads = ("tensors", "accuracy", "detection rate")
        return [Table(f"Marked layer, {_data(preset)}", heads, tuple(rows), note if known else "")]


def _data(preset: Preset) -> str:
    return preset.training.datasets[:2][-1]


def _called(tensors: tuple[str, ...], choices: tuple[tuple[str, ...], ...]) -> str:
    return f"all {len(tensors)} convolutions" if tensors == choices[-1] else tensors[0]


def _choices(preset: Preset) -> tuple[tuple[str, ...], ...]:
    return LAYERS.get(preset.training.main, ())


def _cell(preset: Preset, tensors: tuple[str, ...]) -> list[Training]:
    data = _data(preset)
    usual = tensors == marked_tensors(preset.training.main)
    return [
        replace(training(preset, data, "neuralmark", seed=seed), tensors=() if usual else tensors)
        for seed in preset.training.seeds
    ]
