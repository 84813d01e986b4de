"""The certified radius is a proof: nothing smaller undoes a verdict."""

import numpy as np
import pytest

from neuralmark.core import readout
from neuralmark.core.carriers import Carriers
from neuralmark.core.certificate import certified_radius, largest_singular_value
from neuralmark.core.imprint import LeastChange, goal_of
from neuralmark.core.key import Parameters, Terms, derive


def test_largest_singular_value() -> None:
    for shape in ((20, 7), (7, 20)):
        matrix = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        expected = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)[0]
        assert largest_singular_value(matrix) == pytest.approx(expected, rel=1e-10)


def test_no_smaller_change_undoes_the_verdict_and_attacks_aim_there() -> None:
    mark = derive(bytes(32), Terms(Parameters(32, 64, 1), (("w", (4096,)),)))
    carriers = Carriers.of(mark, 4096)
    values = np.random.default_rng(5).standard_normal(carriers.size)
    solver = LeastChange(mark)
    pooled = readout.pool(values, 64)
    change = solver.change(pooled, goal_of(pooled, 1.0))
    written = values + carriers.spread(change, 0, carriers.size)
    margins = solver.margins(readout.pool(written, 64))
    needed = 28
    radius = certified_radius(
        margins, needed, carriers.per_pool, largest_singular_value(mark.matrix)
    )

    # The strongest attack by someone who knows the key: push f bits over at the least cost.
    to_flip = np.argsort(margins)[: 32 - needed + 1]
    half_spaces = mark.matrix.astype(np.float64) * mark.signs
    push, *_ = np.linalg.lstsq(half_spaces[:, to_flip].T, -margins[to_flip], rcond=None)
    spent = np.sqrt(carriers.per_pool) * np.linalg.norm(push)
    assert 0 < radius <= spent < 6 * radius

    rng = np.random.default_rng(1)
    for _ in range(200):
        noise = rng.standard_normal(len(written))
        attacked = written + 0.999 * radius * noise / np.linalg.norm(noise)
        assert (solver.margins(readout.pool(attacked, 64)) > 0).sum() >= needed
    pushed = written + (0.999 * radius / spent * push)[carriers.pool_of(0, carriers.size)]
    assert (solver.margins(readout.pool(pushed, 64)) > 0).sum() >= needed


def test_nothing_is_certified_below_the_boundary() -> None:
    assert certified_radius(np.array([1.0, -1.0, 1.0, -1.0]), 3, 2, 1.0) == 0


def radius_of(margins: list[float], needed: int) -> float:
    """With σ_max(K) = 1/2 and four carriers per pool, a unit of margin is worth 4."""
    matrix = np.diag([0.5, 0.25, 0.25, 0.25]).astype(np.float32)
    return certified_radius(np.array(margins), needed, 4, largest_singular_value(matrix))


def test_the_radius_is_the_cheapest_way_to_lose_enough_bits() -> None:
    assert radius_of([3.0, 4.0, 5.0, 6.0], 4) == pytest.approx(12)
    assert radius_of([6.0, 4.0, 5.0, 3.0], 3) == pytest.approx(20)
    assert radius_of([5.0, -1.0, 6.0, 4.0], 3) == pytest.approx(16)


def test_a_bit_on_the_border_is_no_match_and_needs_no_push() -> None:
    assert radius_of([0.0, 3.0, 4.0, 5.0], 3) == pytest.approx(12)
    assert radius_of([0.0, 3.0, 4.0, 5.0], 4) == 0
    assert radius_of([0.0, 0.0, 0.0, 5.0], 4) == 0


def test_a_matrix_of_small_numbers_has_a_small_singular_value() -> None:
    matrix = np.full((3, 2), 0.01, np.float32)
    assert largest_singular_value(matrix) == pytest.approx(0.01 * 6**0.5)
    assert largest_singular_value(0 * matrix) == 0
