"""What is marked in a live model, how, and how far it has got: plain records."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from neuralmark.core.carriers import Carriers
from neuralmark.core.key import PUBLISHED_ROUNDS, STREAM, Mark, Placement
from neuralmark.keys.key import Key
from neuralmark.marking.options import EmbedOptions, Mode
from neuralmark.marking.reading import require_carriers
from neuralmark.records import ClaimedAnchor
from neuralmark.training.live import LiveModel, sources_of
from neuralmark.training.sources import WeightSource


@dataclass(frozen=True)
class Settings:
    """How the mark is kept during training."""

    mode: Mode = "gradient"
    strength: float = 1.0
    every: int = 1


@dataclass(frozen=True)
class SealWish:
    """How a training is to be sealed."""

    options: EmbedOptions | None = None
    overwrite: bool = False
    writes: bool | None = None
    """Whether this process writes the files; None: the first of all does."""


@dataclass(frozen=True)
class Site:
    """What is marked: a key at a placement in a live model."""

    model: LiveModel
    key: Key
    placement: Placement
    mark: Mark
    carriers: Carriers
    sources: Sequence[WeightSource]
    owners: Sequence[tuple[torch.nn.Module, str, torch.Tensor]] = ()
    """Modules and names of the marked parameters, to see when one is replaced."""
    anchor: ClaimedAnchor | None = None
    """The anchor that the mark is bound to; marks that are trained in have none."""

    triggers: bytes = b""
    """Digest of the triggers, where activations are read."""

    @property
    def anchor_digest(self) -> bytes:
        """What the derivation takes: the digest of the anchor, or nothing."""
        return b"" if self.anchor is None else self.anchor.bytes

    def bound_to(self, anchor: ClaimedAnchor) -> "Site":
        """The same tensors with the mark that the key makes with this anchor."""
        mark = self.key.at(self.placement, anchor.bytes)
        carriers = require_carriers(mark, self.placement)
        by_name = {tensor.name: tensor for tensor in self.model.tensors()}
        sources = sources_of([by_name[n] for n, _ in self.placement], self.model, carriers)
        return replace(self, mark=mark, carriers=carriers, sources=sources, anchor=anchor)

    @property
    def sharpness(self) -> float:
        """What the loss multiplies the logits of a stream mark by: 1 at the paper's four rounds.

        With each round less, twice as many weights share a pool, and the logits of unmarked weights
        lie √2 times closer to zero. The factor makes up for that: a strength means the same margin
        in σz, the same speed and the same change of the weights for every number of rounds.
        """
        parameters = self.mark.parameters
        if parameters.filter != STREAM or not parameters.pools:
            return 1.0
        return math.sqrt(2.0 ** max(PUBLISHED_ROUNDS - parameters.rounds, 0))


@dataclass(frozen=True)
class State:
    """How far the mark is."""

    rate: float
    loss: float
    margin: float
    """The smallest margin, in units of the spread of unmarked logits (σz)."""
