"""What is marked in a live model, how, and how far it is: plain records."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Mark, Placement
from neuralmark.keyfile import Key
from neuralmark.training.live import LiveModel
from neuralmark.training.sources import Source

MODES = ("gradient", "projection", "loss")


@dataclass(frozen=True)
class Settings:
    """How the mark is kept during training."""

    mode: str = "gradient"
    strength: float = 1.0
    every: int = 1


@dataclass(frozen=True)
class Site:
    """What is marked: a key at a placement in a live model."""

    model: LiveModel
    key: Key
    placement: Placement
    mark: Mark
    carriers: Carriers
    sources: Sequence[Source]
    owners: Sequence[tuple[torch.nn.Module, str, torch.Tensor]] = ()
    """Modules and names of the marked parameters, to see when one is replaced."""


@dataclass(frozen=True)
class State:
    """How far the mark is."""

    rate: float
    loss: float
    margin: float
    """The smallest margin, in units of what unmarked logits scatter by (σz)."""
