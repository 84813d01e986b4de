"""Binding a mark to an anchor: the coarse copy of the model as it is before it is marked."""

from functools import partial
from pathlib import Path

import numpy as np

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.choosing import fitting_heads
from neuralmark.anchors.factors import likeness
from neuralmark.anchors.heads import heads_of
from neuralmark.anchors.originals import OriginalCheckpoint
from neuralmark.anchors.sealed import load_anchor, write_anchor
from neuralmark.errors import AnchorMismatchError
from neuralmark.marking.claiming import claimed_anchor
from neuralmark.marking.drafting import MarkingPlan
from neuralmark.marking.options import EmbedOptions
from neuralmark.marking.reading import Progress
from neuralmark.storage import files
from neuralmark.structures.attention import UNKNOWN

RELATED, NEAR = 0.2, 0.9
DISTANT = (
    "the model is not much like the anchor any more (likeness {:.2f}): its mark is found where it"
    " lies, but not as surely elsewhere"
)
HEADS_UNKNOWN = (
    "the number of attention heads is not known, so heads that somebody rearranges cannot be put"
    " back in order: give heads=..., or mark the folder with its config.json"
)
HEADS_MISFIT = (
    "{} attention heads, as its configuration says, do not fit the shapes of this model, so heads"
    " that somebody rearranges cannot be put back in order: give the right number, heads=..."
)


def anchored(
    planned: MarkingPlan, options: EmbedOptions, file: Path | None, progress: Progress | None
) -> tuple[MarkingPlan, tuple[str, ...]]:
    """The plan bound to its anchor, which is written to `file` if that is given; and remarks."""
    if options.anchor is False:
        return planned, ()
    if options.anchor is not True:
        return _as_before(planned, Path(options.anchor), file)
    checkpoint = planned.checkpoint
    original, told = OriginalCheckpoint(checkpoint), heads_of(checkpoint)
    heads = fitting_heads(original, options.heads, told)
    recipe = AnchorRecipe(planned.placement, heads, options.anchor_bits)
    make = partial(build, original, recipe, progress=progress)
    anchor = make() if file is None else write_anchor(file, planned.key, make)
    return planned.bound_to(claimed_anchor(anchor)), remarks(anchor, told)


def _as_before(
    planned: MarkingPlan, earlier: Path, file: Path | None
) -> tuple[MarkingPlan, tuple[str, ...]]:
    """The plan bound to the anchor of an earlier release, which is copied; and remarks."""
    anchor = load_anchor(earlier, planned.key)
    if anchor.placement != planned.placement:
        raise AnchorMismatchError(
            f"{earlier}: is the anchor of other tensors than are marked here: give tensors=[...] as"
            " they were, or mark this model with an anchor of its own"
        )
    alike = _likeness(planned, anchor)
    if alike < RELATED:
        raise AnchorMismatchError(
            f"{earlier}: is the anchor of another model (likeness {alike:.2f}): mark this one with"
            " an anchor of its own"
        )
    if file is not None:
        files.copy_file(earlier, file)
    distant = (DISTANT.format(alike),) if alike < NEAR else ()
    return planned.bound_to(claimed_anchor(anchor)), distant + remarks(anchor)


def _likeness(planned: MarkingPlan, anchor: Anchor) -> float:
    """Mean cosine of the marked tensors and their coarse copies, by their sizes."""
    original, found, weights = OriginalCheckpoint(planned.checkpoint), [], []
    for tensor, (name, shape) in zip(planned.tensors, planned.placement, strict=True):
        values = np.concatenate([p.astype(np.float32) for p in original.pieces(tensor.info.name)])
        found.append(likeness(values.reshape(shape), anchor[name]))
        weights.append(values.size)
    return float(np.average(found, weights=weights))


def remarks(anchor: Anchor, heads: int = 0) -> tuple[str, ...]:
    """What the owner should know of an anchor, given the heads that the model tells of."""
    structure = anchor.skeleton.structure
    notes = () if structure is None else structure.notes
    if UNKNOWN not in notes:
        return ()
    return (HEADS_MISFIT.format(heads) if heads else HEADS_UNKNOWN,)
