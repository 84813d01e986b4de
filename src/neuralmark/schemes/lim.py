"""Lim, Chan, Ng, Fan and Yang 2022: a signature in the memory of an LSTM. A minimal form.

Published for image captions, here for any network with one recurrent layer. Two things are secret.
A key of ±1 multiplies the hidden state before every step (`neuralmark.KeyedMemory`), so that the
network is useless without it; and the signs of the hidden state are trained to a signature, one bit
for each unit. The state is read at one step, over all triggers.

Neither holds: the key folds into the recurrent weights, and a unit's sign can be turned at no cost
(the attack `fold-in` does both, and the network computes the same). It is here for that.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from neuralmark.core.key import Mark, Parameters, Terms, check_secret, hashed_bits
from neuralmark.core.readout import Array, Known
from neuralmark.core.triggers import Labels
from neuralmark.errors import LiveModelError, ParameterError, TriggerMismatchError
from neuralmark.schemes._triggered import TriggerScheme, live_needed
from neuralmark.schemes.contract import Facts

MARGIN = 0.1
WEIGHT = 0.1
"""Of what each unit lacks of the margin, published as α."""


class Lim(TriggerScheme):
    """Signs of an LSTM's hidden state."""

    facts: ClassVar[Facts] = Facts(
        origin="Lim et al. 2022, for one LSTM",
        bit="a unit of an LSTM's hidden state, at one step, over all triggers",
        needs="a live model, and the triggers",
        survives="pruning, fine-tuning; signs of units are turned at no cost, and that destroys it",
        costs="training only; a key of ±1 at every step, which anybody folds away",
        proves="nothing as published: key, signature and triggers are free; with a derived"
        " signature and committed triggers the exact bound; no certified radius",
    )
    theory: ClassVar[str] = (
        "none as published: any signature that a model shows may be called one's own; a signature"
        " that is hashed last, over the digest of the triggers too, matches a foreign model like"
        " fair coins"
    )
    settings: ClassVar[Mapping[str, Any]] = {"step": 0}  # -1 is the last
    labelled: ClassVar[bool] = False
    usual_count: ClassVar[int] = 32

    def grouping(self, labels: Labels) -> npt.NDArray[np.int64]:
        """All triggers together."""
        return np.arange(len(labels), dtype=np.int64)[:, None]

    def features(self, parameters: Parameters, activations: Array) -> Array:
        """The hidden state at one step, of outputs arranged as (triggers, steps, units)."""
        step, shape = parameters.setting("step"), tuple(activations.shape[1:])
        if len(shape) != 2 or not -shape[0] <= step < shape[0]:
            raise TriggerMismatchError(
                f"the layer gives {shape}, and {self.name} reads step {step} of (steps, units):"
                " name a neuralmark.KeyedMemory, or make a key with another step"
            )
        return activations[:, step]

    def derive(self, secret: bytes, terms: Terms) -> Mark:
        """No projection: a bit for each unit, hashed last."""
        check_secret(secret)
        if not terms.triggers:
            raise LiveModelError(live_needed(self.name))
        _, _, width = self.sizes(terms.placement)
        bits = terms.parameters.bits
        if bits != width:
            raise ParameterError(
                f"{self.name} has a bit for each unit: {terms.placement[0][0]!r} has {width} units,"
                f" and the key {bits} bits; make one with that many"
            )
        drawn = hashed_bits(terms.transcript(b"neuralmark/lim/bits/1", secret), bits)
        return Mark(terms.parameters, np.eye(width, dtype=np.float32), drawn)

    def loss(self, known: Known, pooled: Array, step: int = 0) -> Array:
        """0.1 times what the units lack of 0.1 on their side, the mean over the triggers."""
        short = (MARGIN - pooled * known.signs).clip(min=0)
        return WEIGHT * short.sum() / len(pooled)
