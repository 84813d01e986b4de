"""Putting a transformer back in order: stream, heads, hidden channels, tokens (pure).

The structure of the anchor's model says which tensors share what. The residual stream comes first,
with the norms' gains folded into what reads behind them on both sides; then every layer by itself;
then the stream once more, with everything that touches it. At last the gains are taken out again,
with the anchor's, so that the result lies in the anchor's coordinates.
"""

from collections.abc import Collection
from dataclasses import replace

from neuralmark.anchors.aligning.axes import aligned
from neuralmark.anchors.aligning.contract import Aligned, Progress
from neuralmark.anchors.aligning.layers import AxisRun, align_layer, layers_of
from neuralmark.anchors.aligning.sides import BothModels
from neuralmark.anchors.aligning.turning import StreamSearch, stream_width
from neuralmark.anchors.aligning.vocabulary import token_runs
from neuralmark.anchors.anchor import Anchor
from neuralmark.structures.structure import Weights

WEAK = 0.6
"""A layer that is less like the anchor's is looked at without what is far too loud in it."""
BETTER = 0.1
"""By so much must it be liker then."""


def align_transformer(
    suspects: Weights,
    anchor: Anchor,
    names: Collection[str],
    limit: int,
    progress: Progress | None = None,
) -> dict[str, Aligned]:
    """Moves for the tensors of a transformer; empty when the anchor's model is none."""
    structure = anchor.skeleton.structure
    if structure is None or not structure.attentions:
        return {}
    both = BothModels(suspects, anchor, structure)
    if not 0 < both.stream.size * stream_width(both) <= limit:
        return {}
    both = replace(both, left_out=_of_other_widths(both))
    wanted = [name for name in names if both.has(name)]
    tell = progress or (lambda *_: None)
    tell("aligning the residual stream", 0, len(wanted))
    search = StreamSearch(both, limit)
    view = search.view()
    runs: dict[str, list[AxisRun]] = {name: [] for name in wanted}
    for layer in layers_of(both):
        if layer.tensors() & runs.keys():
            tell(f"aligning {layer.name}", sum(map(bool, runs.values())), len(wanted))
            known = search.runs.get(layer.name)
            found = align_layer(both, layer, view, limit) if known is None else known
            if any(run.likeness < WEAK for run in found):
                found = _liker(found, align_layer(both, layer, view, limit, quiet=True))
            for run in found:
                if run.side.tensor in runs:
                    runs[run.side.tensor].append(run)
    for run in token_runs(both, view, runs, limit):
        runs[run.side.tensor].append(run)
    made = {name: aligned(both, name, runs[name], view) for name in wanted}
    return {name: one for name, one in made.items() if one is not None}


def _liker(one: list[AxisRun], other: list[AxisRun]) -> list[AxisRun]:
    """The one of two findings of a layer that is more like the anchor's; the second clearly so."""
    pairs = zip(one, other, strict=False)
    better = any(second.likeness > first.likeness + BETTER for first, second in pairs)
    return other if better else one


def _of_other_widths(both: BothModels) -> frozenset[str]:
    """Tensors that were taken for parts of the stream and are not as wide as the others."""
    width = stream_width(both)
    return frozenset(
        side.tensor
        for side in both.stream.sides()
        if both.shares(side.tensor) and both.shape(side.tensor)[side.axis] != width
    )
