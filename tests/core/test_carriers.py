"""The closed form of the filter against the published loop."""

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralmark.core.carriers import Carriers, expected_per_pool
from neuralmark.core.key import Mark, Parameters

BITS = st.lists(st.integers(0, 1), min_size=1, max_size=20)


def naive_carriers(bits: list[int], total: int, rounds: int, pools: int) -> list[int]:
    """Repeat the bits, mask, select, R times; then cut to whole pools."""
    positions = list(range(total))
    for _ in range(rounds):
        positions = positions[: len(positions) // len(bits) * len(bits)]
        positions = [at for i, at in enumerate(positions) if bits[i % len(bits)]]
    return positions[: len(positions) // pools * pools]


def carriers_of(
    bits: list[int], total: int, rounds: int, pools: int, pooling: str = "strided"
) -> Carriers:
    parameters = Parameters(len(bits), pools, rounds, pooling)
    matrix = np.zeros((pools, len(bits)), np.float32)
    return Carriers.of(Mark(parameters, matrix, np.array(bits, np.uint8)), total)


@given(BITS, st.integers(0, 3000), st.integers(1, 5), st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_positions_equal_the_published_loop(
    bits: list[int], total: int, rounds: int, pools: int
) -> None:
    expected = naive_carriers(bits, total, rounds, pools)
    carriers = carriers_of(bits, total, rounds, pools)
    assert carriers.size == len(expected)
    assert carriers.per_pool * pools == len(expected)
    if expected:
        assert carriers.positions().tolist() == expected


@given(BITS, st.integers(1, 2000), st.integers(1, 4), st.data())
@settings(max_examples=200, deadline=None)
def test_any_range_can_be_computed_alone(
    bits: list[int], total: int, rounds: int, data: st.DataObject
) -> None:
    expected = naive_carriers(bits, total, rounds, 3)
    carriers = carriers_of(bits, total, rounds, 3)
    low = data.draw(st.integers(0, total))
    high = data.draw(st.integers(low, total))
    inside = [at for at in expected if low <= at < high]
    first, last = carriers.rank(low), carriers.rank(high)
    assert last - first == len(inside)
    if inside:
        assert carriers.positions(first, last).tolist() == inside


@given(
    BITS,
    st.integers(50, 2000),
    st.sampled_from(["strided", "contiguous"]),
    st.integers(1, 300),
    st.integers(1, 7),
)
@settings(max_examples=200, deadline=None)
def test_streamed_sums_equal_pooling_at_once(
    bits: list[int], total: int, pooling: str, step: int, pools: int
) -> None:
    carriers = carriers_of(bits, total, 1, pools, pooling)
    if not carriers.size:
        return
    w = np.random.default_rng(total).standard_normal(total)
    values = w[carriers.positions()]
    sums = np.zeros(pools)
    for low in range(0, total, step):
        first, last = carriers.rank(low), carriers.rank(min(low + step, total))
        carriers.sum_into(sums, first, w[carriers.positions(first, last)])
    assert np.allclose(sums, naive_sums(values, pools, pooling))
    owners = carriers.pool_of(0, carriers.size)
    assert np.allclose(np.bincount(owners, values, pools), sums)


def naive_sums(values: npt.NDArray[np.float64], pools: int, pooling: str) -> list[float]:
    per_pool = len(values) // pools
    if pooling == "strided":
        return [float(sum(values[j::pools])) for j in range(pools)]
    return [float(sum(values[j * per_pool : (j + 1) * per_pool])) for j in range(pools)]


def test_expected_number_is_what_keys_have_on_average() -> None:
    rng = np.random.default_rng(1)
    sizes = [
        carriers_of(rng.integers(0, 2, 64).tolist(), 200_000, 3, 10).per_pool for _ in range(300)
    ]
    assert abs(np.mean(sizes) / expected_per_pool(200_000, 10, 3) - 1) < 0.1
