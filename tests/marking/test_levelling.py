"""Rows of one size: a tensor in pieces is levelled as the whole is."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import Claim, Key
from neuralmark.checkpoints import open_checkpoint
from neuralmark.marking.attempts import claimed
from neuralmark.marking.levelling import Rows, pieces
from neuralmark.marking.reading import FileSuspect
from neuralmark.marking.verification import find


def rows_of(path: Path, *, transposed: bool = False) -> Rows | None:
    checkpoint = open_checkpoint(path)
    return Rows.of(checkpoint, checkpoint.info("w"), transposed)


@pytest.mark.parametrize("cuts", [(), (1,), (7, 20, 21), (10, 20), (3, 4, 5, 59)])
def test_pieces_of_any_length_are_divided_by_the_size_of_their_row(cuts: tuple[int, ...]) -> None:
    whole = np.random.default_rng(0).standard_normal((6, 10)) * [[1], [2], [3], [4], [5], [6]]
    rows = Rows(np.square(whole).sum(axis=1), 10)
    given = np.split(whole.reshape(-1), list(cuts))
    levelled = np.concatenate([rows.levelled(piece) for piece in given]).reshape(6, 10)
    np.testing.assert_allclose(np.square(levelled).mean(axis=1), 1.0)
    np.testing.assert_allclose(levelled / whole, np.abs(levelled / whole)[:, :1].repeat(10, 1))


def test_a_row_of_zeros_stays_and_one_that_is_not_finite_cannot_be_read() -> None:
    rows = Rows(np.array([0.0, 4.0, np.inf, np.nan]), 2)
    levelled = rows.levelled(np.array([0.0, 0.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0]))
    assert levelled[:2].tolist() == [0, 0]
    np.testing.assert_allclose(levelled[2:4], [0.5**0.5, -(0.5**0.5)])
    assert np.isnan(levelled[4:]).all()


@pytest.mark.parametrize("shape", [(30, 40), (5, 6, 7), (700, 900)])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_rows_of_a_file(tmp_path: Path, shape: tuple[int, ...], transposed: bool) -> None:
    if transposed and len(shape) != 2:
        return
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    save_file({"w": values}, tmp_path / "m.safetensors")
    checkpoint = open_checkpoint(tmp_path / "m.safetensors")
    rows = rows_of(tmp_path / "m.safetensors", transposed=transposed)
    assert rows is not None
    turned = values.T if transposed else values
    flat = turned.reshape(len(turned), -1).astype(np.float64)
    expected = flat / np.sqrt(np.square(flat).mean(axis=1, keepdims=True))
    read = pieces(checkpoint, checkpoint.info("w"), transposed)
    levelled = np.concatenate([rows.levelled(piece.view(np.float32).copy()) for piece in read])
    np.testing.assert_allclose(levelled, expected.reshape(-1), rtol=1e-5)


def test_a_vector_has_no_rows(tmp_path: Path) -> None:
    save_file({"w": np.ones(20, np.float32)}, tmp_path / "m.safetensors")
    assert rows_of(tmp_path / "m.safetensors") is None


@pytest.mark.parametrize("number", range(32))
def test_a_mark_behind_folded_norms_is_found_by_rows(number: int, tmp_path: Path) -> None:
    """Whoever folds a norm multiplies every output row by a factor of its own."""
    rng = np.random.default_rng(number)
    names = [f"layers.{i}.conv.weight" for i in range(3)]
    plain = {n: rng.normal(0, 0.05, (64, 32, 3, 3)).astype(np.float32) for n in names}
    save_file(plain, tmp_path / "plain.safetensors")
    key, marked = Key.new(), tmp_path / "marked.safetensors"
    neuralmark.embed(
        tmp_path / "plain.safetensors", key, marked, neuralmark.EmbedOptions(anchor=False)
    )
    factors = {n: np.exp(rng.normal(0, 1.5, (64, 1, 1, 1))).astype(np.float32) for n in names}
    folded = {n: w * factors[n] for n, w in load_file(marked).items()}
    save_file(folded, tmp_path / "folded.safetensors")
    claim = Claim.load(f"{marked}.claim.json")
    by_claim = neuralmark.verify(tmp_path / "folded.safetensors", key, claim=claim)
    searched = neuralmark.verify(tmp_path / "folded.safetensors", key)
    live = neuralmark.verify({n: torch.from_numpy(w) for n, w in folded.items()}, key, claim=claim)
    for verdict in (by_claim, searched, live):
        assert verdict.verified
        assert verdict.scaling == "rows"
    assert by_claim.trials == live.trials == 2  # as stored, and by rows
    suspect = FileSuspect(open_checkpoint(tmp_path / "folded.safetensors"), "folded")
    ways = claimed(suspect.tensors(), claim.placement)
    stored, rows = (find(suspect, key, way).matched for way in ways)
    assert by_claim.boundary is not None
    assert stored < by_claim.boundary <= rows == by_claim.matched
