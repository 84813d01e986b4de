"""Factors of rows and columns, regressed on the anchor and divided out."""

import numpy as np
import pytest

from neuralmark.anchors.factors import rescaled


@pytest.mark.parametrize("axis", [0, 1])
def test_signs_alone_are_noticed_and_undone(axis: int) -> None:
    rng = np.random.default_rng(0)
    anchor = rng.standard_normal((48, 40)).astype(np.float32)
    suspect = anchor + np.float32(0.1) * rng.standard_normal(anchor.shape).astype(np.float32)
    signs = rng.choice([-1, 1], anchor.shape[axis]).astype(np.float32)
    turned = suspect * np.expand_dims(signs, 1 - axis)
    found, noticed = rescaled(turned, anchor)
    assert noticed == ("flipped",)
    assert np.linalg.norm(found - suspect) < 0.1 * np.linalg.norm(suspect)
    assert rescaled(suspect, anchor)[1] == ()
