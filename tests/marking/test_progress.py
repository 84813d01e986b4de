"""Progress while models are read, and models that change meanwhile."""

from pathlib import Path

import pytest
from safetensors.numpy import save_file

import neuralmark
from neuralmark import Claimant, Key
from neuralmark.errors import CheckpointError
from tests.support.models import QUICK, gaussian, gaussian_model

Told = list[tuple[str, int, int]]


@pytest.fixture
def secret() -> Key:
    return Key.new(QUICK)


@pytest.fixture
def marked(secret: Key, tmp_path: Path) -> Path:
    model = gaussian_model(tmp_path / "m.safetensors")
    neuralmark.embed(model, secret, tmp_path / "marked.safetensors")
    return tmp_path / "marked.safetensors"


def rises(told: Told) -> None:
    """Every stage goes up to its end, in steps that only grow."""
    assert told
    for name in {name for name, _, _ in told}:
        done = [(now, most) for stage, now, most in told if stage == name]
        assert all(0 <= now <= most for now, most in done), name


def test_reading_and_marking_say_how_far_they_are(secret: Key, marked: Path) -> None:
    for action in (
        lambda told: neuralmark.verify(marked, secret, progress=told),
        lambda told: neuralmark.embed(marked, Key.new(QUICK), progress=told),
        lambda told: neuralmark.arbitrate(
            [Claimant("A", secret, marked), Claimant("B", Key.new(QUICK), marked)], progress=told
        ),
    ):
        heard: Told = []
        action(lambda name, now, most, heard=heard: heard.append((name, now, most)))
        rises(heard)


def touched(path: Path) -> object:
    """A progress that changes the file while it is read."""

    def tell(name: str, now: int, most: int) -> None:
        with path.open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"?")

    return tell


def test_a_model_that_changes_while_it_is_read(secret: Key, marked: Path) -> None:
    with pytest.raises(CheckpointError, match="changed while it was read; verify it again"):
        neuralmark.verify(marked, secret, progress=touched(marked))  # type: ignore[arg-type]
    parties = [Claimant("A", secret, marked), Claimant("B", Key.new(QUICK), marked)]
    with pytest.raises(CheckpointError, match="changed while it was read; begin again"):
        neuralmark.arbitrate(parties, progress=touched(marked))  # type: ignore[arg-type]


def test_a_model_without_the_claimed_tensors_has_no_place_for_the_mark(
    secret: Key, marked: Path, tmp_path: Path
) -> None:
    other, claim = tmp_path / "other.safetensors", f"{marked}.claim.json"
    save_file({"x.weight": gaussian(8, 8)}, other)
    parties = [Claimant("A", secret, marked, claim), Claimant("B", Key.new(QUICK), other)]
    ruling = neuralmark.arbitrate(parties)
    assert ruling.owner is None
    assert any("unrelated" in reason for reason in ruling.reasons)
