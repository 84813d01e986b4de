"""Marks inside an adapter's span: the solver, the directions, and what a quarter buys."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from neuralmark import schemes
from neuralmark.core.carriers import Listed
from neuralmark.core.exact import ExactChange
from neuralmark.core.grid import Grid
from neuralmark.core.imprint import goal_of
from neuralmark.core.update import update_of
from neuralmark.errors import InfeasibleError, ParameterError, UnsuitableTensorError
from neuralmark.marking import spanning
from neuralmark.marking.spanning import (
    Span,
    SpanDraft,
    SpanSolver,
    _affordable,
    _gram,
    draft_in_span,
)
from neuralmark.marking.surveying import MarkedPart


def solver(bits: int = 6, pools: int = 12) -> SpanSolver:
    half_spaces = np.random.default_rng(0).standard_normal((pools, bits))
    return SpanSolver(half_spaces, half_spaces.T @ half_spaces)


def test_a_change_gives_every_bit_its_margin_and_no_more_than_needed() -> None:
    solve, pooled = solver(), np.random.default_rng(1).standard_normal(12)
    change = solve.change(pooled, 2.0)
    reached = solve.margins(pooled + change)
    assert reached.min() == pytest.approx(2.0)
    held = pooled + solve.change(pooled, 3.0)
    assert not solve.change(held, 2.9).any()
    goal = goal_of(pooled, 1.5)
    assert solve.cost(pooled, 1.5) == pytest.approx(np.linalg.norm(solve.change(pooled, goal)))
    strong = pooled + solve.change(pooled, 50.0)
    assert solve.cost(strong, 0.1) == 0
    assert "array" not in repr(solve)
    assert not solve.steady


def test_a_span_that_lets_nothing_through_is_too_small() -> None:
    half_spaces = np.random.default_rng(0).standard_normal((12, 3))
    with pytest.raises(InfeasibleError, match="span"):
        SpanSolver(half_spaces, np.zeros((3, 3))).change(np.zeros(12), 1.0)


def part_of(difference: Any) -> MarkedPart:
    update = update_of(difference.reshape(-1), len(difference))
    return MarkedPart(cast("Any", None), 0, Grid("float32", 23, 9.0), 1.0, update=update)


@pytest.mark.parametrize("rank", [0, 1, 5])
def test_directions_are_those_that_stand_out_of_the_rounding(rank: int) -> None:
    rng = np.random.default_rng(2)
    adapter = rng.standard_normal((200, rank)) @ rng.standard_normal((rank, 160))
    span = Span.of(part_of(adapter + 0.01 * rng.standard_normal((200, 160))))
    assert (0 if span is None else len(span.right)) == rank
    if span is not None:
        assert span.left.shape == (200, rank)
        assert np.abs(span.left @ span.right - adapter).max() < 0.1


def test_a_direction_counts_from_twice_the_edge_of_the_noise() -> None:
    rng = np.random.default_rng(3)
    noise = rng.standard_normal((200, 160))
    one, two = (np.linalg.qr(rng.standard_normal((n, 1)))[0] for n in (200, 160))
    edge = np.sqrt(200) + np.sqrt(160)
    for factor, found in ((0.8, False), (2.4, True)):
        span = Span.of(part_of(noise + factor * edge * one @ two.T))
        assert (span is not None) == found


def test_a_tensor_that_stays_has_no_span() -> None:
    assert Span.of(MarkedPart(cast("Any", None), 0, None, 0.0)) is None
    assert Span.of(MarkedPart(cast("Any", None), 0, Grid("float32", 23, 9.0), 0.0)) is None


class Priced:
    """A solver whose cost is the strength times a price."""

    def __init__(self, price: float) -> None:
        self.price = price

    def cost(self, pooled: Any, strength: float) -> float:
        return self.price * strength


@pytest.mark.parametrize(
    ("price", "strength"), [(0.1, 2.0), (1.25, 2.0), (1.3, 1.92), (2.0, 1.25), (2.5, 1.0)]
)
def test_a_quarter_of_the_adapters_norm_is_spent(price: float, strength: float) -> None:
    spans = (Span(np.array([[3.0], [4.0]]), np.ones((1, 1))), None)  # of norm 5, with `more` 10
    more = Span(np.full((3, 1), 5.0), np.ones((1, 1)))
    found = cast("Any", SimpleNamespace(reading=SimpleNamespace(pooled=None)))
    priced = cast("Any", Priced(price))
    bought = _affordable(priced, found, (*spans, more))
    assert bought == pytest.approx(strength, abs=0.01)
    assert price * bought <= 0.25 * 10 * (1 + 1e-9)
    assert (bought == 2.0) == (price <= 1.25)
    with pytest.raises(InfeasibleError, match="26 %"):
        _affordable(cast("Any", Priced(1.3)), found, spans)


ROWS, WIDTH, START, POOLS, BITS = 5, 12, 7, 4, 3
PLACES = np.array([0, 3, 6, *range(8, 30), 33, 40, *range(50, 67), 70, 75])
"""Some lie before the tensor, which begins at START and has ROWS · WIDTH weights, some behind."""


def fake_plan() -> Any:
    rng = np.random.default_rng(6)
    carriers = Listed.at(PLACES[: len(PLACES) // POOLS * POOLS], 80, POOLS)
    matrix = rng.standard_normal((POOLS, BITS)).astype(np.float32)
    mark = SimpleNamespace(matrix=matrix, signs=np.array([1, -1, 1], np.int8))
    return SimpleNamespace(carriers=carriers, mark=mark, base=None)


def some_span(seed: int) -> Span:
    rng = np.random.default_rng(seed)
    left = rng.standard_normal((ROWS, 2)).astype(np.float32)
    right = np.linalg.qr(rng.standard_normal((WIDTH, 2)))[0].T
    return Span(left, right.astype(np.float32))


def plain_gram(planned: Any, starts: tuple[int, ...], spans: tuple[Span, ...]) -> Any:
    """Each bit's half-space, spread over the carriers of a tensor, and projected on its span."""
    half_spaces = planned.mark.matrix.astype(np.float64) * planned.mark.signs
    gram = np.zeros((BITS, BITS))
    for start, span in zip(starts, spans, strict=True):
        pushed = np.zeros((ROWS * WIDTH, BITS))
        for index, place in enumerate(planned.carriers.positions(0, planned.carriers.size)):
            if start <= place < start + ROWS * WIDTH:
                pushed[place - start] = half_spaces[index % POOLS]
        inside = np.einsum("rwb,kw->rkb", pushed.reshape(ROWS, WIDTH, BITS), span.right)
        gram += np.einsum("rkb,rkc->bc", inside, inside)
    return gram / planned.carriers.per_pool**2


def test_what_a_span_lets_through_is_a_projection_row_by_row() -> None:
    planned, spans = fake_plan(), (some_span(7), some_span(8))
    starts = (START, START + 5)
    parts = [MarkedPart(cast("Any", None), s, Grid("float32", 23, 9.0), 1.0) for s in starts]
    found = cast("Any", SimpleNamespace(parts=[*parts, parts[0]]))
    gram = _gram(planned, found, (*spans, None))
    np.testing.assert_allclose(gram, plain_gram(planned, starts, spans), rtol=1e-5)


def test_a_tensor_is_rewritten_piece_by_piece() -> None:
    """Pieces of 25, 1 and 34 weights; the carriers of each are those of the tensor there."""
    planned, rng = fake_plan(), np.random.default_rng(9)
    values = rng.standard_normal(ROWS * WIDTH).astype(np.float32)
    new = values + np.float32(1)
    cuts = np.split(values, [25, 26])
    planned.checkpoint = SimpleNamespace(read=lambda _: iter([c.view(np.uint8) for c in cuts]))
    info = SimpleNamespace(name="w", dtype="F32")
    part = MarkedPart(cast("Any", SimpleNamespace(info=info)), START, Grid("float32", 23, 9.0), 1.0)
    survey = cast("Any", SimpleNamespace(parts=(part,)))
    for span, wanted in ((None, values), (some_span(7), new)):
        draft = SpanDraft(
            planned, survey, cast("Any", None), 1.0, np.zeros(POOLS), 0.0, 0.0, spans=(span,)
        )
        object.__setattr__(draft, "_rewritten", lambda *_: new)
        stretches = list(draft._stretches(part, np.zeros(POOLS)))
        np.testing.assert_array_equal(np.concatenate([s.old for s in stretches]), values)
        np.testing.assert_array_equal(np.concatenate([s.new for s in stretches]), wanted)
        places = planned.carriers.positions(0, planned.carriers.size)
        inside = (places >= START) & (places < START + ROWS * WIDTH)
        carried = np.concatenate([s.carried for s in stretches])
        np.testing.assert_array_equal(carried, wanted[places[inside] - START])
        begins = [int((places < START + low).sum()) for low in (0, 25, 26)]
        assert [s.first for s in stretches] == begins


def test_what_cannot_be_written_in_a_span_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = cast("Any", fake_plan())
    with pytest.raises(ParameterError, match="needs the base"):
        draft_in_span(planned)
    planned.base, planned.checkpoint, planned.tensors, planned.named = "base", None, (), True
    exact = SimpleNamespace(name="other", solver=lambda mark: object.__new__(ExactChange))
    monkeypatch.setattr(schemes, "of", lambda mark: exact)
    with pytest.raises(ParameterError, match="other is not written inside"):
        draft_in_span(planned)
    least = SimpleNamespace(name="own", solver=lambda mark: None)
    monkeypatch.setattr(schemes, "of", lambda mark: least)
    tensor = cast("Any", SimpleNamespace(name="w"))
    stays = SimpleNamespace(parts=[MarkedPart(tensor, 0, None, 0.0, "all values are the same")])
    monkeypatch.setattr(spanning, "survey", lambda *_, **__: stays)
    with pytest.raises(UnsuitableTensorError, match="all values are the same"):
        draft_in_span(planned)
