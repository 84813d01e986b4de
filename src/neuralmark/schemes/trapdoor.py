"""Trapdoor normalisation (Liu, Liu, Liu and others 2023): the bits are a hash of the passport.

A reconstruction: the paper's text could not be read, and two programs of others agree on the core
only. γ is the global *maximum* of conv(W, p), so it is not linear in the weights; an MLP with
biases (half of the channels, ReLU) follows it in the private branch, which has its own statistics.
The bits are hashed from the passport: whoever bends it towards a pattern of signs throws the bits
anew. That is the idea of the hashed filter, published before it. The published hash is cut from
SHA-512 for each layer, so that bits repeat in wide layers; here one SHAKE-256 gives all bits.
"""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from neuralmark.core.key import Parameters, Placement, Terms, watermark
from neuralmark.core.passports import LayerShape
from neuralmark.core.readout import Array, namespace
from neuralmark.errors import TooFewCarriersError
from neuralmark.schemes._passports import PassportScheme
from neuralmark.schemes.contract import Arrays, Facts


class Trapdoor(PassportScheme):
    """Signs of the largest answer to a passport, against the passport's hash (reconstructed)."""

    facts: ClassVar[Facts] = Facts(
        origin="Liu et al. 2023",
        bit="the largest answer of an output channel to a passport",
        needs="the weights; for the accuracy under passports a live model",
        survives="half pruned by size, noise, fine-tuning; half pruned at random with 512 bits"
        " only; 90 % pruned, the layer's main direction taken out (deflate) or second"
        " marks destroy it: all places of a 0 must answer with a minus; rearranged"
        " channels lose it: a trained mark has no anchor",
        costs="training only; one output channel for each bit; a private branch doubles a training",
        proves="one trial for each passport tried, if the hash covers all of them; with a derived"
        " key the exact bound; no certified radius; accuracy proves nothing",
        reconstruction=True,
    )
    theory: ClassVar[str] = (
        "the bits are the hash of the passports, so every passport that is tried is a fresh draw"
        " of fair coins; the private MLP takes no part in the match"
    )
    linear: ClassVar[bool] = False
    writes: ClassVar[bool] = False
    hidden: ClassVar[int] = 2
    biases: ClassVar[bool] = True

    def _layers(self, parameters: Parameters, placement: Placement) -> list[LayerShape]:
        """Layers wide enough that every place of a passport can be answered with a minus."""
        shapes = super()._layers(parameters, placement)
        for shape in shapes:
            places, weights = shape.side**2, shape.size // shape.rows
            if places >= 2 * weights:
                raise TooFewCarriersError(
                    f"a row of {shape.name!r} has {weights} weights, too few to answer all {places}"
                    " places of a passport with a minus, as a 0 takes: make a key with a smaller"
                    " side, or name a wider layer"
                )
        return shapes

    def pooled_over(self, weights: Array, windows: Array) -> Array:
        """The spatial maximum."""
        return namespace(weights).amax(weights @ windows, 1)

    def _bits_of(self, arrays: Arrays, terms: Terms) -> npt.NDArray[np.uint8]:
        return watermark(arrays["matrix"].astype(np.float32), terms.content)
