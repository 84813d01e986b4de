"""Networks of no known family, rebuilt with the same function: read as files and as live modules.

    python -m benchmarks.traced --data DIR [--epochs 2] [--secrets 2] [--json]

Three networks whose names say nothing to us (a residual one with depthwise layers and gates, one
whose layers read all that went before, and one with norms ahead of its layers) are trained on
10,000 images of CIFAR-10 in DIR, marked, and rebuilt by `restructure` (every channel moved, factors
and signs where they pass), undamaged and with noise before. The suspect is verified as a
file, where every tensor is aligned by itself, and as a live module, whose symmetries torch.fx
traces. Must be reached: 250 of 256 bits undamaged in both ways; with noise of 0.3 deviations 250
as a live module.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import neuralmark
from benchmarks._cifar import load
from benchmarks._common import Report, parser, scratch
from neuralmark.attacks import Data
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.attacks.restructure import Restructure

NOISES = (0.0, 0.3, 0.5)


class Inverted(nn.Module):
    """Up, depthwise, gated, down, and added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 2 * width
        self.a, self.b = nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.c = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.d, self.e = nn.BatchNorm2d(wide), nn.Conv2d(wide, 32, 1)
        self.f = nn.Conv2d(32, wide, 1)
        self.g, self.h = nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """What it computes."""
        inner = torch.relu(self.b(self.a(x)))
        inner = torch.relu(self.d(self.c(inner)))
        gate = self.f(torch.relu(self.e(inner.mean((2, 3), keepdim=True))))
        total: Tensor = x + self.h(self.g(inner * torch.sigmoid(gate)))
        return total


class Gates(nn.Module):
    """A residual network of such blocks."""

    def __init__(self, width: int = 128, blocks: int = 4) -> None:
        super().__init__()
        self.p, self.q = nn.Conv2d(3, width, 4, stride=4), nn.BatchNorm2d(width)
        self.r = nn.Sequential(*(Inverted(width) for _ in range(blocks)))
        self.s = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """What it computes."""
        scores: Tensor = self.s(self.r(torch.relu(self.q(self.p(x)))).mean((2, 3)))
        return scores


class Joined(nn.Module):
    """Each layer reads what all before it made."""

    def __init__(self, growth: int = 64, layers: int = 5) -> None:
        super().__init__()
        self.p = nn.Conv2d(3, growth, 4, stride=4)
        widths = [growth * (number + 1) for number in range(layers)]
        self.q = nn.ModuleList(nn.BatchNorm2d(width) for width in widths)
        self.r = nn.ModuleList(nn.Conv2d(width, growth, 3, padding=1) for width in widths)
        self.s = nn.Linear(growth * (layers + 1), 10)

    def forward(self, x: Tensor) -> Tensor:
        """What it computes."""
        found = self.p(x)
        for norm, layer in zip(self.q, self.r, strict=True):
            found = torch.cat([found, layer(torch.relu(norm(found)))], 1)
        scores: Tensor = self.s(torch.relu(found).mean((2, 3)))
        return scores


class Ahead(nn.Module):
    """Residual, with norms before the layers."""

    def __init__(self, width: int = 96, blocks: int = 4) -> None:
        super().__init__()
        self.p = nn.Conv2d(3, width, 4, stride=4)
        self.q = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(blocks))
        self.r = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(blocks))
        self.t = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(blocks))
        self.s = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """What it computes."""
        x = self.p(x)
        for norm, one, two in zip(self.q, self.r, self.t, strict=True):
            x = x + two(torch.relu(one(torch.relu(norm(x)))))
        scores: Tensor = self.s(torch.relu(x).mean((2, 3)))
        return scores


NETWORKS = {"depthwise and gates": Gates, "densely joined": Joined, "norms ahead": Ahead}


def train(model: nn.Module, data: Data, epochs: int) -> nn.Module:
    """By Adam."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    images, labels = data.inputs, data.labels
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    return model.eval()


def accuracy(model: nn.Module, data: Data) -> float:
    """On the test images."""
    with torch.no_grad():
        scores = torch.cat([model.eval()(part) for part in data.test_inputs.split(500)])
    return float((scores.argmax(1) == data.test_labels).float().mean())


def marked(model: nn.Module, folder: Path, number: int) -> tuple[Any, Any, Any]:
    """The weights with a mark in them, its key, and how it is verified."""
    plain, out = folder / f"plain{number}.safetensors", folder / f"marked{number}.safetensors"
    save_file(model.state_dict(), plain)
    key = neuralmark.Key.new(content=f"network {number}")
    made = neuralmark.embed(plain, key, out, overwrite=True)
    return load_file(out), key, (made.claim_file, made.anchor_file)


def suspect(make: Any, state: Any, noise: float, seed: int) -> nn.Module:
    """Noise, then everything rebuilt."""
    model: nn.Module = make()
    model.load_state_dict(state)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim > 1:
                value += noise * value.std() * torch.randn(value.shape, generator=rng)
    options = LaunchOptions(seed=seed)
    rebuilt: Any = launch(Restructure("all", 8), model.eval(), options=options).model
    found: nn.Module = rebuilt.eval()
    return found


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10")
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--secrets", type=int, default=2)
    given = options.parse_args(arguments)
    torch.set_num_threads(1)
    data = load(given.data, "cifar10", 10_000, 2_000)
    report = Report("networks of no known family", given.json)
    lowest = {(noise, live): 256 for noise in NOISES for live in (False, True)}
    rows = []
    with scratch() as folder:
        for name, make in NETWORKS.items():
            torch.manual_seed(0)
            clean = train(make(), data, given.epochs)
            for number in range(given.secrets):
                state, key, (claim, anchor) = marked(clean, folder, number)
                for noise in NOISES:
                    model = suspect(make, state, noise, number)
                    file = folder / "suspect.safetensors"
                    save_file(model.state_dict(), file)
                    bits = []
                    for live in (False, True):
                        verdict = neuralmark.verify(
                            model if live else file,
                            key,
                            claim=neuralmark.Claim.load(claim),
                            options=neuralmark.VerifyOptions(anchor=anchor),
                        )
                        bits += [reading.matched or 0 for reading in verdict.readings]
                        least = min(lowest[noise, live], bits[-1])
                        lowest[noise, live] = least
                    row = [f"{accuracy(clean, data):.3f}", f"{accuracy(model, data):.3f}"]
                    rows.append([name, number, f"{noise:g}", *row, bits[0], bits[1], bits[-1]])
    head = ["network", "secret", "noise", "accuracy", "then", "in place", "file", "live"]
    report.table(head, rows)
    for live in (False, True):
        least, what = lowest[0.0, live], "live" if live else "file"
        report.target(f"undamaged, {what}: bits", least, "at least 250", passed=least >= 250)
    least = lowest[0.3, True]
    report.target("noise of 0.3, live: bits", least, "at least 250", passed=least >= 250)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
