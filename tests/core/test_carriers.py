"""Both filters against loops in the words of docs/method.md."""

import hashlib
import struct

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralmark.core.carriers import Carriers, Listed, StreamCarriers, expected_per_pool
from neuralmark.core.key import Filter, Mark, Parameters, Pooling
from neuralmark.errors import ParameterError

BITS = st.lists(st.integers(0, 1), min_size=1, max_size=20)


FILTERS = st.sampled_from(["stream", "tiled"])


def naive_carriers(
    bits: list[int], total: int, rounds: int, pools: int, chosen: Filter = "tiled"
) -> list[int]:
    """Filter R times; then cut to whole pools."""
    kept = naive_stream(bits, total, rounds) if chosen == "stream" else []
    kept = kept if chosen == "stream" else naive_tiles(bits, total, rounds)
    return kept[: len(kept) // pools * pools]


def naive_stream(bits: list[int], total: int, rounds: int) -> list[int]:
    """The i-th survivor is kept where bit i of the round's keystream is 1."""
    text = "".join(map(str, bits)) + "0" * (-len(bits) % 8)
    packed = bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))
    head = b"neuralmark/filter/2" + struct.pack("<Q", len(packed)) + packed
    head += struct.pack("<Q", len(bits))
    positions = list(range(total))
    for turn in range(rounds):
        blocks: dict[int, bytes] = {}
        kept = []
        for i, at in enumerate(positions):
            block, inside = divmod(i, 65536)
            if block not in blocks:
                blocks[block] = hashlib.shake_256(head + struct.pack("<QQ", turn, block)).digest(
                    8192
                )
            if blocks[block][inside // 8] >> (7 - inside % 8) & 1:
                kept.append(at)
        positions = kept
    return positions


def naive_tiles(bits: list[int], total: int, rounds: int) -> list[int]:
    """Repeat the bits, mask, select, R times."""
    positions = list(range(total))
    for _ in range(rounds):
        positions = positions[: len(positions) // len(bits) * len(bits)]
        positions = [at for i, at in enumerate(positions) if bits[i % len(bits)]]
    return positions


def carriers_of(
    bits: list[int],
    total: int,
    rounds: int,
    pools: int,
    pooling: Pooling = "strided",
    chosen: Filter = "tiled",
) -> Carriers:
    parameters = Parameters(len(bits), pools, rounds, pooling, filter=chosen)
    matrix = np.zeros((pools, len(bits)), np.float32)
    return Carriers.of(Mark(parameters, matrix, np.array(bits, np.uint8)), total)


@given(BITS, st.integers(0, 3000), st.integers(1, 5), st.integers(1, 9), FILTERS)
@settings(max_examples=300, deadline=None)
def test_positions_equal_the_loop(
    bits: list[int], total: int, rounds: int, pools: int, chosen: Filter
) -> None:
    expected = naive_carriers(bits, total, rounds, pools, chosen)
    carriers = carriers_of(bits, total, rounds, pools, chosen=chosen)
    assert carriers.size == len(expected)
    assert carriers.per_pool * pools == len(expected)
    if expected:
        assert carriers.positions().tolist() == expected


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_keystream_goes_on_beyond_its_first_pieces(rounds: int) -> None:
    bits, total = [1, 0, 1, 1, 0], 200_000
    expected = naive_carriers(bits, total, rounds, 7, "stream")
    carriers = carriers_of(bits, total, rounds, 7, chosen="stream")
    assert carriers.positions().tolist() == expected
    for low, high in ((0, 65536), (65535, 65537), (131_000, 131_100), (196_608, total)):
        first, at = carriers.between(low, high)
        assert (at + low).tolist() == [e for e in expected if low <= e < high]
        assert first == sum(e < low for e in expected)


@given(BITS, st.integers(1, 2000), st.integers(1, 4), FILTERS, st.data())
@settings(max_examples=200, deadline=None)
def test_any_range_can_be_computed_alone(
    bits: list[int], total: int, rounds: int, chosen: Filter, data: st.DataObject
) -> None:
    expected = naive_carriers(bits, total, rounds, 3, chosen)
    carriers = carriers_of(bits, total, rounds, 3, chosen=chosen)
    low = data.draw(st.integers(0, total))
    high = data.draw(st.integers(low, total))
    inside = [at for at in expected if low <= at < high]
    first, last = carriers.rank(low), carriers.rank(high)
    assert last - first == len(inside)
    if inside:
        assert carriers.positions(first, last).tolist() == inside


@given(st.sets(st.integers(0, 99), max_size=60), st.integers(1, 7), st.data())
@settings(max_examples=100, deadline=None)
def test_a_stretch_has_its_own_carriers_under_every_filter(
    listed: set[int], pools: int, data: st.DataObject
) -> None:
    places = sorted(listed)
    low = data.draw(st.integers(0, 100))
    high = data.draw(st.integers(low, 120))
    bits = [1, 0, 0, 1, 1]
    kinds: list[tuple[Carriers, list[int]]] = [
        (Listed.at(np.array(places, np.int64), 100, pools), places),
        (Carriers.everything(100, pools), list(range(100))),
        (carriers_of(bits, 100, 2, pools), naive_tiles(bits, 100, 2)),
        (carriers_of(bits, 100, 2, pools, chosen="stream"), naive_stream(bits, 100, 2)),
    ]
    for carriers, kept in kinds:
        kept = kept[: len(kept) // pools * pools]
        first, at = carriers.between(low, high)
        assert (at + low).tolist() == [place for place in kept if low <= place < high]
        assert first == sum(place < low for place in kept)


def test_looking_at_a_stretch_changes_nothing() -> None:
    carriers = Listed.at(np.arange(0, 40, 2), 40, 4)
    once = carriers.between(10, 30)[1].tolist()
    assert carriers.between(10, 30)[1].tolist() == once
    assert carriers.positions().tolist() == list(range(0, 40, 2))


@pytest.mark.parametrize("places", [[3, 2], [2, 2], [-1, 4], [0, 40]])
def test_a_private_filter_is_a_rising_list_of_positions(places: list[int]) -> None:
    with pytest.raises(ParameterError, match="rising list"):
        Listed.at(np.array(places), 40, 2)


@given(
    st.integers(1, 9),
    st.sampled_from(["strided", "contiguous"]),
    st.sampled_from(["tiled", "stream"]),
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_a_number_for_each_pool_reaches_its_carriers(
    pools: int, pooling: Pooling, chosen: Filter, data: st.DataObject
) -> None:
    carriers = carriers_of([1, 0, 1], 200, 1, pools, pooling, chosen)
    first = data.draw(st.integers(0, carriers.size))
    count = data.draw(st.integers(0, carriers.size - first))
    each = np.linspace(0.5, 1.5, pools)
    spread = carriers.spread(each, first, count)
    assert spread.tolist() == [
        each[i % pools if pooling == "strided" else i // carriers.per_pool]
        for i in range(first, first + count)
    ]


@given(
    BITS,
    st.integers(50, 2000),
    st.sampled_from(["strided", "contiguous"]),
    st.integers(1, 300),
    st.integers(1, 7),
)
@settings(max_examples=200, deadline=None)
def test_streamed_sums_equal_pooling_at_once(
    bits: list[int], total: int, pooling: Pooling, step: int, pools: int
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


def naive_sums(values: npt.NDArray[np.float64], pools: int, pooling: Pooling) -> list[float]:
    per_pool = len(values) // pools
    if pooling == "strided":
        return [float(sum(values[j::pools])) for j in range(pools)]
    return [float(sum(values[j * per_pool : (j + 1) * per_pool])) for j in range(pools)]


def test_expected_number_is_what_keys_have_on_average() -> None:
    rng = np.random.default_rng(1)
    sizes = [
        carriers_of(rng.integers(0, 2, 64).tolist(), 200_000, 3, 10, chosen=chosen).per_pool
        for _ in range(100)
        for chosen in ("stream", "tiled")
    ]
    assert abs(np.mean(sizes) / expected_per_pool(200_000, 10, 3) - 1) < 0.1


@pytest.mark.parametrize("chosen", ["stream", "tiled"])
def test_carriers_show_nothing_secret(chosen: Filter) -> None:
    carriers = carriers_of([1, 0, 1, 1], 100, 1, 4, chosen=chosen)
    assert carriers.positions().size
    names = {part.partition("=")[0] for part in repr(carriers).partition("(")[2].split(", ")}
    assert names <= {"total", "pools", "pooling", "rounds"}
    assert "array" not in repr(Listed.at(np.arange(8), 40, 4))


@pytest.mark.parametrize("chosen", ["stream", "tiled"])
@pytest.mark.parametrize("rounds", [1, 2])
def test_nothing_lies_beyond_the_last_carrier(chosen: Filter, rounds: int) -> None:
    bits, total = [1, 0, 1, 1, 0], 1000
    expected = naive_carriers(bits, total, rounds, 3, chosen)
    carriers = carriers_of(bits, total, rounds, 3, chosen=chosen)
    assert carriers.rank(total) == carriers.rank(10 * total) == len(expected)
    assert carriers.positions(len(expected) - 2, 10 * total).tolist() == expected[-2:]
    assert carriers.positions(len(expected)).tolist() == []
    assert carriers.positions(7, 7).tolist() == carriers.positions(9, 7).tolist() == []
    first, at = carriers.between(total - 200, 3 * total)
    assert (at + total - 200).tolist() == [place for place in expected if place >= total - 200]
    assert first == sum(place < total - 200 for place in expected)
    assert carriers.between(2 * total, 3 * total)[1].tolist() == []
    assert carriers.between(2 * total, 3 * total)[0] == len(expected)


def test_unfiltered_streams_carry_everywhere() -> None:
    carriers = StreamCarriers.under(np.array([1, 0, 1], np.uint8), 0, 20, 6)
    assert carriers.positions().tolist() == list(range(18))
    assert (carriers.rank(7), carriers.rank(19), carriers.survivors) == (7, 18, 20)
    first, at = carriers.between(5, 30)
    assert (first, at.tolist()) == (5, list(range(13)))


def test_what_is_cut_off_is_less_than_a_carrier_a_pool() -> None:
    listed = Listed.at(np.array([0, 3, 9, 11, 30, 39]), 40, 4)
    assert (listed.survivors, listed.size, listed.per_pool) == (6, 4, 1)
    assert listed.positions().tolist() == [0, 3, 9, 11]
    assert listed.positions(1, 6).tolist() == [3, 9, 11]
    assert listed.rank(40) == 4


def test_a_private_filter_may_be_empty_but_not_a_table() -> None:
    assert Listed.at(np.zeros(0, np.int64), 40, 4).size == 0
    with pytest.raises(ParameterError):
        Listed.at(np.zeros((1, 1), np.int64), 40, 4)


def test_half_of_the_weights_are_expected_to_survive_each_round() -> None:
    assert expected_per_pool(4096, 4, 0) == 1024
    assert expected_per_pool(4096, 4, 3) == 128


@pytest.mark.parametrize("chosen", ["tiled", "stream"])
def test_a_range_without_carriers_is_empty(chosen: Filter) -> None:
    carriers = carriers_of([1, 0, 1], 300, 1, 5, chosen=chosen)
    assert carriers.positions(7, 7).tolist() == []
    assert carriers.positions(carriers.size).tolist() == []


def test_a_keystream_longer_than_what_is_kept_of_it_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = carriers_of([1, 0, 1, 1], 200_000, 2, 7, chosen="stream").positions()
    monkeypatch.setattr("neuralmark.core.carriers._KEPT_BLOCKS", 1)
    found = carriers_of([1, 0, 1, 1], 200_000, 2, 7, chosen="stream").positions()
    np.testing.assert_array_equal(found, expected)
