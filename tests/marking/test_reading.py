"""One streaming pass gives what a plain computation over whole tensors gives."""

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from neuralmark.checkpoints import open_checkpoint
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Float, Mark, Parameters, Terms, derive
from neuralmark.errors import NonFiniteError, TooFewCarriersError
from neuralmark.marking.placement import catalogue, placement_of
from neuralmark.marking.reading import Attempt, Reading, digest_of, read_marked, require_carriers
from neuralmark.records import Gap

POOLS = 37
SHAPES = {"a": (700, 800), "b": (40, 30, 3), "c": (50, 60)}
"""The first is read in several pieces."""


def stored(path: Path, dtype: torch.dtype) -> dict[str, Float]:
    """Write tensors to a file; give their values."""
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: (torch.randn(shape, generator=generator) + 0.5).to(dtype)
        for name, shape in SHAPES.items()
    }
    save_file(tensors, path)
    return {name: tensor.double().numpy() for name, tensor in tensors.items()}


def attempt_at(path: Path, names: str, *, transposed: bool = False, rows: bool = False) -> Attempt:
    tensors = {tensor.name: tensor for tensor in catalogue(open_checkpoint(path))}
    chosen = tuple(tensors[name] for name in names)
    placement = placement_of(chosen)
    if transposed:
        placement = tuple((name, shape[::-1]) for name, shape in placement)
    return Attempt(placement, chosen, "names", transposed, rows)


def levelled(values: Float) -> Float:
    flat = values.reshape(len(values), -1)
    sizes: Float = np.sqrt(np.square(flat).mean(axis=1, keepdims=True))
    return flat / sizes


def agrees(reading: Reading, values: Float, carriers: Carriers) -> None:
    """Against sums over everything at once."""
    chosen = values[carriers.positions()].reshape(-1, POOLS)
    pooled = chosen.mean(axis=0)
    np.testing.assert_allclose(reading.pooled, pooled, rtol=1e-5, atol=1e-6)
    around = np.square(chosen - pooled).sum() / (chosen.size - POOLS)
    assert reading.within == pytest.approx(math.sqrt(around), rel=1e-5)
    assert reading.norm == pytest.approx(np.linalg.norm(values), rel=1e-5)
    assert reading.sigma_z == pytest.approx(
        math.sqrt(around * POOLS / (chosen.size // POOLS)), rel=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_tensors_are_read_end_to_end(tmp_path: Path, dtype: torch.dtype) -> None:
    values = stored(tmp_path / "m.safetensors", dtype)
    attempt = attempt_at(tmp_path / "m.safetensors", "abc")
    total = sum(array.size for array in values.values())
    carriers = Carriers.everything(total, POOLS)
    steps: list[tuple[str, int, int]] = []
    checkpoint = open_checkpoint(tmp_path / "m.safetensors")
    reading = read_marked(checkpoint, attempt, carriers, lambda *step: steps.append(step))
    agrees(reading, np.concatenate([values[name].reshape(-1) for name in "abc"]), carriers)
    size = total * dtype.itemsize
    assert steps[-1] == ("reading", size, size)
    assert [done for _, done, _ in steps] == sorted({done for _, done, _ in steps})
    assert len(steps) == sum(
        -(-array.size * dtype.itemsize // (2 << 20)) for array in values.values()
    )


@pytest.mark.parametrize("size", [1e25, 1e-6])
def test_squares_that_float32_cannot_hold_are_summed_all_the_same(
    tmp_path: Path, size: float
) -> None:
    path = tmp_path / "m.safetensors"
    values = {name: torch.randn(shape) * size for name, shape in SHAPES.items()}
    save_file(values, path)
    flat = np.concatenate([values[name].double().numpy().reshape(-1) for name in "abc"])
    carriers = Carriers.everything(len(flat), POOLS)
    reading = read_marked(open_checkpoint(path), attempt_at(path, "abc"), carriers)
    assert reading.norm == pytest.approx(float(np.linalg.norm(flat)), rel=1e-5)
    chosen = flat[carriers.positions()].reshape(-1, POOLS)
    around = np.square(chosen - chosen.mean(axis=0)).sum() / (chosen.size - POOLS)
    assert reading.within == pytest.approx(math.sqrt(around), rel=1e-5)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e200])
def test_what_has_no_sum_of_squares_is_named(tmp_path: Path, wrong: float) -> None:
    path = tmp_path / "m.safetensors"
    broken = torch.ones(50, 60, dtype=torch.float64)
    broken[3, 4] = wrong
    save_file({"a": torch.ones(700, 800, dtype=torch.float64), "c": broken}, path)
    attempt = attempt_at(path, "ac")
    carriers = Carriers.everything(sum(t.info.size for t in attempt.read_tensors()), POOLS)
    with pytest.raises(NonFiniteError, match="'c'"):
        read_marked(open_checkpoint(path), attempt, carriers)


def test_some_weights_carry(tmp_path: Path) -> None:
    values = stored(tmp_path / "m.safetensors", torch.float32)
    attempt = attempt_at(tmp_path / "m.safetensors", "ca")
    mark = derive(bytes(32), Terms(Parameters(8, POOLS, 2), attempt.placement))
    carriers = require_carriers(mark, attempt.placement)
    reading = read_marked(open_checkpoint(tmp_path / "m.safetensors"), attempt, carriers)
    agrees(reading, np.concatenate([values[name].reshape(-1) for name in "ca"]), carriers)


@pytest.mark.parametrize("rows", [False, True])
def test_turned_tensors(tmp_path: Path, rows: bool) -> None:
    values = stored(tmp_path / "m.safetensors", torch.bfloat16)
    attempt = attempt_at(tmp_path / "m.safetensors", "ac", transposed=True, rows=rows)
    turned = [values[name].T.copy() for name in "ac"]
    turned = [levelled(array) for array in turned] if rows else turned
    flat = np.concatenate([array.reshape(-1) for array in turned])
    carriers = Carriers.everything(len(flat), POOLS)
    agrees(
        read_marked(open_checkpoint(tmp_path / "m.safetensors"), attempt, carriers), flat, carriers
    )


def test_levelled_rows_of_matrices_and_kernels(tmp_path: Path) -> None:
    values = stored(tmp_path / "m.safetensors", torch.float32)
    attempt = attempt_at(tmp_path / "m.safetensors", "abc", rows=True)
    flat = np.concatenate([levelled(values[name]).reshape(-1) for name in "abc"])
    carriers = Carriers.everything(len(flat), POOLS)
    agrees(
        read_marked(open_checkpoint(tmp_path / "m.safetensors"), attempt, carriers), flat, carriers
    )


def test_zeros_stand_for_what_is_missing(tmp_path: Path) -> None:
    values = stored(tmp_path / "m.safetensors", torch.float32)
    whole = attempt_at(tmp_path / "m.safetensors", "abc")
    missing = (whole.tensors[0], None, whole.tensors[2])
    attempt = Attempt(whole.placement, missing, "names", gaps=(Gap("b", 3600, "it is not there"),))
    values["b"][:] = 0
    flat = np.concatenate([values[name].reshape(-1) for name in "abc"])
    carriers = Carriers.everything(len(flat), POOLS)
    reading = read_marked(open_checkpoint(tmp_path / "m.safetensors"), attempt, carriers)
    agrees(reading, flat, carriers)
    assert sorted(reading.digests) == ["a", "c"]


def test_digests_are_of_the_bytes_and_of_the_headers_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    values = stored(path, torch.float32)
    checkpoint = open_checkpoint(path)
    total = sum(array.size for array in values.values())
    carriers = Carriers.everything(total, POOLS)
    reading = read_marked(checkpoint, attempt_at(path, "abc"), carriers)
    for name, array in values.items():
        data = array.astype(np.float32).tobytes()
        assert reading.digests[name] == hashlib.sha256(data).hexdigest()
    plain, full = (digest_of(checkpoint, reading.digests, full=full) for full in (False, True))
    assert plain.files is None
    assert digest_of(checkpoint, {}).files is None
    assert full.files == {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
    headers = '[["a","F32",[700,800]],["b","F32",[40,30,3]],["c","F32",[50,60]]]'
    assert plain.headers == full.headers == hashlib.sha256(headers.encode()).hexdigest()


def test_with_one_carrier_a_pool_the_spread_is_that_of_the_pools() -> None:
    pooled = np.array([1.0, 2.0, 3.0, 6.0])
    alone = Reading(Carriers.everything(4, 4), pooled, 0.0, 1.0, {})
    assert alone.sigma_z == pytest.approx(14**0.5)
    rounded = replace(alone, within=1e-9)  # what rounding leaves of nothing
    assert rounded.sigma_z == pytest.approx(14**0.5)
    constant = Reading(Carriers.everything(16, 4), pooled, 0.0, 1.0, {})
    assert constant.sigma_z == pytest.approx(14**0.5)
    usual = Reading(Carriers.everything(16, 4), pooled, 3.0, 1.0, {})
    assert usual.sigma_z == pytest.approx(3.0)
    pairs = Reading(Carriers.everything(8, 4), pooled, 3.0, 1.0, {})
    assert pairs.sigma_z == pytest.approx(3.0 * 2**0.5)


def test_the_same_reading_twice_is_one_trial(tmp_path: Path) -> None:
    stored(tmp_path / "m.safetensors", torch.float32)
    ways = [
        attempt_at(tmp_path / "m.safetensors", "ac", transposed=turned, rows=rows)
        for turned in (False, True)
        for rows in (False, True)
    ]
    assert len({way.reading_of for way in (*ways, *ways)}) == 4
    assert attempt_at(tmp_path / "m.safetensors", "ca").reading_of != ways[0].reading_of
    first, last = ways[0].tensors
    assert first is not None
    other = replace(first, info=replace(first.info, name="z"))  # the same bytes by another name
    assert replace(ways[0], tensors=(other, last)).reading_of == ways[0].reading_of
    named = [replace(t, storage=None) for t in (first, other)]
    unlike = {replace(ways[0], tensors=(t, last)).reading_of for t in named}
    assert len(unlike) == 2


def test_an_empty_pool_is_refused() -> None:
    parameters = Parameters(4, 64, 1, filter="tiled")
    bits = np.array([1, 0, 1, 0], np.uint8)
    mark = Mark(parameters, np.ones((64, 4), np.float32), bits)
    assert require_carriers(mark, (("w", (128,)),)).per_pool == 1
    with pytest.raises(TooFewCarriersError, match=r"w \(127\)"):
        require_carriers(mark, (("w", (127,)),))
    thrice = replace(mark, parameters=replace(parameters, rounds=3))
    with pytest.raises(TooFewCarriersError, match="tensors of 1,024 weights"):
        require_carriers(thrice, (("w", (127,)),))


def test_a_large_turned_tensor_of_half_precision(tmp_path: Path) -> None:
    values = torch.randn(1100, 1000, generator=torch.Generator().manual_seed(3)).bfloat16()
    save_file({"w": values}, tmp_path / "m.safetensors")
    carriers = Carriers.everything(1100 * 1000, POOLS)
    way = attempt_at(tmp_path / "m.safetensors", "w", transposed=True)
    reading = read_marked(open_checkpoint(tmp_path / "m.safetensors"), way, carriers)
    agrees(reading, values.double().numpy().T.reshape(-1), carriers)
