"""`neuralmark scan` in a folder that is there: what is new, what differs, what is told."""

from pathlib import Path

import pytest

from neuralmark import Key, Verdict
from neuralmark.cli import _scanned
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


def test_reasons_of_errors_are_printed(tmp_path: Path, keys: Path, models: Path) -> None:
    (models / "cut.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{bad")
    words = ["--keys", keys, "-o", tmp_path / "out", "--jobs", 1]
    done = call("scan", models, tmp_path / "nosuch*", *words)
    assert done.code == 0, done
    lines = done.out.splitlines()
    (cut,) = [line for line in lines if line.startswith(str(models / "cut.safetensors"))]
    assert "MalformedError" in cut
    (none,) = [line for line in lines if line.startswith(str(tmp_path / "nosuch*"))]
    assert none.endswith("there is no such file or folder")
    assert none.count("nosuch*") == 1
    told = call("scan", models, tmp_path / "nosuch*", *words, "--json").json["errors"]
    assert [each["error"] for each in told] == ["MalformedError", "CheckpointError"]
    assert told[1]["target"] == str(tmp_path / "nosuch*")
    assert "no such file" in told[1]["why"]


def test_only_the_first_errors_are_printed(tmp_path: Path, keys: Path, models: Path) -> None:
    many = [tmp_path / f"none{i:02}.npz" for i in range(_scanned.MOST_ERRORS + 3)]
    done = call("scan", models, *many, "--keys", keys, "-o", tmp_path / "out", "--jobs", 1)
    assert done.out.count("there is no such file") == _scanned.MOST_ERRORS
    assert "and 3 more, on the page" in done.out


def test_json_says_where_verdicts_are(
    tmp_path: Path, keys: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["scan", models, "--keys", keys, "-o", tmp_path / "out", "--jobs", 1, "--json"]
    first = call(*words).json
    (found,) = first["findings"]
    assert Verdict.load(found["verdict_file"]).matched == found["matched"]
    assert "<html" in Path(found["verdict_page"]).read_text()
    assert "verdict" not in found
    again = call(*words).json
    assert again["sandbox"] == first["sandbox"]
    assert "seccomp" in again["sandbox"]
    monkeypatch.setattr(_scanned, "MOST_PAGES", 0)
    (found,) = call(*words).json["findings"]
    assert (found["verdict_file"], found["verdict_page"]) == (None, None)


def test_verdicts_of_later_rounds_have_later_numbers(
    tmp_path: Path, keys: Path, models: Path
) -> None:
    words = ["scan", models, "--keys", keys, "-o", tmp_path / "out", "--jobs", 1, "--json"]
    once = [*words, "--every", "1s", "--rounds", 1]
    assert call(*once).json["findings"][0]["verdict_file"].endswith("0001.json")
    late = mark(gaussian_model(models / "late.safetensors", 700), Key.load(keys / "a.nmkey"))
    (found,) = call(*once).json["findings"]
    assert found["verdict_file"] == str(tmp_path / "out" / "verdicts" / "0002.json")
    assert Verdict.load(found["verdict_file"]).model == str(late) == found["target"]


def test_models_that_were_added_are_noted(tmp_path: Path, keys: Path, models: Path) -> None:
    words = ["scan", models, "--keys", keys, "-o", tmp_path / "out", "--jobs", 1]
    call(*words)
    gaussian_model(models / "late.safetensors", 700)
    done = call(*words)
    assert "1 model was added" in done.err
    assert "--force" in done.err
    assert "--every" in done.err
    told = call(*words, "--json")
    assert told.json["added"] == 1
    done = call(*words, "--force")
    assert "was added" not in done.err
    assert "1 mark x 3 targets" in done.out


def test_times_and_dates_are_explained(tmp_path: Path, keys: Path, models: Path) -> None:
    words = ["scan", models, "--keys", keys, "-o", tmp_path / "out", "--jobs", 1]
    line = call(*words, "--since", "yesterday").failed(2, "BadParameter")
    assert "2026-11-01" in line
    assert "7d" in line
    assert "a number alone is seconds" in " ".join(call("scan", "--help").out.split())
    assert call(*words, "--every", "5", "--rounds", 1).code == 0


def test_keys_that_are_not_there(tmp_path: Path, models: Path) -> None:
    words = ["scan", models, "-o", tmp_path / "out", "--keys"]
    line = call(*words, tmp_path / "nosuch").failed(3, "KeyFileError")
    assert line.endswith("nosuch: there is no such file or folder")
    assert "there is no key file" in call(*words, models).failed(3, "KeyFileError")


def test_a_link_to_nothing_is_called_so(tmp_path: Path, keys: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "gone.safetensors").symlink_to(tmp_path / "none.safetensors")
    (tmp_path / "alone").symlink_to(tmp_path / "none")
    words = ["--keys", keys, "-o", tmp_path / "out", "--jobs", 1, "--json"]
    told = call("scan", folder, tmp_path / "alone", *words).json["errors"]
    assert [each["target"] for each in told] == [
        str(folder / "gone.safetensors"),
        str(tmp_path / "alone"),
    ]
    assert all("a link to nothing" in each["why"] for each in told), told
