"""Anchors of small networks, and what was found of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.locating import Located, locate
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.originals import OriginalArrays
from neuralmark.attacks.convert import WAYS
from neuralmark.attacks.tools.converting import Conversion

Table = dict[str, Any]


def arrays(model: Any) -> Table:
    """The floating-point tensors of a live module."""
    state = model.state_dict().items()
    return {name: v.detach().numpy().copy() for name, v in state if v.is_floating_point()}


def anchor_of(weights: Mapping[str, Any], heads: int = 0) -> Anchor:
    """The anchor of a model of which every matrix and kernel is marked."""
    marked = tuple((name, value.shape) for name, value in weights.items() if value.ndim > 1)
    return build(OriginalArrays(weights), AnchorRecipe(marked, heads))


def converted(weights: Mapping[str, Any], *hows: str, heads: int = 0) -> Table:
    """A model after some conversions."""
    made = dict(weights)
    for how in hows:
        target = frozenset(name for name, value in made.items() if value.ndim > 1)
        made = {str(name): way for name, way in WAYS.items()}[how](
            Conversion(made, target, np.random.default_rng(0), heads)
        )
    return made


def found_in(suspect: Mapping[str, Any], anchor: Anchor) -> dict[str, Located]:
    """Where the marked tensors of an anchor are in a suspect."""
    found = locate(TableWeights(suspect), anchor)
    return {name: found[name] for name, _ in anchor.placement if name in found}
