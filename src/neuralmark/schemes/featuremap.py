"""The feature-map mark (Li, Abady, Wang and Barni 2021): bits in every single trigger.

For each trigger image, a corner of a convolution's output (the first `channels` channels, `side`
rows and columns, channel after channel) under a Gaussian projection gives n bits. The triggers go
through the model by themselves at every step, so the task never sees them: the published loss is
masked on them. Its weight of 0.00025 is for a sum over bits and triggers.

A claimant who chooses projection, bits and triggers has no bound. Here the projection follows from
the secret, and the bits are hashed last, over the digest of the triggers too.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from neuralmark.core.key import Parameters
from neuralmark.core.readout import Array, Known
from neuralmark.core.triggers import Labels
from neuralmark.errors import ParameterError, TriggerMismatchError
from neuralmark.schemes._triggered import TriggerScheme
from neuralmark.schemes.contract import Facts

PUBLISHED_WEIGHT = 0.00025
_MOST = 1 << 16


class FeatureMap(TriggerScheme):
    """Bits in a corner of a feature map, for each trigger apart."""

    facts: ClassVar[Facts] = Facts(
        origin="Li, Abady, Wang and Barni 2021",
        bit="a projection of a corner of a convolution's output, for each trigger apart",
        needs="a live model, and the triggers",
        survives="fine-tuning; half pruned by size at the edge; a tenth at random or rearranged"
        " channels destroy it: an anchor is of weights",
        costs="training only; the triggers go through the model at every step",
        proves="nothing as published: matrix, bits and triggers are free; with a derived key and"
        " committed triggers the exact bound over the bits of all triggers; no certified radius",
    )
    theory: ClassVar[str] = (
        "none as published: matrix, bits and triggers may be chosen freely, and a matrix that fits"
        " is found in closed form for any model; a key that derives the matrix and hashes the bits"
        " last, over the digest of the triggers too, matches a foreign model like fair coins"
    )
    settings: ClassVar[Mapping[str, Any]] = {"channels": 64, "side": 4}
    labelled: ClassVar[bool] = False
    usual_count: ClassVar[int] = 15

    def check(self, parameters: Parameters) -> None:
        """Whole numbers."""
        super().check(parameters)
        for name in self.settings:
            value = parameters.setting(name)
            if type(value) is not int or not 1 <= value <= _MOST:
                raise ParameterError(f"{name} must be a whole number from 1, not {value!r}")

    def grouping(self, labels: Labels) -> npt.NDArray[np.int64]:
        """Each trigger by itself."""
        return np.arange(len(labels), dtype=np.int64)[None]

    def features(self, parameters: Parameters, activations: Array) -> Array:
        """The corner of the feature map, channel after channel."""
        channels, side = parameters.setting("channels"), parameters.setting("side")
        shape = tuple(activations.shape[1:])
        if len(shape) != 3 or shape[0] < channels or min(shape[1:]) < side:
            raise TriggerMismatchError(
                f"the layer gives {shape}, and {self.name} reads {channels} channels of {side} x"
                f" {side}: name a convolution, or make a key with smaller settings (channels, side)"
            )
        return activations[:, :channels, :side, :side].reshape(len(activations), -1)

    def loss(self, known: Known, pooled: Array, step: int = 0) -> Array:
        """The cross-entropies of all bits of all triggers."""
        return PUBLISHED_WEIGHT * self.summed(known, pooled.reshape(-1))
