"""Schemes that read a live model: what a layer gives out for triggers that were committed to.

Such a scheme's suspect is a module and its triggers, not a file. The layer's outputs are arranged
as (each, groups, width): `each` triggers share the mean of a group, and a group has `width`
features. That is the placement of the mark, ((layer, (each, groups, width)),), and from there on
the features are read as weights are: their means are pooled, and projected to bits.

The bits are hashed last, from the secret and all that shapes the read-out: parameters, layer, sizes
and the digest of the triggers. On a fixed model the signs are settled before the bits are drawn.
"""

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from neuralmark.core import readout
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import (
    MAX_ENTRIES,
    Mark,
    Parameters,
    Placement,
    Terms,
    bell_matrix,
    check_secret,
    hashed_bits,
)
from neuralmark.core.readout import Array, Known, namespace
from neuralmark.core.triggers import Labels
from neuralmark.errors import (
    LiveModelError,
    ParameterError,
    TriggerMismatchError,
    UnsuitableTensorError,
)
from neuralmark.schemes.contract import ACTIVATIONS, Reads, Scheme, total_size


class TriggerScheme(Scheme):
    """Base of the schemes that read the activations of a live model at its triggers.

    Attributes:
        reads: Activations.
        linear: No: a radius is certified for weights only.
        writes: No: activations are computed.
        plain: No: autograd goes through the model.
        pooled: No: a group may have one trigger.
        whole: Yes: the loss looks at every trigger's features.
        labelled: Whether triggers are grouped by their labels, and so must have some.
        usual_count: How many triggers to take where nobody says: of each class, or in all.

    Examples:
        >>> scheme = neuralmark.schemes.get("deepsigns")
        >>> isinstance(scheme, neuralmark.schemes.TriggerScheme), scheme.reads
        (True, 'activations')
    """

    reads: ClassVar[Reads] = ACTIVATIONS
    linear: ClassVar[bool] = False
    writes: ClassVar[bool] = False
    plain: ClassVar[bool] = False
    pooled: ClassVar[bool] = False
    whole: ClassVar[bool] = True
    labelled: ClassVar[bool]
    usual_count: ClassVar[int]

    @abstractmethod
    def grouping(self, labels: Labels) -> npt.NDArray[np.int64]:
        """Which triggers share a mean.

        Args:
            labels: The label of each trigger.

        Returns:
            Places of triggers: a column for each group, as many rows as a group has triggers.

        Raises:
            TriggerMismatchError: The scheme needs labels, or as many triggers of each class.

        Examples:
            >>> neuralmark.schemes.get("deepsigns").grouping(np.array([1, 0, 0, 1])).tolist()
            [[1, 0], [2, 3]]
        """

    def features(self, parameters: Parameters, activations: Array) -> Array:
        """What is read of a layer's outputs.

        Args:
            parameters: What the key has.
            activations: The layer's outputs, one for each trigger.

        Returns:
            A row of features for each trigger.

        Raises:
            TriggerMismatchError: The outputs do not have what is read.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepsigns")
            >>> scheme.features(scheme.parameters(), np.ones((5, 16, 2, 2))).shape
            (5, 64)
        """
        return activations.reshape(len(activations), -1)

    def derive(self, secret: bytes, terms: Terms) -> Mark:
        """The projection from the secret and the terms, the bits hashed last.

        Args:
            secret: The 32 bytes of the key.
            terms: What the mark is bound to; the digest of the triggers among it.

        Returns:
            The projection (features x bits, the same for every group) and the watermark.

        Raises:
            LiveModelError: No triggers are given.
            ParameterError: The bits cannot be shared out evenly among the groups.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepsigns")
            >>> terms = Terms(scheme.parameters(bits=32), (("fc", (8, 2, 64)),), triggers=bytes(64))
            >>> scheme.derive(bytes(32), terms).matrix.shape
            (64, 32)
        """
        check_secret(secret)
        if not terms.triggers:
            raise LiveModelError(live_needed(self.name))
        _, groups, width = self.sizes(terms.placement)
        bits = terms.parameters.bits
        if bits % groups:
            raise ParameterError(
                f"{bits} bits cannot be shared out evenly among {groups} groups of triggers: make a"
                f" key with a multiple of {groups}, or other triggers"
            )
        if width * bits > MAX_ENTRIES:
            raise UnsuitableTensorError(
                f"{terms.placement[0][0]!r} would need a secret of {width:,} x {bits} numbers,"
                f" above the cap of {MAX_ENTRIES:,}: choose a smaller layer"
            )
        domain = f"neuralmark/{self.name}".encode()
        projection = bell_matrix(
            terms.transcript(domain + b"/matrix/1", secret), width, bits // groups
        )
        drawn = hashed_bits(terms.transcript(domain + b"/bits/1", secret), bits)
        return Mark(terms.parameters, np.tile(projection, (1, groups)), drawn)

    def carriers(self, mark: Mark, placement: Placement) -> Carriers:
        """All features; those of the triggers of a group share pools.

        Args:
            mark: A key at one placement.
            placement: The layer, and how its outputs are arranged.

        Returns:
            The positions of the features, all of them.

        Raises:
            TriggerMismatchError: The key is made for another number of features.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepsigns")
            >>> placement = (("fc", (8, 2, 64)),)
            >>> terms = Terms(scheme.parameters(bits=32), placement, triggers=bytes(64))
            >>> found = scheme.carriers(scheme.derive(bytes(32), terms), placement)
            >>> found.total, found.pools
            (1024, 128)
        """
        _, groups, width = self.sizes(placement)
        bits = mark.parameters.bits
        if len(mark.matrix) == width and mark.matrix.shape[1] != bits:
            raise TriggerMismatchError(
                f"this key's matrix has {mark.matrix.shape[1]:,} columns, and {bits} are read, one"
                f" for each bit of all {groups} groups of triggers: repeat a matrix that all groups"
                f" share (numpy.tile(matrix, {groups}))"
            )
        if mark.matrix.shape != (width, bits):
            raise TriggerMismatchError(
                f"this key is made for {len(mark.matrix):,} features, and {placement[0][0]!r} gives"
                f" {width:,}: name the layer that it was made for"
            )
        return Carriers.everything(total_size(placement), groups * width)

    def room(self, parameters: Parameters, placement: Placement) -> float:
        """No tensor of a file has room.

        Args:
            parameters: What a key has.
            placement: Tensors, in order.

        Returns:
            0: weights are not what is read.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepsigns")
            >>> scheme.room(scheme.parameters(), (("fc.weight", (64, 64)),))
            0.0
        """
        return 0.0

    def logits(self, known: Known, pooled: Array) -> Array:
        """Every group's mean features, under the projection of its bits.

        Args:
            known: The mark, as arrays.
            pooled: The mean features, group after group.

        Returns:
            One number per bit, group after group.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepsigns")
            >>> terms = Terms(scheme.parameters(bits=32), (("fc", (8, 2, 64)),), triggers=bytes(64))
            >>> scheme.logits(Known.of(scheme.derive(bytes(32), terms)), np.ones(128)).shape
            (32,)
        """
        width, bits = known.matrix.shape
        groups = len(pooled) // width
        apart = known.matrix.reshape(width, groups, bits // groups)
        means = pooled.reshape(groups, width)
        return namespace(pooled).einsum("gw,wgn->gn", means, apart).reshape(-1)

    def sizes(self, placement: Placement) -> tuple[int, int, int]:
        """How the outputs of the one layer are arranged.

        Args:
            placement: The layer, and how its outputs are arranged.

        Returns:
            Triggers of a group, groups, and features.

        Raises:
            LiveModelError: The placement is one of tensors.

        Examples:
            >>> neuralmark.schemes.get("deepsigns").sizes((("fc", (8, 2, 64)),))
            (8, 2, 64)
        """
        if len(placement) != 1 or len(placement[0][1]) != 3:
            raise LiveModelError(live_needed(self.name))
        each, groups, width = placement[0][1]
        return each, groups, width

    def summed(self, known: Known, pooled: Array) -> Array:
        """The cross-entropies of all bits, added up as both schemes publish it.

        Args:
            known: The mark, as arrays.
            pooled: The mean features, group after group.

        Returns:
            One number.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepsigns")
            >>> terms = Terms(scheme.parameters(bits=32), (("fc", (8, 2, 64)),), triggers=bytes(64))
            >>> known = Known.of(scheme.derive(bytes(32), terms))
            >>> round(float(scheme.summed(known, np.zeros(128))), 2)
            22.18
        """
        z = self.logits(known, pooled)
        return readout.loss(z, known.bits) * len(known.bits)


def live_needed(name: str) -> str:
    """What to say where a scheme that reads activations is given weights."""
    return (
        f"{name} reads what a live model makes of its triggers, and weights alone do not tell:"
        " give the live module in the place of the file, and triggers=..."
    )
