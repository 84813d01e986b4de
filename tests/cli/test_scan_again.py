"""`neuralmark scan` in a folder that is there: what is new, what differs, what is told."""

from pathlib import Path

import pytest

from neuralmark import Key
from tests.support.commands import call
from tests.support.models import gaussian_model
from tests.support.scans import keys_of, mark, models_in


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A folder of a key."""
    folder = tmp_path / "keys"
    folder.mkdir()
    for name, key in keys_of("a").items():
        key.save(folder / name, None)
    return folder


@pytest.fixture
def models(tmp_path: Path, keys: Path) -> Path:
    """A folder of two models, one of them marked."""
    folder = tmp_path / "models"
    mark(models_in(folder, 2)[1], Key.load(keys / "a.nmkey"))
    return folder


def test_watching_ends_with_0_only_if_something_new_was_verified(
    tmp_path: Path, keys: Path, models: Path
) -> None:
    words = ["scan", models, "--keys", keys, "-o", tmp_path / "out", "--jobs", 1, "--every", "1s"]
    once = [*words, "--rounds", 1]
    assert call(*once).code == 0
    done = call(*once)
    assert (done.code, done.out) == (1, "round 2: nothing new\n")
    assert call(*once, "--json").code == 1
    mark(gaussian_model(models / "late.safetensors", 700), Key.load(keys / "a.nmkey"))
    done = call(*words, "--rounds", 2)
    assert done.out.endswith("round 5: nothing new\n")
    assert done.code == 0, done  # the first of its two rounds found something
    gaussian_model(models / "dull.safetensors", 900)
    assert call(*once).code == 1


def test_results_need_a_folder(tmp_path: Path, keys: Path, models: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    words = ["scan", models, "--keys", keys, "--jobs", 1, "-o"]
    for out in (file, file / "below"):
        line = call(*words, out).failed(2, "OutputError")
        assert "choose another" in line
    assert file.read_text() == "mine"
    nowhere = tmp_path / "nowhere"
    nowhere.symlink_to(tmp_path / "none")
    call(*words, nowhere).failed(2, "OutputError")
    out = tmp_path / "out"
    assert call(*words, out).code == 0
    for page in (out / "verdicts").iterdir():
        page.unlink()
    (out / "verdicts").rmdir()
    (out / "verdicts").write_text("mine")
    assert "verdicts" in call(*words, out).failed(2, "OutputError")
