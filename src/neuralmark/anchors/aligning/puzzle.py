"""Tensors and the channels they share, as pieces of one puzzle.

A `PuzzlePiece` is a tensor of the anchor and what the suspect has for it; a `Bundle` is a set of
channels that move together wherever they occur: rows of what makes them, columns of what reads
them. A single tensor is one piece with two bundles.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from neuralmark.anchors.aligning import contents
from neuralmark.anchors.moves import Mask
from neuralmark.structures.structure import Indices

Floats = npt.NDArray[np.floating]

GUESS = 0.3
"""Trust in an order that is a guess."""


@dataclass(frozen=True, eq=False)
class PuzzlePiece:
    """One tensor of both models, balanced: rows x columns x positions."""

    name: str
    anchor: Floats
    suspect: Floats
    bundles: tuple[int, int]
    """Which channels its rows and its columns are."""

    @cached_property
    def basis(self) -> Floats:
        """In which kernels are seen without their signs."""
        return contents.main_positions(self.anchor)


@dataclass(frozen=True)
class Bundle:
    """Channels that move together: how many there are, and in which pieces (piece, axis)."""

    anchor: int
    suspect: int
    sides: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Order:
    """Where each channel of the anchor lies in the suspect."""

    index: Indices
    alike: Floats
    sure: Mask
    """Whether the two are each other's best."""
    trust: float
    luck: float = 0.0
    """How alike the best of strangers are."""

    @classmethod
    def same(cls, size: int) -> "Order":
        """Everything where it is."""
        return cls(np.arange(size), np.ones(size), np.ones(size, bool), GUESS)


Orders = Mapping[int, Order]
Signs = tuple[Floats, Floats]
"""Of the rows and of the columns of one piece."""


@dataclass(frozen=True)
class Puzzle:
    """All pieces and bundles."""

    pieces: tuple[PuzzlePiece, ...]
    bundles: tuple[Bundle, ...]


@dataclass(frozen=True, eq=False)
class Fit:
    """Everything in order."""

    orders: dict[int, Order]
    signs: tuple[Signs, ...]
    score: float
    """Mean cosine over all weights of the anchor, balanced."""
