"""Reading with an anchor: sound, and the same weights however they are joined."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from neuralmark import EmbedOptions, Key, Verdict, VerifyOptions, embed, verify
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.originals import OriginalArrays
from neuralmark.anchors.restoring import Restoration, restore
from neuralmark.core import readout
from neuralmark.core.carriers import Listed
from neuralmark.errors import RecordError
from neuralmark.marking.anchored import _Pools, read_restored, restored_weights
from neuralmark.marking.reading import require_carriers
from tests.support.models import QUICK, gaussian_model

SHAPES = {"one.weight": (96, 80), "two.weight": (64, 96), "three.weight": (40, 64)}
PLACEMENT = tuple(SHAPES.items())


def model(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s).astype(np.float32) * 0.05 for n, s in SHAPES.items()}


def restored(suspect: dict[str, np.ndarray], original: dict[str, np.ndarray]) -> Restoration:
    anchor = build(OriginalArrays(original), AnchorRecipe(PLACEMENT))
    return restore(TableWeights(suspect), anchor)


@pytest.mark.parametrize("size", [1.0, 0.001])
@pytest.mark.parametrize("piece", [1 << 20, 1000])
@pytest.mark.parametrize("lost", [(), ("two.weight",)])
def test_pools_are_those_of_the_weights_as_read(
    lost: tuple[str, ...], piece: int, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuralmark.marking.anchored._PIECE", piece)
    original = {name: value * np.float32(size) for name, value in model(0).items()}
    suspect = {n: v + np.float32(0.001 * size) for n, v in original.items() if n not in lost}
    restoration = restored(suspect, original)
    mark = Key.new(QUICK).at(PLACEMENT, b"a" * 64)
    carriers = require_carriers(mark, PLACEMENT)
    reading = read_restored(restoration, carriers)
    flat = restored_weights(restoration)
    chosen = flat[carriers.positions(0, carriers.size)]
    np.testing.assert_allclose(
        reading.pooled, readout.pool(chosen, carriers.pools), atol=1e-9 * size
    )
    inner = chosen.reshape(-1, carriers.pools)
    spread = np.sqrt(((inner - inner.mean(0)) ** 2).sum() / (carriers.size - carriers.pools))
    assert reading.within == pytest.approx(spread, rel=1e-5)
    assert reading.norm == pytest.approx(float(np.linalg.norm(flat)), rel=1e-3)


def test_what_was_not_touched_is_read_as_it_is() -> None:
    original = model(0)
    suspect = {n: v * np.float32(1.001) for n, v in original.items()}
    restoration = restored(suspect, original)
    flat = restored_weights(restoration)
    whole = np.concatenate([suspect[n].reshape(-1) for n in SHAPES])
    assert np.abs(flat - whole).max() < 0.01 * whole.std()
    record = restoration.record()
    assert record.found == 1
    assert record.likeness > 0.98


def test_nothing_alike_is_nothing_found() -> None:
    restoration = restored(model(1), model(0))
    anchor = build(OriginalArrays(model(0)), AnchorRecipe(PLACEMENT))
    flat = restored_weights(restoration)
    record = restoration.record()
    base = np.concatenate([anchor[n].reshape(-1) for n in SHAPES])
    unfound = [fate.name for fate in record.tensors if fate.found == 0]
    at = 0
    for name, shape in SHAPES.items():
        size = int(np.prod(shape))
        if name in unfound:
            np.testing.assert_array_equal(flat[at : at + size], base[at : at + size])
        at += size


def test_what_is_trusted_counts_by_its_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and squares of two tensors in pieces, against a plain computation."""
    monkeypatch.setattr("neuralmark.marking.anchored._PIECE", 7)
    rng, carriers = np.random.default_rng(5), Listed.at(np.arange(1, 57, 2), 60, 4)
    fills = [rng.standard_normal(size).astype(np.float32) for size in ((4, 6), (6, 6))]
    kept = [3 * rng.standard_normal((4, 6)).astype(np.float32), None]
    pools = _Pools(carriers)
    for fill, above, start in zip(fills, kept, (0, 24), strict=True):
        pools.add(above, fill, start)
    reading = pools.joined((0.5, 9.0))
    below = np.concatenate([_flat(fill) for fill in fills])
    over = np.concatenate([_flat(above) for above in kept])
    chosen = (below + 0.5 * over)[carriers.positions(0, carriers.size)].reshape(-1, 4)
    np.testing.assert_allclose(reading.pooled, chosen.mean(axis=0), rtol=1e-5)
    spread = np.square(chosen - chosen.mean(axis=0)).sum() / (chosen.size - 4)
    assert reading.within == pytest.approx(np.sqrt(spread))
    assert reading.norm == pytest.approx(np.sqrt(below @ below + 0.25 * over @ over))


def _flat(above: np.ndarray | None) -> np.ndarray:
    return np.zeros(36) if above is None else above.reshape(-1).astype(np.float64)


@pytest.mark.parametrize("renamed", [False, True])
def test_nan_is_unreadable_under_whatever_name(tmp_path: Path, renamed: bool) -> None:
    key = Key.new(QUICK)
    made = embed(gaussian_model(tmp_path / "model.safetensors"), key, tmp_path / "m.safetensors")
    broken = {}
    for name, value in load_file(tmp_path / "m.safetensors").items():
        value[..., 0] = np.nan
        broken[f"{name}x" if renamed else name] = value
    save_file(broken, tmp_path / "broken.safetensors")
    options = VerifyOptions(anchor=tmp_path / "m.safetensors.anchor")
    verdict = verify(tmp_path / "broken.safetensors", key, claim=made.claim, options=options)
    assert verdict.status == "unreadable"
    assert "NaN or infinity" in verdict.reason


def test_every_verdict_has_a_lineage(tmp_path: Path) -> None:
    """In place, renamed, rearranged, of a live module and of a stranger."""
    key = Key.new(QUICK)
    model = gaussian_model(tmp_path / "model.safetensors")
    made = embed(model, key, tmp_path / "m.safetensors")
    assert made.claim is not None
    weights = load_file(tmp_path / "m.safetensors")
    in_place = verify(tmp_path / "m.safetensors", key)
    assert in_place.alignment is None
    live = verify({n: torch.from_numpy(v) for n, v in weights.items()}, key, claim=made.claim)
    save_file({f"x.{n}": v for n, v in weights.items()}, tmp_path / "prefixed.safetensors")
    save_file({n[::-1]: v for n, v in weights.items()}, tmp_path / "renamed.safetensors")
    others = [
        verify(tmp_path / f"{name}.safetensors", key, claim=made.claim)
        for name in ("prefixed", "renamed")
    ]
    assert others[1].alignment is not None
    for verdict in (in_place, live, *others):
        assert verdict.verified
        assert verdict.lineage is not None
        assert verdict.lineage > 0.9
        assert Verdict.from_dict(verdict.to_dict()) == verdict
        assert "lineage" not in verdict.public_dict()
        assert "score 0.9" in verdict._repr_html_()
    stranger = gaussian_model(tmp_path / "stranger.safetensors", seed=77)
    verdict = verify(stranger, key, claim=made.claim)
    assert verdict.lineage is not None
    assert verdict.lineage < 0.05
    assert "no sign of a relation" in verdict._repr_html_()
    unanchored = embed(model, key, tmp_path / "bare.safetensors", EmbedOptions(anchor=False))
    plain = verify(tmp_path / "bare.safetensors", key, claim=unanchored.claim)
    assert plain.lineage is None
    assert "lineage" not in plain.to_dict()
    for wrong in (-0.1, 1.5, "much"):
        with pytest.raises(RecordError):
            Verdict.from_dict(in_place.to_dict() | {"lineage": wrong})
