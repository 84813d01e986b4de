"""Heads by their products, and the matrix inside each."""

import numpy as np
import pytest

from neuralmark.anchors.aligning.heads import KEY, OUTPUT, QUERY, VALUE, Parts, align_heads
from neuralmark.anchors.aligning.sides import Floats
from neuralmark.anchors.moves import MISSING
from neuralmark.structures.structure import Array, Attention, Indices, Side

RNG = np.random.default_rng(0)
WIDTH, SIZE = 96, 8
NOWHERE = Side("none", 0)


def _layer(heads: int, keys: int, *, rotary: bool = False) -> Attention:
    one = (NOWHERE,)
    return Attention("attn", one, one, one, NOWHERE, heads * SIZE, keys * SIZE, SIZE, rotary)


def _rows(heads: int) -> Array:
    return RNG.standard_normal((heads * SIZE, WIDTH)).astype(np.float32)


def _moved(values: Array, order: Indices, matrices: Floats) -> Array:
    """Heads in another order, each times a matrix."""
    heads = values.reshape(-1, SIZE, WIDTH)[order]
    return np.asarray(matrices @ heads, np.float32).reshape(-1, WIDTH)


def _cosine(one: Array, two: Array) -> float:
    return float(np.vdot(one, two) / np.linalg.norm(one) / np.linalg.norm(two))


def _grouped(share: int, keys: int = 3) -> tuple[Parts, Indices]:
    """Queries and values of an attention layer whose heads were moved and mixed."""
    mine = {QUERY: _rows(share * keys), OUTPUT: _rows(share * keys), KEY: _rows(keys)}
    mine[VALUE] = _rows(keys)
    order = RNG.permutation(keys)
    within = [RNG.permutation(share) for _ in range(keys)]
    asked = np.concatenate([o * share + w for o, w in zip(order, within, strict=True)])
    inside = RNG.standard_normal((2, keys, SIZE, SIZE)) + 2 * np.eye(SIZE)
    undone = np.linalg.inv(inside).swapaxes(2, 3)
    parts = {
        VALUE: (mine[VALUE], _moved(mine[VALUE], order, inside[0])),
        KEY: (mine[KEY], _moved(mine[KEY], order, inside[1])),
        OUTPUT: (mine[OUTPUT], _moved(mine[OUTPUT], asked, np.repeat(undone[0], share, axis=0))),
        QUERY: (mine[QUERY], _moved(mine[QUERY], asked, np.repeat(undone[1], share, axis=0))),
    }
    return parts, asked


@pytest.mark.parametrize("share", [1, 3])
def test_heads_are_found_whatever_lies_inside(share: int) -> None:
    parts, asked = _grouped(share)
    found = align_heads(_layer(3 * share, 3), parts, SIZE)
    for part, move in found.moves.items():
        assert _cosine(parts[part][0], move.of(parts[part][1], 0)) > 0.9999, part
    index = found.moves[QUERY].index
    assert index is not None
    np.testing.assert_array_equal(asked[index[::SIZE] // SIZE], np.arange(3 * share))
    assert found.likeness > 0.9999


@pytest.mark.parametrize("gone", [(KEY,), (VALUE, QUERY), (OUTPUT, VALUE, KEY)])
def test_what_is_left_is_enough(gone: tuple[str, ...]) -> None:
    parts, _ = _grouped(1, keys=4)
    left = {part: two for part, two in parts.items() if part not in gone}
    found = align_heads(_layer(4, 4), left, SIZE)
    assert found.moves.keys() == left.keys()
    for part, move in found.moves.items():
        assert _cosine(left[part][0], move.of(left[part][1], 0)) > 0.999, part


def test_heads_that_were_only_moved_are_not_mixed() -> None:
    values = {part: _rows(4) for part in (QUERY, KEY, VALUE, OUTPUT)}
    order = RNG.permutation(4)
    still = np.broadcast_to(np.eye(SIZE), (4, SIZE, SIZE))
    noise = np.float32(0.2)
    noisy = {p: (v, _moved(v, order, still) + noise * _rows(4)) for p, v in values.items()}
    for rotary in (False, True):
        found = align_heads(_layer(4, 4, rotary=rotary), noisy, SIZE)
        assert all(move.blocks is None for move in found.moves.values())


def test_rotary_heads_bear_a_factor_for_each_frequency() -> None:
    half, order = SIZE // 2, RNG.permutation(3)
    factor = RNG.standard_normal((3, half)) + 1j * RNG.standard_normal((3, half))
    parts: Parts = {}
    for part, each in ((QUERY, factor), (KEY, 1 / factor.conj())):
        one = _rows(3)
        parts[part] = (one, _moved(one, order, np.stack([_matrix(x) for x in each])))
    found = align_heads(_layer(3, 3, rotary=True), parts, SIZE)
    for part, move in found.moves.items():
        assert _cosine(parts[part][0], move.of(parts[part][1], 0)) > 0.9999, part


def _matrix(factor: "np.typing.NDArray[np.complex128]") -> Floats:
    real, imaginary = np.diag(factor.real), np.diag(factor.imag)
    return np.block([[real, -imaginary], [imaginary, real]])


def test_heads_that_were_removed_are_missing() -> None:
    parts, _ = _grouped(1, keys=4)
    fewer = {part: (one, two[: 3 * SIZE]) for part, (one, two) in parts.items()}
    found = align_heads(_layer(4, 4), fewer, SIZE)
    for part, move in found.moves.items():
        assert move.index is not None
        assert (move.index == MISSING).sum() == SIZE
        assert _cosine(fewer[part][0], move.of(fewer[part][1], 0)) > 0.8


def test_rotary_heads_that_were_removed_are_missing() -> None:
    one = {part: _rows(4) for part in (QUERY, KEY)}
    parts: Parts = {part: (value, value[SIZE:]) for part, value in one.items()}
    found = align_heads(_layer(4, 4, rotary=True), parts, SIZE)
    for part in one:
        index = found.moves[part].index
        assert index is not None
        expected = [MISSING] * SIZE + list(range(3 * SIZE))
        np.testing.assert_array_equal(index, expected)


def test_layers_that_differ_in_their_number_of_heads_leave_them_in_order() -> None:
    heads = {part: _rows(4) for part in (QUERY, KEY, VALUE, OUTPUT)}
    turned = {part: value.reshape(4, SIZE, WIDTH)[::-1] for part, value in heads.items()}
    parts: Parts = {p: (v, turned[p].reshape(-1, WIDTH)) for p, v in heads.items()}
    found = align_heads(_layer(4, 4), parts, SIZE)
    assert found.likeness > 0.999
    for part in (QUERY, KEY):
        parts[part] = heads[part], np.concatenate([parts[part][1], _rows(1)])
    found = align_heads(_layer(4, 4), parts, SIZE)
    assert found.likeness < 0.9
    for move in found.moves.values():
        np.testing.assert_array_equal(move.index, np.arange(4 * SIZE))
