"""Small networks trained on real digits, their anchors, and the same networks rebuilt."""

import hashlib
from functools import cache
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from neuralmark.anchors.anchor import PARTNER, Anchor, AnchorEntry, Skeleton
from neuralmark.attacks.tools import changes
from neuralmark.structures import structure_from_shapes
from neuralmark.structures.structure import HIDDEN, Array, Group, Indices, Structure, Weights

Kept = dict[str, Indices]
"""Of each group, the channels that are left."""

EVERYTHING = ("flip", "rescale", "permute", "dummy")


class Chain(nn.Module):
    """Convolutions with batch norms, and a classifier that reads a flattened map."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(24, 40, 3, padding=1), nn.BatchNorm2d(40), nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.classifier = nn.Sequential(nn.Linear(160, 48), nn.ReLU(), nn.Linear(48, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A residual block, with a projection where the width changes."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.downsample = nn.Sequential()
        if inner != outer:
            self.downsample.append(nn.Conv2d(inner, outer, 1, bias=False))
            self.downsample.append(nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(out + self.downsample(x))


class Residual(nn.Module):
    """Two stages whose streams can be moved about."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(Block(16, 16), Block(16, 16))
        self.layer2 = nn.Sequential(Block(16, 32))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 2)
        return self.fc(self.layer2(self.layer1(out)).mean((2, 3)))  # type: ignore[no-any-return]


KINDS: dict[str, type[nn.Module]] = {"chain": Chain, "residual": Residual}


@cache
def trained(kind: str, seed: int = 0) -> Weights:
    """The weights of a network after two passes over the digits; the same object every time."""
    pixels, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(pixels.reshape(-1, 1, 8, 8) / 16).float()
    y = torch.from_numpy(labels).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = KINDS[kind]()
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        for some in torch.randperm(len(x)).repeat(2).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(net(x[some]), y[some]).backward()
            optimizer.step()
    state = net.state_dict().items()
    return MappingProxyType({n: v.numpy() for n, v in state if v.is_floating_point()})


def coarse(values: Array) -> Array:
    """Fifteen levels a row; vectors in half precision."""
    if values.ndim < 2:
        return values.astype(np.float16).astype(np.float32)
    rows = values.reshape(len(values), -1)
    step = np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-12) / 7
    return np.asarray(np.rint(rows / step) * step, np.float32).reshape(values.shape)


def anchor_of(weights: Weights, *, structured: bool = True) -> Anchor:
    """An anchor that holds every tensor; without a structure where it is to be unknown."""
    held = {name: coarse(value) for name, value in weights.items()}
    entries = tuple(
        AnchorEntry(n, v.shape) if v.ndim > 1 else AnchorEntry(n, v.shape, PARTNER)
        for n, v in held.items()
    )
    shapes = tuple((n, v.shape) for n, v in held.items()) if structured else ()
    digest = hashlib.sha512(b"".join(v.tobytes() for v in held.values())).digest()

    def decode(entry: AnchorEntry, rows: Indices | None) -> Array:
        return held[entry.name] if rows is None else held[entry.name][rows]

    return Anchor(entries, Skeleton(shapes), digest, decode)


def matrices(weights: Weights) -> list[str]:
    """Names of the tensors with two axes or more."""
    return [name for name, value in weights.items() if value.ndim > 1]


def map_of(weights: Weights) -> Structure:
    return structure_from_shapes({name: value.shape for name, value in weights.items()})


def rebuilt(
    weights: Weights, ways: tuple[str, ...] = EVERYTHING, seed: int = 0
) -> dict[str, Array]:
    """The same function with other weights, by what the attack laboratory does."""
    rng = np.random.default_rng(seed)
    table = dict(weights)
    for group in map_of(weights).groups:
        _play(table, group, ways, rng)
    if "dummy" in ways:
        for group in map_of(weights).groups:
            if group.movable and group.kind == HIDDEN:
                changes.add_dummies(table, group, rng, 3)
    return table


def _play(
    table: dict[str, Array], group: Group, ways: tuple[str, ...], rng: np.random.Generator
) -> None:
    if "flip" in ways:
        changes.flip(table, group, rng, 1.0)
    if "rescale" in ways:
        changes.rescale_norms(table, group, rng, 1.0)
        if changes.scalable(group):
            changes.rescale(table, group, rng, 1.0)
    if "permute" in ways and group.movable:
        changes.permute(table, group, changes.pick(rng, group.size, 1.0))


def split(weights: Weights, seed: int = 0) -> dict[str, Array]:
    """Every hidden channel twice, what reads it divided between the two at random."""
    rng = np.random.default_rng(seed)
    table = dict(weights)
    for group in map_of(weights).groups:
        if group.movable and group.kind == HIDDEN:
            _split_group(table, group, rng)
    return table


def _split_group(table: dict[str, Array], group: Group, rng: np.random.Generator) -> None:
    twice = np.tile(np.arange(group.size), 2)
    for side in group.sides():
        values = np.take(table[side.tensor], side.places(twice), axis=side.axis)
        if side in group.consumers:
            turned = np.moveaxis(values, side.axis, 0).copy()
            half = len(turned) // 2
            part = rng.standard_normal(turned[:half].shape) * turned.std()
            turned[half:] = turned[:half] - part
            turned[:half] = part
            values = np.moveaxis(turned, 0, side.axis)
        table[side.tensor] = np.ascontiguousarray(values, np.float32)


def without(weights: Weights, share: float, seed: int = 0) -> tuple[dict[str, Array], Kept]:
    """The network without a share of its hidden channels, and which are left of each group."""
    rng = np.random.default_rng(seed)
    table, kept = dict(weights), {}
    for group in map_of(weights).groups:
        if not (group.movable and group.kind == HIDDEN):
            continue
        left = np.sort(rng.permutation(group.size)[round(share * group.size) :])
        kept[group.name] = left
        for side in group.sides():
            table[side.tensor] = np.take(table[side.tensor], side.places(left), axis=side.axis)
    return table, kept


def noisy(weights: Weights, size: float, seed: int = 0) -> dict[str, Array]:
    """With Gaussian noise of this share of each tensor's deviation."""
    rng = np.random.default_rng(seed)

    def one(values: Array) -> Array:
        if values.ndim < 2:
            return values
        noise: npt.NDArray[np.float64] = rng.standard_normal(values.shape)
        return np.asarray(values + size * values.std() * noise, np.float32)

    return {name: one(values) for name, values in weights.items()}
