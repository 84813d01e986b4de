"""Binding a mark to an anchor: the coarse copy of the model as it is before it is marked."""

from functools import partial
from pathlib import Path

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.heads import heads_of
from neuralmark.anchors.originals import OriginalCheckpoint
from neuralmark.anchors.sealed import write_anchor
from neuralmark.checkpoints import root_of
from neuralmark.marking.claiming import claimed_anchor
from neuralmark.marking.drafting import MarkingPlan
from neuralmark.marking.options import EmbedOptions
from neuralmark.marking.reading import Progress

HEADS_UNKNOWN = (
    "the number of attention heads is not known, so heads that somebody rearranges cannot be put"
    " back in order: give heads=..., or mark the folder with its config.json"
)


def anchored(
    planned: MarkingPlan, options: EmbedOptions, file: Path | None, progress: Progress | None
) -> tuple[MarkingPlan, tuple[str, ...]]:
    """The plan bound to its anchor, which is written to `file` if that is given; and remarks."""
    if not options.anchor:
        return planned, ()
    checkpoint = planned.checkpoint
    heads = options.heads or heads_of(root_of(checkpoint.path))
    recipe = AnchorRecipe(planned.placement, heads, options.anchor_bits)
    make = partial(build, OriginalCheckpoint(checkpoint), recipe, progress=progress)
    anchor = make() if file is None else write_anchor(file, planned.key, make)
    return planned.bound_to(claimed_anchor(anchor)), _remarks(anchor)


def _remarks(anchor: Anchor) -> tuple[str, ...]:
    structure = anchor.skeleton.structure
    notes = () if structure is None else structure.notes
    return (HEADS_UNKNOWN,) if any(note.startswith("heads left alone") for note in notes) else ()
