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

Transformers have streams and heads that may have been mixed, not only moved:

    transformers  all of it in order
    turning       how the residual stream lies: several turns are tried, the likest is polished
    streams       turns that suit rows which belong together (Procrustes, signed permutations)
    witnesses     products of layers, which judge turns whatever was done between the layers
    fingerprints  tokens and channels told apart by what these products make of them
    vocabulary    tokens that were numbered anew
    layers        one layer along a stream that is in order
    heads         which head is which, and the matrix inside each
    hidden        channels of an MLP
    quieting      directions in which a layer is far too loud, left out of both
    sides         tensors of both models, seen from a side
    axes          from channels back to tensors

Thresholds were set on ResNet-20 and small networks trained on digits, and validated on ResNet-56
and on a VGG-like chain trained on CIFAR-10.
"""

from collections.abc import Collection

from neuralmark.anchors.aligning.contract import ALIKE, UNLIKE, Aligned, Progress
from neuralmark.anchors.aligning.grouped import align_groups
from neuralmark.anchors.aligning.single import align_single, can_be
from neuralmark.anchors.aligning.transformers import align_transformer
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.effort import ALIGN_LIMIT
from neuralmark.anchors.factors import likeness
from neuralmark.anchors.moves import Move
from neuralmark.errors import AlignLimitError
from neuralmark.records.alignment import TOO_LARGE
from neuralmark.structures.structure import Array, Structure, Weights


def align(
    suspects: Weights,
    anchor: Anchor,
    names: Collection[str],
    limit: int = ALIGN_LIMIT,
    progress: Progress | None = None,
    traced: Structure | None = None,
) -> dict[str, Aligned]:
    """The moves of each of these tensors, by whichever way makes it likest to the anchor.

    `suspects` holds what was located, in the anchor's layout but possibly of other lengths;
    `traced` is the suspect's map in the anchor's names, for networks of no known family. Nothing
    here sees a key: whatever is decided by likeness to the anchor costs no trial.
    """
    wanted = [name for name in names if name in suspects and name in anchor]
    tell = progress or (lambda *_: None)
    found = align_together(suspects, anchor, wanted, limit, tell, traced)
    for number, name in enumerate(wanted):
        if name not in found or found[name].cosine < ALIKE:
            tell(f"aligning {name}", number, len(wanted))
            alone = align_apart(suspects[name], anchor[name], limit)
            if name not in found or alone.cosine > found[name].cosine:
                found[name] = alone
    tell("aligning tensors", len(wanted), len(wanted))
    return found


def align_together(
    suspects: Weights,
    anchor: Anchor,
    names: Collection[str],
    limit: int = ALIGN_LIMIT,
    progress: Progress | None = None,
    traced: Structure | None = None,
) -> dict[str, Aligned]:
    """What the structure of the network tells of these tensors; nothing where it is not known."""
    tell = progress or (lambda *_: None)
    found = align_transformer(suspects, anchor, names, limit, tell)
    structure = anchor.skeleton.structure or traced
    if found or structure is None:
        return found
    return align_groups(suspects, anchor, names, structure, limit, tell)


def align_apart(values: Array, coarse: Array, limit: int = ALIGN_LIMIT) -> Aligned:
    """One tensor by itself, without any knowledge of the network."""
    if coarse.ndim < 2 and values.shape == coarse.shape:
        return Aligned((Move.same(len(coarse)),), (), likeness(values, coarse))
    if not can_be(values.shape, coarse.shape):
        return Aligned.absent(coarse.shape, UNLIKE)
    try:
        return align_single(values, coarse, limit)
    except AlignLimitError:
        return Aligned.absent(coarse.shape, TOO_LARGE)
