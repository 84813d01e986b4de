"""How fused tensors are cut, put to the test: profiles of their parts may not tell.

Where both the channels and the inputs of a fused tensor were moved, one layer is put in order as it
was cut; where it does not become like the anchor, in all other ways, and all layers are cut in
whichever makes it likest. Chosen by likeness: it costs no trial.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from neuralmark.anchors.aligning import align_together
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.locating import Located, LocatedWeights
from neuralmark.anchors.locating.cuts import Cut, Fusion, FusionKind, fusions_of
from neuralmark.anchors.locating.suspect import SuspectWeights
from neuralmark.anchors.locating.views import Shapes, Taken, View
from neuralmark.anchors.refinding import BETTER, WEAK

MOST_CUTS = 5
"""Other ways of cutting that are tried, at most: each takes an alignment."""


@dataclass(frozen=True, eq=False)
class CutLayer:
    """Tensors of a layer that were cut out of one."""

    fusion: Fusion
    whole: View
    length: int
    cut: Cut

    @classmethod
    def of(
        cls, fusion: Fusion, located: Mapping[str, Located], shapes: Shapes
    ) -> "CutLayer | None":
        """As they were located; None where that was not so."""
        views = tuple(located[name].view for name in fusion.names if name in located)
        whole = views[0].of if views and isinstance(views[0], Taken) else None
        if whole is None or len(views) < len(fusion.names):
            return None
        length = whole.shape(shapes)[fusion.kind.axis]
        cuts = (c for c in fusion.kind.cuts() if fusion.kind.parts(whole, length, c) == views)
        cut = next(cuts, None)
        return None if cut is None else cls(fusion, whole, length, cut)

    def located(self, cut: Cut, before: Mapping[str, Located]) -> dict[str, Located]:
        """Its tensors, cut in another way."""
        parts = self.fusion.kind.parts(self.whole, self.length, cut)
        return {
            name: replace(before[name], view=part, cosine=0.0, direct=False)
            for name, part in zip(self.fusion.names, parts, strict=False)
        }


def recut(
    suspect: SuspectWeights,
    anchor: Anchor,
    located: Mapping[str, Located],
    needy: Collection[str],
    limit: int,
) -> dict[str, Located]:
    """Tensors of layers that are better cut in another way; `needy` are to be put in order."""
    found: dict[str, Located] = {}
    for layers in _layers(suspect.shapes, anchor, located, needy).values():
        one = layers[len(layers) // 2]
        best = _likest(suspect, anchor, {**located, **found}, one, limit)
        if best != one.cut:
            for layer in layers:
                found |= layer.located(best, located)
    return found


def _likest(
    suspect: SuspectWeights, anchor: Anchor, located: dict[str, Located], one: CutLayer, limit: int
) -> Cut:
    """The way in which a layer becomes most like the anchor's; as it is, if that will do."""

    def likeness(cut: Cut) -> float:
        views = LocatedWeights(suspect, located | one.located(cut, located))
        aligned = align_together(views, anchor, one.fusion.names, limit)
        return sum(each.cosine for each in aligned.values()) / len(one.fusion.names)

    before = likeness(one.cut)
    if before >= WEAK:
        return one.cut
    others = [c for c in one.fusion.kind.cuts() if c != one.cut and one.located(c, located)]
    seen = {cut: likeness(cut) for cut in others[:MOST_CUTS]}
    best = max(seen, key=lambda cut: seen[cut], default=one.cut)
    return best if seen.get(best, 0.0) > before + BETTER else one.cut


def _layers(
    shapes: Shapes, anchor: Anchor, located: Mapping[str, Located], needy: Collection[str]
) -> dict[FusionKind, list[CutLayer]]:
    """What was cut and is to be put in order, by kind."""
    structure = anchor.skeleton.structure
    found: dict[FusionKind, list[CutLayer]] = defaultdict(list)
    for fusion in fusions_of(structure, dict(anchor.skeleton.shapes)) if structure else ():
        layer = CutLayer.of(fusion, located, shapes)
        if layer is not None and not set(needy).isdisjoint(fusion.names):
            found[fusion.kind].append(layer)
    return found
