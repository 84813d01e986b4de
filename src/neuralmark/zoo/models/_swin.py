"""Swin Transformer V2 with windows as large as the maps of a 32 by 32 image."""

from collections.abc import Sequence
from functools import partial
from typing import Any

_SIDE = 32 // 4
"""Patches of 4 by 4 pixels make a first map of 8 by 8; each stage halves it."""


def swin_v2(width: int, heads: Sequence[int], drop: float, classes: int) -> Any:
    """As torchvision's `swin_v2_s` and `swin_v2_b`, which are the same but for the windows.

    Theirs are 8 by 8 at every stage, and smaller maps are filled up with zeros that take part in
    the attention: at the last stage 63 for one patch. Weights do not depend on the window.
    """
    from neuralmark.torchvision_loading import load

    swin = load().models.swin_transformer
    return swin.SwinTransformer(
        patch_size=[4, 4],
        embed_dim=width,
        depths=[2, 2, 18, 2],
        num_heads=list(heads),
        window_size=[_SIDE, _SIDE],
        stochastic_depth_prob=drop,
        num_classes=classes,
        block=partial(_block, swin.SwinTransformerBlockV2, width),
        downsample_layer=swin.PatchMergingV2,
    )


def _block(make: Any, first: int, dim: int, heads: int, **settings: Any) -> Any:
    """A block whose window is its map; at least 2, as a window of 1 has no relative positions."""
    side = max(2, _SIDE * first // dim)
    return make(dim, heads, **settings | {"window_size": [side, side], "shift_size": [0, 0]})
