"""`neuralmark lineage`: what it prints, and with which exit code."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.support import architectures
from tests.support.commands import call
from tests.support.models import gaussian_model


@pytest.fixture
def moved(model: Path, tmp_path: Path) -> Path:
    """The model with the rows of its layers in another order."""
    path = tmp_path / "moved.safetensors"
    save_file({n: np.ascontiguousarray(v[::-1]) for n, v in load_file(model).items()}, path)
    return path


def test_a_copy_and_a_stranger(model: Path, moved: Path, tmp_path: Path) -> None:
    found = call("lineage", model, moved)
    assert (found.code, found.out.splitlines()[0]) == (0, "RELATED")
    assert "compared:" not in found.out
    stranger = call("lineage", model, gaussian_model(tmp_path / "stranger.safetensors", seed=50))
    assert (stranger.code, stranger.out.splitlines()[0]) == (1, "NO SIGN OF A RELATION")


def test_too_low_a_limit_is_no_stranger(model: Path, tmp_path: Path) -> None:
    page, moved, rng = tmp_path / "page.html", tmp_path / "shuffled", np.random.default_rng(0)
    save_file({n: v[rng.permutation(len(v))] for n, v in load_file(model).items()}, moved)
    args = ("lineage", model, moved, "--align-limit", 100)
    found = call(*args, "--report", page)
    assert (found.code, found.out.splitlines()[0]) == (3, "COULD NOT BE COMPARED")
    assert "2 too large to align (raise --align-limit to 16384)" in found.out
    assert "too large to align: raise --align-limit to 16384" in found.out
    assert "0.000 alike" not in found.out
    assert "<h1>Could not be compared</h1>" in page.read_text()
    assert "no relation shows says nothing" in page.read_text()
    told = call(*args, "--json")
    assert (told.code, told.json["related"], told.json["compared"]) == (3, False, 0)
    assert "align_limit to 16384" in told.json["undecided"]
    assert call("lineage", model, moved, "--align-limit", 16384).code == 0


def test_numbers_that_are_none_are_no_stranger(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    save_file({n: np.full_like(v, np.nan) for n, v in load_file(model).items()}, broken)
    found = call("lineage", model, broken)
    assert (found.code, found.out.splitlines()[0]) == (3, "COULD NOT BE COMPARED")
    assert "2 with NaN or infinity" in found.out


def test_what_could_be_compared_counts(model: Path, moved: Path, tmp_path: Path) -> None:
    """The larger of two layers can be compared, the other is broken."""
    tensors = load_file(moved)
    tensors["layer2.weight"][0, 0] = np.inf
    save_file(tensors, tmp_path / "half.safetensors")
    found = call("lineage", model, tmp_path / "half.safetensors")
    assert found.code == 0
    assert "compared:            57.1% of the weights; of 2 tensors 1 with NaN" in found.out


def test_heads_that_do_not_fit(model: Path, tmp_path: Path) -> None:
    architectures.llama().save_pretrained(tmp_path / "llama")  # type: ignore[operator]
    call("lineage", tmp_path / "llama", model, "--heads", 7).failed(2, "ParameterError")
    call("lineage", tmp_path / "llama", model, "--heads", 5000).failed(2, "ParameterError")
