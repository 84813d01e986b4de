"""The owner's own evaluation decides how strong a mark may be."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import neuralmark
from neuralmark import EmbedOptions, Key
from neuralmark.errors import CheckFailedError
from tests.support.checks import content_of
from tests.support.models import SMALL, saved


def changed(candidate: Path, source: Path) -> float:
    """How much a candidate was changed, relative to the weights."""
    new, old = (load_file(path)["layer.weight"] for path in (candidate, source))
    return float(np.linalg.norm(new - old) / np.linalg.norm(old))


@pytest.mark.parametrize("named", [False, True])
def test_a_strength_that_fails_is_lowered_until_it_passes(tmp_path: Path, named: bool) -> None:
    source, key, seen = saved(tmp_path / "m.safetensors"), Key.new(SMALL), list[float]()
    usual = neuralmark.embed(source, key)
    half = neuralmark.embed(source, key, options=EmbedOptions(strength=usual.strength / 2))
    most = (usual.change_relative + half.change_relative) / 2

    def check(candidate: Path) -> bool:
        seen.append(changed(candidate, source))
        return seen[-1] < most

    options = EmbedOptions(check=check, strength=usual.strength if named else None)
    found = neuralmark.embed(source, key, tmp_path / "o.safetensors", options=options)
    assert usual.strength / 2 < found.strength < usual.strength
    assert 0.95 * most < found.change_relative < most
    assert found.change_relative == pytest.approx(max(s for s in seen if s < most), rel=1e-3)


def test_a_check_that_always_passes_takes_sixteen_times_the_strength(tmp_path: Path) -> None:
    source, key = saved(tmp_path / "m.safetensors"), Key.new(SMALL)
    usual, out = neuralmark.embed(source, key).strength, tmp_path / "o.safetensors"
    found = neuralmark.embed(source, key, out, options=EmbedOptions(check=lambda path: True))
    assert found.strength == pytest.approx(16 * usual)
    fixed = EmbedOptions(check=lambda path: True, strength=1.5)
    assert neuralmark.embed(source, key, out, overwrite=True, options=fixed).strength == 1.5


def test_a_check_that_never_passes_leaves_everything_as_it_was(tmp_path: Path) -> None:
    source = saved(tmp_path / "m.safetensors")
    before, candidates = content_of(tmp_path), list[Path]()

    def check(candidate: Path) -> bool:
        candidates.append(candidate)
        return False

    with pytest.raises(CheckFailedError, match="not even strength"):
        neuralmark.embed(
            source, Key.new(SMALL), tmp_path / "o.safetensors", options=EmbedOptions(check=check)
        )
    assert len(candidates) == 5
    assert content_of(tmp_path) == before
