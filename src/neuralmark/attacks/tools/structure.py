"""A map of a model's structure: which channels, heads and streams lie between which tensors.

The map is data only. A `Group` is a set of channels that may be moved about together: the tensors
that make them and those that read them, each with the axis along which the channels lie. Every
change that keeps the function is then a general procedure over groups (see `changes`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

ChannelKind = Literal["hidden", "stream", "heads"]
HIDDEN: Final = "hidden"
STREAM: Final = "stream"
HEADS: Final = "heads"
Activation = Literal["relu", "linear", "other"]
RELU: Final = "relu"
LINEAR: Final = "linear"
OTHER: Final = "other"
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Side:
    """Where channels lie in a tensor: channel c is the run from offset + c·block on."""

    tensor: str
    axis: int
    block: int = 1
    offset: int = 0

    def places(self, channels: Indices) -> Indices:
        """Indices along the axis of all entries of these channels."""
        runs: Indices = self.offset + channels[:, None] * self.block + np.arange(self.block)
        return runs.reshape(-1)


@dataclass(frozen=True)
class Norm:
    """A batch norm's four tensors."""

    gamma: str
    beta: str
    mean: str
    var: str
    eps: float = 1e-5
    direct: bool = True
    """Whether it follows its layer with nothing between: only then may factors pass it."""

    def sides(self) -> Iterator[Side]:
        """Its tensors, by channel."""
        for name in (self.gamma, self.beta, self.mean, self.var):
            yield Side(name, 0)


@dataclass(frozen=True)
class Producer:
    """What makes channels: a layer's weight and bias, and the batch norm behind it."""

    sides: tuple[Side, ...]
    norm: Norm | None = None

    def all_sides(self) -> Iterator[Side]:
        """Weight, bias and batch norm."""
        yield from self.sides
        if self.norm is not None:
            yield from self.norm.sides()


@dataclass(frozen=True)
class Group:
    """Channels that may be moved about together."""

    name: str
    size: int
    producers: tuple[Producer, ...]
    consumers: tuple[Side, ...] = ()
    riders: tuple[Side, ...] = ()
    """What only moves along: gains of norms, gates, queries and keys."""
    kind: ChannelKind = HIDDEN
    activation: Activation = OTHER
    """Between producers and consumers: `relu` lets positive factors pass, `linear` signs too."""
    movable: bool = True
    """False: read by something that is not in the map, so only batch norms may be played on."""

    def sides(self) -> Iterator[Side]:
        """Everything that moves when channels move."""
        for producer in self.producers:
            yield from producer.all_sides()
        yield from self.consumers
        yield from self.riders

    def tensors(self) -> set[str]:
        """Names of all tensors it touches."""
        return {side.tensor for side in self.sides()}


@dataclass(frozen=True)
class Pair:
    """A space inside an attention head, into which any invertible matrix A may be put.

    The blocks of `forward` are multiplied by A along their axis, those of `inverse` by its inverse
    transposed: values and outputs, or queries and keys.
    """

    name: str
    size: int
    forward: tuple[Side, ...]
    inverse: tuple[Side, ...]

    def tensors(self) -> set[str]:
        """Names of all tensors it touches."""
        return {side.tensor for side in (*self.forward, *self.inverse)}


@dataclass(frozen=True)
class ResidualStream:
    """A residual stream that is normed by its length only (RMSNorm), so that it may be rotated."""

    size: int
    sides: tuple[Side, ...]
    folds: tuple[tuple[str, tuple[Side, ...]], ...]
    """Gains of norms, and the layers behind each into which they are multiplied first."""

    def tensors(self) -> set[str]:
        """Names of all tensors it touches."""
        return {side.tensor for side in self.sides} | {gain for gain, _ in self.folds}


@dataclass(frozen=True)
class Structure:
    """What is known of a model: groups of channels, spaces inside heads, the residual stream."""

    family: str
    groups: tuple[Group, ...]
    pairs: tuple[Pair, ...] = ()
    stream: ResidualStream | None = None
    notes: tuple[str, ...] = ()
    """What had to be left out, and why."""
