"""Drafts part by part: which weights move by how much, and the bytes that this gives."""

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as torch_save

from neuralmark import EmbedOptions, Key, embed
from neuralmark.checkpoints import open_checkpoint
from neuralmark.core.carriers import Carriers
from neuralmark.core.grid import Grid
from neuralmark.core.imprint import LeastChange, goal_of
from neuralmark.errors import InfeasibleError, TooFewCarriersError, UnreadableError
from neuralmark.marking import drafting
from neuralmark.marking.anchored import _Pools
from neuralmark.marking.drafting import Draft, Stretch, _moved, choose_strength, draft, plan
from neuralmark.marking.placement import catalogue
from neuralmark.marking.reading import Attempt, _taken, read_marked
from neuralmark.marking.surveying import Base, MarkedPart, Piece, movable, survey
from neuralmark.marking.verification import verify
from neuralmark.marking.writing import target_of
from tests.support.models import QUICK, gaussian, gaussian_model


class NotedGrid:
    """Moves by the whole shift, and notes where."""

    def __init__(self) -> None:
        self.places: list[int] = []

    def moved(self, values: Any, shift: Any, noise: Any, places: Any) -> Any:
        self.places = places.tolist()
        assert noise.shape == values.shape
        return values + shift


def test_weights_move_by_the_shift_of_their_pool_where_they_are() -> None:
    """Carriers 8 to 11 of 4 pools, 100 weights behind the beginning of their tensor."""
    planned: Any = SimpleNamespace(carriers=Carriers.everything(400, 4), noise=5)
    grid = NotedGrid()
    part = MarkedPart(cast("Any", None), 20, cast("Any", grid), 3.0)
    values = np.array([1.0, 2.0, 3.0, 4.0])
    at, shifts = np.array([0, 2, 5, 6]), np.array([0.5, 1.0, -1.0, 2.0])
    piece = Piece(np.zeros(0, np.uint8), 8, at, 100, values)
    assert _moved(planned, part, piece, shifts).tolist() == [2.5, 5.0, 0.0, 10.0]
    assert grid.places == [100, 102, 105, 106]
    beside = np.array([1.0, 9.0, 9.0, 4.0])
    kept = _moved(planned, part, replace(piece, base=beside), shifts)
    assert kept.tolist() == [1.0, 5.0, 0.0, 4.0]
    assert _moved(planned, replace(part, grid=None), piece, shifts) is values


@pytest.mark.parametrize("writeable", [True, False])
def test_new_bytes_are_the_old_ones_but_for_what_moves(writeable: bool) -> None:
    old = np.arange(6, dtype=np.float32)
    raw = old.view(np.uint8).copy()
    raw.flags.writeable = writeable
    new = np.array([10.0, 30.0], np.float32)
    stretch = Stretch(raw, np.array([1, 3]), old[[1, 3]], new, 0, new)
    bare = SimpleNamespace(covered=False)
    fake: Any = SimpleNamespace(shifts=None, _stretches=lambda part, shifts: [stretch], plan=bare)
    info = SimpleNamespace(info=SimpleNamespace(dtype="F32"))
    part = MarkedPart(cast("Any", info), 0, Grid("float32", 23, 100.0), 1.0)
    (data,) = Draft._new_bytes(fake, part)
    assert np.frombuffer(data, np.float32).tolist() == [0, 10, 2, 30, 4, 5]


def test_a_cover_moves_all_other_weights_as_the_mark_does(tmp_path: Path) -> None:
    key, path = Key.new(QUICK), gaussian_model(tmp_path / "m.safetensors")
    drafted = draft(plan(open_checkpoint(path), key))
    covered = replace(drafted, plan=replace(drafted.plan, covered=True))
    before = load_file(path)
    moved, marked = {}, {}
    for name in ("layer1.weight", "layer2.weight"):
        whole, bare = (b"".join(each.edits()[name]()) for each in (covered, drafted))
        assert b"".join(covered.edits()[name]()) == whole  # the same whenever it is asked for
        old = before[name].reshape(-1)
        marked[name] = np.frombuffer(bare, np.float32) - old
        moved[name] = np.frombuffer(whole, np.float32) - old
        carriers = marked[name] != 0
        assert np.array_equal(moved[name][carriers], marked[name][carriers])
        assert (moved[name] != 0).mean() > 0.999
        beside, along = moved[name][~carriers].std(), marked[name][carriers].std()
        assert beside == pytest.approx(along, rel=0.1)


def test_the_digests_of_a_draft_are_those_of_the_file_it_makes(tmp_path: Path) -> None:
    key, path = Key.new(QUICK), gaussian_model(tmp_path / "m.safetensors")
    drafted = draft(plan(open_checkpoint(path), key))
    done = embed(path, key, tmp_path / "out.safetensors", EmbedOptions(anchor=False))
    assert done.verdict is not None
    assert done.verdict.checkpoint_digest.files is None  # of whole files nothing is said unasked
    made = load_file(tmp_path / "out.safetensors")
    assert drafted.marked_digests() == {
        name: hashlib.sha256(made[name].tobytes()).hexdigest()
        for name in ("layer1.weight", "layer2.weight")
    }


@pytest.mark.parametrize("based", [True, False])
@pytest.mark.parametrize("strength", [None, 1.5])
def test_a_mark_is_hidden_unless_the_owner_chose_its_strength(
    based: bool, strength: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = gaussian_model(tmp_path / "base.safetensors")
    tuned = {n: v + gaussian(*v.shape, seed=9) / 5 for n, v in load_file(base).items()}
    save_file(tuned, tmp_path / "m.safetensors")
    asked: list[float] = []

    def hidden(found: Any, solver: Any, most: float, seed: int) -> float:
        asked.append(most)
        return 1.25

    monkeypatch.setattr(drafting, "hidden_strength", hidden)
    monkeypatch.setattr(drafting, "choose_strength", lambda solver, reading, *_: strength or 1.75)
    monkeypatch.setattr(drafting, "_within_budget", lambda drafted, budget: drafted)
    public = open_checkpoint(base) if based else None
    planned = plan(open_checkpoint(tmp_path / "m.safetensors"), Key.new(QUICK), base=public)
    found = draft(planned, strength=strength)
    assert asked == ([1.75] if based and strength is None else [])
    assert found.strength == (1.25 if asked else strength or 1.75)


def test_few_weights_at_the_bases_values_may_move_too() -> None:
    """Only where many are, a moved one shows."""
    values, places = np.array([1.0, 2.0, 3.0], np.float32), np.arange(3)
    base = np.array([1.0, 5.0, 3.0], np.float32)
    grid, tensor = Grid("float32", 23, 100.0), cast("Any", None)
    for sparse, given, free in (
        *((True, base, [False, True, False]), (False, base, [True] * 3)),
        (True, None, [True] * 3),
    ):
        update = cast("Any", SimpleNamespace(sparse=sparse))
        part = MarkedPart(tensor, 0, grid, 1.0, update=update)
        assert movable(part, values, places, given).tolist() == free
    assert movable(MarkedPart(tensor, 0, grid, 1.0), values, places, base).tolist() == [True] * 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("room", [1, 2, 5])
def test_values_are_taken_exactly_whatever_room_there_is(dtype: Any, room: int) -> None:
    values, at = np.array([0.1, 0.2, 0.3], dtype), np.array([2, 0])
    buffer = np.zeros(room, np.float32)
    taken = _taken(values, at, buffer)
    assert taken.dtype == dtype
    np.testing.assert_array_equal(taken, values[at])
    used = dtype == np.float32 and room >= 2
    assert np.shares_memory(taken, buffer) == used


def test_what_is_written_has_the_margin_that_was_asked_for(tmp_path: Path) -> None:
    """In a coarse type too, where rounding takes some of it and more has to be added."""
    table = {"a.weight": torch.from_numpy(gaussian(128, 128)).bfloat16()}
    torch_save(table, tmp_path / "m.safetensors")
    drafted = draft(plan(open_checkpoint(tmp_path / "m.safetensors"), Key.new(QUICK)), strength=1.0)
    (pieces,) = drafted.edits().values()
    words = np.frombuffer(b"".join(pieces()), np.uint16).astype(np.uint32) << 16
    carriers = drafted.plan.carriers
    chosen = words.view(np.float32)[carriers.positions(0, carriers.size)].astype(np.float64)
    margins = drafted.solver.margins(chosen.reshape(-1, carriers.pools).mean(axis=0))
    goal = goal_of(drafted.reading.pooled, 1.0)
    assert goal * (1 - 1e-5) <= margins.min() <= 1.2 * goal


def test_a_budget_that_buys_nothing_is_told_what_the_weakest_mark_takes(tmp_path: Path) -> None:
    path, key = gaussian_model(tmp_path / "m.safetensors"), Key.new(QUICK)
    planned = plan(open_checkpoint(path), key)
    found = survey(planned.checkpoint, planned.tensors, planned.carriers)
    solver = LeastChange(planned.mark)
    least = solver.cost(found.reading.pooled, 0.0) / found.reading.norm
    with pytest.raises(InfeasibleError, match=f"by {100 * least:.2f} %"):
        choose_strength(solver, found.reading, None, 1e-6)


@pytest.mark.parametrize("shape", [(1, 4097), (4097, 1), (4097,)])
def test_one_row_or_one_column_has_no_part_of_low_rank(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    base = gaussian(*shape)
    tuned = base + gaussian(*shape, seed=1) / 10
    save_file({"w": base}, tmp_path / "base.safetensors")
    save_file({"w": tuned}, tmp_path / "m.safetensors")
    made = open_checkpoint(tmp_path / "m.safetensors")
    public = Base.of(open_checkpoint(tmp_path / "base.safetensors"))
    (part,) = survey(made, catalogue(made), Carriers.everything(4097, 17), base=public).parts
    assert part.update is not None
    size = np.sqrt(np.square(tuned - base, dtype=np.float64).mean())
    assert part.reach == part.update.size == pytest.approx(size)


def test_with_one_carrier_a_pool_the_pools_are_the_weights(tmp_path: Path) -> None:
    values = gaussian(5, 7)
    save_file({"w": values}, tmp_path / "m.safetensors")
    checkpoint, carriers = open_checkpoint(tmp_path / "m.safetensors"), Carriers.everything(35, 35)
    (tensor,) = catalogue(checkpoint)
    attempt = Attempt((("w", (5, 7)),), (tensor,), "names")
    restored = _Pools(carriers)
    restored.add(None, values, 0)
    for reading in (
        *(read_marked(checkpoint, attempt, carriers), restored.joined((1.0,))),
        survey(checkpoint, [tensor], carriers).reading,
    ):
        np.testing.assert_allclose(reading.pooled, values.reshape(-1), rtol=1e-6)
        assert reading.within == 0


def test_a_model_that_cannot_be_read_is_marked_in_named_tensors_only(tmp_path: Path) -> None:
    table: dict[str, Any] = {
        "a.weight": gaussian(128, 128),
        "b.qweight": np.ones((1024, 1024), np.int8),
        "b.scales": gaussian(1024),
    }
    save_file(table, tmp_path / "m.safetensors")
    checkpoint, key = open_checkpoint(tmp_path / "m.safetensors"), Key.new(QUICK)
    with pytest.raises(UnreadableError, match="cannot be read"):
        plan(checkpoint, key)
    named = plan(checkpoint, key, ["a.weight"])
    assert [tensor.name for tensor in named.tensors] == ["a.weight"]
    assert named.quantised == 1


def test_what_the_same_key_left_beside_is_written_anew(tmp_path: Path) -> None:
    path, key = gaussian_model(tmp_path / "m.safetensors"), Key.new(QUICK)
    out = tmp_path / "out.safetensors"
    embed(path, key, out)
    beside = [Path(f"{out}.claim.json"), Path(f"{out}.anchor")]
    out.unlink()
    again = embed(gaussian_model(tmp_path / "other.safetensors", seed=5), key, out)
    assert [again.claim_file, again.anchor_file] == [str(file) for file in beside]
    assert verify(out, key).verified


def test_an_output_may_be_named_by_a_text(tmp_path: Path) -> None:
    target = target_of(tmp_path / "m", str(tmp_path / "o"), in_place=False, overwrite=False)
    assert target == tmp_path / "o"


def test_a_model_of_small_tensors_has_too_few_carriers(tmp_path: Path) -> None:
    save_file({"a.bias": gaussian(100)}, tmp_path / "m.safetensors")
    with pytest.raises(TooFewCarriersError, match="no tensor is suitable"):
        plan(open_checkpoint(tmp_path / "m.safetensors"), Key.new(QUICK))
