"""Order, signs, scales and rotations of channels, heads and streams, by likeness to the anchor.

    contract   what is found for one tensor (Aligned)
    contents   what channels look like, without order, signs and factors
    assigning  which channel is which, from how alike they are
    puzzle     tensors and the channels they share
    fitting    tensors put in order together: bundles of channels, in turn
    single     one tensor, no knowledge of the network
    grouped    tensors of a network whose structure is known
    joining    channels that were split into parts
    vectors    biases and batch norms, which follow the rows of their layer
    finishing  from orders to moves, and words for what was done

Thresholds were set on ResNet-20 and small networks trained on digits, and validated on ResNet-56
and on a VGG-like chain trained on CIFAR-10.
"""

from collections.abc import Callable, Collection

from neuralmark.anchors.aligning.contract import TOO_LARGE, UNLIKE, Aligned
from neuralmark.anchors.aligning.grouped import align_groups
from neuralmark.anchors.aligning.single import align_single, can_be
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.factors import likeness
from neuralmark.anchors.moves import Move
from neuralmark.errors import AlignLimitError
from neuralmark.structures.structure import Array, Weights

DEFAULT_LIMIT = 1 << 28
"""Channels of the anchor times channels of the suspect that are compared along one axis."""

_ALIKE = 0.9
"""A tensor that is so alike is not looked at again without the others."""


Way = Callable[[Weights, Anchor, Collection[str], int], dict[str, Aligned]]
"""A way to put tensors in order that know of each other; nothing for those it does not know."""

WAYS: tuple[Way, ...] = (align_groups,)
"""Tried one after the other, as long as tensors are left that are not alike."""


def align(
    suspects: Weights, anchor: Anchor, names: Collection[str], limit: int = DEFAULT_LIMIT
) -> dict[str, Aligned]:
    """The moves of each of these tensors, by whichever way makes it likest to the anchor.

    `suspects` holds what was located, in the anchor's layout but possibly of other lengths. Nothing
    here sees a key: whatever is decided by likeness to the anchor costs no trial.
    """
    found: dict[str, Aligned] = {}
    left = [name for name in names if name in suspects and name in anchor]
    for way in (*WAYS, _one_by_one):
        for name, aligned in way(suspects, anchor, left, limit).items():
            if name not in found or aligned.cosine > found[name].cosine:
                found[name] = aligned
        left = [name for name in left if name not in found or found[name].cosine < _ALIKE]
    return found


def _one_by_one(
    suspects: Weights, anchor: Anchor, names: Collection[str], limit: int
) -> dict[str, Aligned]:
    return {name: _alone(suspects[name], anchor[name], limit) for name in names}


def _alone(values: Array, coarse: Array, limit: int) -> Aligned:
    if coarse.ndim < 2 and values.shape == coarse.shape:
        return Aligned((Move.same(len(coarse)),), (), likeness(values, coarse))
    if not can_be(values.shape, coarse.shape):
        return Aligned.absent(coarse.shape, UNLIKE)
    try:
        return align_single(values, coarse, limit)
    except AlignLimitError:
        return Aligned.absent(coarse.shape, TOO_LARGE)
