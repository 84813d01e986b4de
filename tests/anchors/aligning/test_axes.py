"""Runs of channels are one move of their axis, however many there are."""

import numpy as np
import pytest

from neuralmark.anchors.aligning.axes import aligned
from neuralmark.anchors.aligning.layers import AxisRun, StreamView
from neuralmark.anchors.aligning.sides import BothModels
from neuralmark.anchors.moves import Move
from neuralmark.structures import structure_from_shapes
from tests.support.rebuilt import anchor_of

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.anchored import arrays
from tests.support.architectures import gpt2

FUSED = "transformer.h.0.attn.c_attn.weight"


def test_a_run_of_a_fused_tensor_may_be_turned_and_the_others_stay() -> None:
    weights = arrays(gpt2())
    structure = structure_from_shapes({n: v.shape for n, v in weights.items()}, 4)
    layer = structure.attentions[0]
    side = next(side for side in layer.key if side.tensor == FUSED)
    order = np.random.default_rng(0).permutation(layer.keys)
    signs = np.where(order % 2, -1, 1).astype(np.float32)
    suspect = {n: v.copy() for n, v in weights.items()}
    keys = slice(side.offset, side.offset + layer.keys)
    suspect[FUSED][:, keys] = (weights[FUSED][:, keys] * signs)[:, order]
    both = BothModels(suspect, anchor_of(weights), structure)
    move = Move(np.argsort(order), signs)
    run = AxisRun(side, layer.keys, move, frozenset({"permuted"}))
    view = StreamView(Move.same(both.stream.size), {}, 1.0)
    found = aligned(both, FUSED, [run], view)
    assert found is not None
    assert found.changes == ("permuted",)
    assert found.cosine > 0.98
    np.testing.assert_array_equal(found.moves[1].of(suspect[FUSED], 1), weights[FUSED])
