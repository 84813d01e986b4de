"""The schemes that read a live model at its triggers, after attacks, on scikit-learn's digits.

    python -m benchmarks.trigger_schemes [--keys 3] [--json]

DeepSigns in both forms in a perceptron (ten classes of eight triggers), the feature map in the
small convolutional network (five triggers, 32 channels), Lim's mark in an LSTM that reads digits
row by row (16 triggers, 6 epochs). Bits of the worst key, and its accuracy in brackets, after
pruning, fine-tuning and, for Lim's mark, `fold-in`.

Must be reached: every trained mark is verified; folding in Lim's key changes no accuracy, and
turning signs leaves less than the boundary.
"""

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import neuralmark
from benchmarks._common import Report, parser
from benchmarks.weight_schemes import accuracy, digits, fit
from neuralmark import AttachOptions, Claim, Key, KeyedMemory, Triggers, schemes, zoo
from neuralmark.attacks import Data
from neuralmark.attacks.contract import Attack
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.finetune import Finetune
from neuralmark.attacks.fold_in import FoldIn
from neuralmark.attacks.prune import Prune

BITS = 160
NEEDED = 155
COLUMNS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepsigns, released": ("deepsigns", {"form": "released"}),
    "deepsigns, paper": ("deepsigns", {"form": "paper"}),
    "featuremap": ("featuremap", {"channels": 32, "side": 4}),
    "lim": ("lim", {}),
}
LAYERS = {"deepsigns": "3", "featuremap": "conv2", "lim": "memory"}
COUNTS = {"deepsigns": 8, "featuremap": 5, "lim": 16}
ATTACKS: dict[str, Attack] = {
    "random 5 %": Prune(0.05, "random"),
    "random 10 %": Prune(0.1, "random"),
    "prune 50 %": Prune(0.5),
    "prune 90 %": Prune(0.9),
    "fine-tune 0.001": Finetune(0.001, epochs=5, classifier="keep"),
    "fine-tune 0.01": Finetune(0.01, epochs=5, classifier="keep"),
}


class RowReader(nn.Module):
    """Reads an image row by row, and says what it saw."""

    def __init__(self, key: Key) -> None:
        """A memory under the key."""
        super().__init__()
        self.memory = KeyedMemory.of(key, 8, BITS)
        self.last = nn.Linear(BITS, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Ten logits."""
        said: torch.Tensor = self.last(self.memory(images[:, 0])[:, -1])
        return said


def fresh(key: Key) -> Any:
    """The network of a scheme."""
    torch.manual_seed(0)
    if key.parameters.scheme == "lim":
        return RowReader(key)
    if key.parameters.scheme == "featuremap":
        return zoo.architecture("digits").make(10)
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()),
        nn.Linear(128, 10),
    )


@dataclass(frozen=True)
class Marked:
    """A trained network, and how to read it."""

    model: Any
    key: Key
    claim: Claim
    triggers: Triggers

    def bits(self, model: Any) -> int:
        """Bits that match."""
        found = neuralmark.verify(model, self.key, claim=self.claim, triggers=self.triggers)
        return found.matched


def marked(key: Key, data: Data) -> Marked:
    """The network of a key, trained with its mark."""
    name, model = key.parameters.scheme, fresh(key)
    every = Triggers.of(data.inputs.numpy(), data.labels.numpy() if name == "deepsigns" else None)
    triggers = Triggers.draw(every, key, count=COUNTS[name])
    optimizer: torch.optim.Optimizer
    if name == "featuremap":
        optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
        strength, epochs = 20.0, 2
    else:
        rate, epochs = (3e-3, 6) if name == "lim" else (1e-3, 25)
        optimizer, strength = torch.optim.Adam(model.parameters(), rate), 1.0
    options = AttachOptions(tensors=[LAYERS[name]], triggers=triggers, strength=strength)
    mark = neuralmark.attach(model, optimizer, key, options)
    fit(model, data, optimizer, epochs)
    claim = mark.claim()
    mark.detach()
    return Marked(model, key, claim, triggers)


def survival(report: Report, each: dict[str, list[Marked]], data: Data) -> None:
    """Bits and accuracy of every scheme after every attack, of its worst key."""
    rows = []
    for label, made in each.items():
        whole = min((one.bits(one.model), accuracy(one.model, data)) for one in made)
        passed = whole[0] >= NEEDED
        report.target(f"{label}: bits", whole[0], f"{NEEDED} or more", passed=passed)
        cells = [label, f"{whole[0]} ({whole[1]:.1f})"]
        for attack in ATTACKS.values():
            done = [(one, launch(attack, one.model, data=data).model) for one in made]
            worst = min((one.bits(model), accuracy(model, data)) for one, model in done)
            cells.append(f"{worst[0]} ({worst[1]:.1f})")
        rows.append(cells)
    heads = ["scheme", "trained", *ATTACKS]
    report.table(heads, rows, "matching bits of the worst key (its accuracy in percent)")


def folded(report: Report, made: list[Marked], data: Data) -> None:
    """Lim's mark without its key, and after `fold-in`."""
    rows = []
    for number, one in enumerate(made, 1):
        before = accuracy(one.model, data)
        done = launch(FoldIn(), one.model, data=data).model
        after, bits = accuracy(done, data), one.bits(done)
        report.target(f"lim, key {number}: folded", before - after, "0", passed=before == after)
        passed = bits < NEEDED
        report.target(f"lim, key {number}: bits", bits, f"below {NEEDED}", passed=passed)
        signs, one.model.memory.signs = one.model.memory.signs, None
        without = accuracy(one.model, data)
        one.model.memory.signs = signs
        rows.append([number, f"{before:.1f}", f"{without:.1f}", f"{after:.1f}", bits])
    heads = ["key", "accuracy", "without its key", "after fold-in, without", "bits"]
    report.table(heads, rows, "lim")


def main(arguments: list[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--keys", type=int, default=3, help="of every scheme")
    options = made.parse_args(arguments)
    report = Report("schemes that read a live model", options.json)
    data = digits()
    each: dict[str, list[Marked]] = {}
    for label, (name, own) in COLUMNS.items():
        parameters = schemes.parameters(name, bits=BITS, own=own)
        numbers = range(1, options.keys + 1)
        keys = [Key(parameters, b"", salt=bytes(32), secret=bytes([n]) * 32) for n in numbers]
        each[label] = [marked(key, data) for key in keys]
    survival(report, each, data)
    folded(report, each["lim"], data)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
