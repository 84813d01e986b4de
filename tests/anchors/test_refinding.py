"""Layers that were rearranged and cut in two are found again."""

from typing import Any

import numpy as np
import pytest

from neuralmark.anchors import refinding
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.effort import AlignOptions
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.originals import OriginalArrays
from neuralmark.anchors.refinding import _fits
from neuralmark.anchors.restoring import restore
from neuralmark.records.alignment import TensorFate
from neuralmark.structures.structure import Array


def factored() -> tuple[dict[str, Array], Anchor]:
    """Three layers, each rearranged and cut in two; and the anchor of the whole ones."""
    rng = np.random.default_rng(0)
    names = [f"layer{i}.weight" for i in range(3)]
    original = {n: rng.standard_normal((24, 24, 3, 3)).astype(np.float32) for n in names}
    suspect: dict[str, Array] = {}
    for name, value in original.items():
        moved = value[rng.permutation(24)][:, rng.permutation(24)]
        mix = np.linalg.qr(rng.standard_normal((24, 24)))[0].astype(np.float32)
        suspect[name.replace("weight", "0.weight")] = np.einsum("ro,oikl->rikl", mix, moved)
        suspect[name.replace("weight", "1.weight")] = mix.T[:, :, None, None].copy()
    placement = tuple((n, original[n].shape) for n in names)
    anchor = build(OriginalArrays(original), AnchorRecipe(placement))
    return suspect, anchor


def fates(options: AlignOptions) -> tuple[TensorFate, ...]:
    suspect, anchor = factored()
    restoration = restore(TableWeights(suspect), anchor, options)
    for _ in restoration.tensors():
        pass
    return restoration.record().tensors


def test_a_rearranged_and_factored_layer_is_found() -> None:
    for fate in fates(AlignOptions()):
        assert fate.restored > 0.95
        assert "factored into two" in fate.changes
        assert " × " in fate.source


def test_beyond_the_limit_it_is_not() -> None:
    for fate in fates(AlignOptions(limit=100)):
        assert fate.found == 0
        assert "factored into two" not in fate.changes


def test_only_what_can_be_multiplied_is_tried() -> None:
    assert _fits((8, 4, 1, 1), (4, 6, 3, 3), (8, 6, 3, 3))
    assert _fits((8, 4), (4, 6), (8, 6))
    assert not _fits((8, 4, 3, 3), (4, 6, 3, 3), (8, 6, 5, 5))  # both read neighbours
    assert not _fits((8, 4), (5, 6), (8, 6))
    assert not _fits((80, 4), (4, 6), (8, 6))
    assert not _fits((8, 4), (4, 6, 1, 1), (8, 6))


def test_without_a_tensor_to_spare_nothing_was_cut_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    shapes = {f"layer{i}.weight": (32, 32) for i in range(4)}
    original = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    anchor = build(OriginalArrays(original), AnchorRecipe(tuple(shapes.items())))
    tried: list[str] = []

    def noted(*given: Any) -> float:
        tried.append(given[3])
        return 0.0

    monkeypatch.setattr(refinding, "_cosine", noted)
    stranger = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    restore(TableWeights(stranger), anchor)
    assert not tried
    restore(TableWeights(stranger | {"more": stranger["layer0.weight"]}), anchor)
    assert tried
