"""bfloat16 and float8 against torch's own conversions."""

import numpy as np
import pytest
import torch

from neuralmark.checkpoints.readers.dtypes import FLOATS, ITEMSIZE, decode, encode, rounded
from tests.support.dtypes import TORCH


def test_every_float_type_is_covered() -> None:
    assert set(TORCH) == set(FLOATS)


@pytest.mark.parametrize("dtype", [name for name in FLOATS if ITEMSIZE[name] <= 2])
def test_every_code_decodes_as_in_torch(dtype: str) -> None:
    raw = np.arange(256 ** ITEMSIZE[dtype], dtype=f"<u{ITEMSIZE[dtype]}").view(np.uint8)
    theirs = torch.from_numpy(raw.copy()).view(TORCH[dtype]).to(torch.float32).numpy()
    np.testing.assert_array_equal(decode(raw, dtype), theirs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_encoding_rounds_as_in_torch(dtype: str) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.standard_normal(5000), rng.standard_normal(5000) * 1e-3])
    values = values.astype(np.float32).astype(np.float64)
    ours = encode(values, dtype)
    theirs = torch.from_numpy(values).to(torch.float32).to(TORCH[dtype]).view(torch.uint8).numpy()
    mine = decode(ours, dtype)
    np.testing.assert_array_equal(mine, decode(theirs, dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_ties_go_to_even_and_values_on_the_grid_stay(dtype: str) -> None:
    grid = decode(encode(np.linspace(-2, 2, 4001), dtype), dtype).astype(np.float64)
    np.testing.assert_array_equal(rounded(grid, dtype), grid)
    if ITEMSIZE[dtype] <= 2:
        middles = np.unique(grid)
        middles = (middles[1:] + middles[:-1]) / 2
        theirs = torch.from_numpy(middles).to(torch.float32).to(TORCH[dtype]).double().numpy()
        np.testing.assert_array_equal(rounded(middles, dtype), theirs)


@pytest.mark.parametrize("dtype", [name for name in FLOATS if name != "F64"])
def test_large_values_saturate_and_never_become_infinite(dtype: str) -> None:
    largest = rounded(np.array([1e300, -1e300]), dtype)
    assert np.isfinite(largest).all()
    assert largest[0] == -largest[1] > 100
