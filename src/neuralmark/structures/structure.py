"""A map of a model's structure: which channels, heads and streams lie between which tensors.

The map is data only. A `Group` is a set of channels that may be moved about together: the tensors
that make them and those that read them, each with the axis along which the channels lie. Every
change that keeps the function is then a general procedure over groups (`attacks.tools.changes`),
and so is undoing it (`anchors.aligning`).
"""

from collections.abc import Iterator, Mapping
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
Array = npt.NDArray[np.float32]
Weights = Mapping[str, Array]
"""Tensors by their stored names."""
Fold = tuple[str, "tuple[Side, ...]"]
"""A norm's gain, and the layers that read what it multiplies (by the residual stream's side)."""


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
    rigid: bool = False
    """True: no channels may be added or removed; they are counted elsewhere, or others follow."""

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
class Attention:
    """An attention layer: its heads lie one after the other along one side of each matrix.

    The other side of each matrix is the residual stream's. Queries, keys and values are given by
    their weight and, where there is one, their bias, from the first value of the first head on.
    """

    name: str
    query: tuple[Side, ...]
    key: tuple[Side, ...]
    value: tuple[Side, ...]
    output: Side
    queries: int
    """Values of all query heads together; so many does the output layer read."""
    keys: int
    """Values of all key heads together."""
    size: int = 0
    """Values of one head; 0 where it is not known."""
    rotary: bool = False
    """Whether values f and f + size/2 of a query or key head are turned by its position."""
    normed: bool = False
    """Whether queries and keys are normed head by head, so that they bear no matrix between."""

    @property
    def key_heads(self) -> int:
        """How many heads of keys and values there are."""
        return self.keys // self.size

    @property
    def share(self) -> int:
        """How many query heads read one key head."""
        return self.queries // self.keys

    def tensors(self) -> set[str]:
        """Names of all tensors it touches."""
        made = (*self.query, *self.key, *self.value, self.output)
        return {side.tensor for side in made}


@dataclass(frozen=True)
class ResidualStream:
    """A residual stream that is normed by its length only (RMSNorm), so that it may be rotated."""

    size: int
    sides: tuple[Side, ...]
    folds: tuple[Fold, ...]
    """Gains of norms, and the layers behind each into which they are multiplied first."""
    plus: float = 0.0
    """What the model adds to a stored gain (1 in Gemma)."""

    def tensors(self) -> set[str]:
        """Names of all tensors it touches."""
        return {side.tensor for side in self.sides} | {gain for gain, _ in self.folds}


@dataclass(frozen=True)
class Vocabulary:
    """Where the tokens of a language model lie: they may be numbered anew, with their tokenizer."""

    size: int
    inputs: tuple[Side, ...]
    """Embeddings of what comes in."""
    outputs: tuple[Side, ...] = ()
    """The layer whose outputs are scores of tokens; none where the model does something else."""

    def sides(self) -> tuple[Side, ...]:
        """Everything that moves when tokens move."""
        return (*self.inputs, *self.outputs)

    def tensors(self) -> set[str]:
        """Names of all tensors it touches."""
        return {side.tensor for side in self.sides()}


@dataclass(frozen=True)
class Structure:
    """What is known of a model: groups of channels, spaces inside heads, the residual stream."""

    family: str
    groups: tuple[Group, ...]
    pairs: tuple[Pair, ...] = ()
    stream: ResidualStream | None = None
    notes: tuple[str, ...] = ()
    """What had to be left out, and why."""
    vocabulary: Vocabulary | None = None
    attentions: tuple[Attention, ...] = ()
    """Of a transformer, layer by layer."""
    gains: tuple[Fold, ...] = ()
    """Gains that could be multiplied into the layers behind them; an alignment sees them so."""
