"""DeepSigns (Darvish Rouhani, Chen and Koushanfar 2019), its white-box part.

The mean activation of a layer over the triggers of a class, under a Gaussian projection A: bit j is
the sign of A_j · mean. Two forms of the loss are known and differ. The `released` code learns a
centre for each class along, pulls activations to it, keeps centres apart and at length 1, and puts
the bits into the centres. The `paper` takes the means of the classes themselves, draws activations
to them, and puts the bits into them. (Its mixture of Gaussians is stood in for by the classes, and
its distance to unmarked centres is left out: triggers are of marked classes only.)

A claimant who chooses A, the bits and the triggers has no bound. Here A follows from the secret,
and the bits are hashed last, over the digest of the triggers too.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from neuralmark.core.key import Mark, Parameters, Terms
from neuralmark.core.readout import Array, Known, namespace
from neuralmark.core.triggers import Labels, by_class
from neuralmark.errors import ParameterError
from neuralmark.schemes._triggered import TriggerScheme
from neuralmark.schemes.contract import Facts

RELEASED, PAPER = FORMS = ("released", "paper")
PUBLISHED_WEIGHT = 0.01
"""Of both parts of the loss: the activations' and the bits'."""


class DeepSigns(TriggerScheme):
    """Bits in the mean activations of classes."""

    facts: ClassVar[Facts] = Facts(
        origin="Darvish Rouhani, Chen and Koushanfar 2019, its white-box part",
        bit="a projection of a layer's mean activation over the triggers of a class",
        needs="a live model, and the triggers",
        survives="half pruned by size; a tenth pruned at random and fine-tuning in the form of"
        " the paper only; 90 % pruned or rearranged channels destroy it: an anchor is of"
        " weights",
        costs="training only; the triggers go through the model at every step",
        proves="nothing as published: matrix, bits and triggers are free; with a derived key and"
        " committed triggers the exact bound; no certified radius",
    )
    theory: ClassVar[str] = (
        "none as published: matrix, bits and triggers may be chosen freely, and a matrix that fits"
        " is found in closed form for any model; a key that derives the matrix and hashes the bits"
        " last, over the digest of the triggers too, matches a foreign model like fair coins"
    )
    settings: ClassVar[Mapping[str, Any]] = {"form": RELEASED}
    learnt: ClassVar[Mapping[str, float]] = {"centres": 0.01}
    labelled: ClassVar[bool] = True
    usual_count: ClassVar[int] = 16

    def check(self, parameters: Parameters) -> None:
        """A form that there is."""
        super().check(parameters)
        if parameters.setting("form") not in FORMS:
            raise ParameterError(
                f"form must be {' or '.join(FORMS)}, not {parameters.setting('form')!r}"
            )

    def grouping(self, labels: Labels) -> npt.NDArray[np.int64]:
        """Triggers of one class share a mean."""
        return by_class(labels)

    def derive(self, secret: bytes, terms: Terms) -> Mark:
        """The projection and the bits; and where the centres begin, in [0, 1]."""
        mark = super().derive(secret, terms)
        _, groups, width = self.sizes(terms.placement)
        seed = terms.transcript(b"neuralmark/deepsigns/centres/1", secret)
        words = np.frombuffer(hashlib.shake_256(seed).digest(2 * groups * width), "<u2")
        centres = (words.reshape(groups, width) / 65536).astype(np.float32)
        return Mark(mark.parameters, mark.matrix, mark.bits, {"centres": centres})

    def loss(self, known: Known, pooled: Array, step: int = 0) -> Array:
        """In the form that the key names; `pooled` has a row for each trigger of a class."""
        each = pooled.reshape(len(pooled), -1, len(known.matrix))
        if known.settings["form"] == PAPER:
            means = pooled.mean(0)
            gathered = ((pooled - means) ** 2).sum()
            return PUBLISHED_WEIGHT * (gathered + self.summed(known, means))
        centres = known.extra["centres"]
        pulled = 0.5 * ((each - centres) ** 2).sum()
        shaped = _apart(centres) + abs(1.0 - (centres**2).sum(1)).sum()
        bits = self.summed(known, centres.reshape(-1))
        return PUBLISHED_WEIGHT * (pulled + shaped + bits)


def _apart(centres: Array) -> Array:
    """The mean of ⟨μ, ν⟩·D - D over the centres μ, ν the nearest other one, D = ‖μ - ν‖²."""
    if len(centres) == 1:
        return 0.0
    products = centres @ centres.T
    squares = (centres**2).sum(1)
    distances = squares[:, None] + squares[None, :] - 2.0 * products
    own = namespace(centres).eye(len(centres))
    if hasattr(own, "to"):
        own = own.to(centres)
    nearest = (distances + own * 1e30).argmin(1)
    rows = list(range(len(centres)))
    distance = distances[rows, nearest]
    return (products[rows, nearest] * distance - distance).mean()
