"""The read-out, once for numpy and torch."""

import numpy as np
import pytest
import torch

from neuralmark.core import readout
from neuralmark.core.key import POOLINGS, Mark, Parameters, Pooling

RNG = np.random.default_rng(7)
VALUES = RNG.standard_normal(24 * 5)
MATRIX = RNG.standard_normal((24, 16))
BITS = RNG.integers(0, 2, 16).astype(np.float64)


@pytest.mark.parametrize("pooling", ["strided", "contiguous"])
def test_numpy_and_torch_agree(pooling: Pooling) -> None:
    by_numpy = readout.logits(readout.pool(VALUES, 24, pooling), MATRIX)
    tensors = [torch.from_numpy(array) for array in (VALUES, MATRIX, BITS)]
    by_torch = readout.logits(readout.pool(tensors[0], 24, pooling), tensors[1])
    assert isinstance(by_torch, torch.Tensor)
    np.testing.assert_allclose(by_torch.numpy(), by_numpy, rtol=1e-12)
    assert float(readout.loss(by_torch, tensors[2])) == pytest.approx(
        float(readout.loss(by_numpy, BITS)), rel=1e-12
    )
    np.testing.assert_allclose(
        readout.loss_gradient(by_torch, 2 * tensors[2] - 1, tensors[1], 5).numpy(),
        readout.loss_gradient(by_numpy, 2 * BITS - 1, MATRIX, 5),
        rtol=1e-12,
    )
    assert float(readout.scatter_unit(tensors[0])) == pytest.approx(
        float(readout.scatter_unit(VALUES)), rel=1e-12
    )


def test_gradient_is_that_of_autograd() -> None:
    values = torch.from_numpy(VALUES).requires_grad_()
    matrix, bits = torch.from_numpy(MATRIX), torch.from_numpy(BITS)
    z = readout.logits(readout.pool(values, 24), matrix)
    readout.loss(z, bits).backward()
    assert values.grad is not None
    per_pool = readout.loss_gradient(z.detach(), 2 * bits - 1, matrix, 5)
    np.testing.assert_allclose(
        values.grad.numpy(), per_pool.numpy()[np.arange(120) % 24], rtol=1e-10
    )


def test_loss_is_the_textbook_cross_entropy_and_does_not_overflow() -> None:
    z = np.array([0.3, -2.0, 1.5])
    bits = np.array([1.0, 0.0, 0.0])
    sigmoid = 1 / (1 + np.exp(-z))
    expected = -(bits * np.log(sigmoid) + (1 - bits) * np.log(1 - sigmoid)).mean()
    assert readout.loss(z, bits) == pytest.approx(expected)
    assert np.isfinite(readout.loss(np.array([1e6, -1e6]), np.array([0.0, 1.0])))


def test_a_zero_logit_never_matches() -> None:
    z = np.zeros(4)
    assert not readout.matches(z, np.array([1.0, -1.0, 1.0, -1.0])).any()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_means_are_taken_over_the_carriers_of_each_pool(pooling: Pooling) -> None:
    """`pool` and `pool_of` say the same, in numpy and in torch."""
    values = np.random.default_rng(3).standard_normal(6 * 8)
    owners = readout.pool_of(np.arange(48), 8, 6, pooling)
    assert np.bincount(owners).tolist() == [6] * 8
    means = [values[owners == j].mean() for j in range(8)]
    assert np.allclose(readout.pool(values, 8, pooling), means)
    assert readout.pool_of(torch.arange(48), 8, 6, pooling).tolist() == owners.tolist()


def test_the_spread_of_pooled_values_is_the_norm_around_their_mean() -> None:
    assert readout.scatter_unit(np.array([1.0, 2.0, 3.0, 6.0])) == pytest.approx(14**0.5)
    assert readout.scatter_unit(np.array([101.0, 102.0, 103.0, 106.0])) == pytest.approx(14**0.5)


def small_mark() -> Mark:
    matrix = (np.arange(32).reshape(8, 4) / 8).astype(np.float32)
    bits, order = np.array([1, 0, 0, 1], np.uint8), np.array([3, 1, 2, 0])
    extra = {"order": order, "noise": np.full(3, 0.1)}
    return Mark(Parameters(4, 8), matrix, bits, extra)


def test_a_mark_is_known_in_the_precision_of_the_tensor_that_is_read() -> None:
    known = readout.Known.of(small_mark(), torch.zeros(2, dtype=torch.float16))
    assert known.matrix.dtype == known.bits.dtype == known.signs.dtype == torch.float16
    assert known.signs.tolist() == [1, -1, -1, 1]
    assert known.extra["noise"].dtype == torch.float16
    assert known.extra["order"].dtype == torch.int64
    assert known.extra["order"].tolist() == [3, 1, 2, 0]
    by_numpy = readout.Known.of(small_mark())
    assert by_numpy.matrix.dtype == by_numpy.bits.dtype == np.float64
    assert by_numpy.settings == known.settings


def test_what_is_known_of_a_mark_is_not_shown() -> None:
    assert "array" not in repr(readout.Known.of(small_mark()))
    assert "noise" not in repr(readout.Known.of(small_mark()))
