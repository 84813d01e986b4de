"""Names of files that are no text: they are read, found, and written so that all can read them."""

import io
import json
import os
import shutil
from pathlib import Path

import pytest

from neuralmark import Key, ScanOptions, scan
from neuralmark.scanning.contract import kept_name, readable, restored_name
from neuralmark.scanning.targets import targets_of
from tests.support.commands import call
from tests.support.scans import ONE, keys_of, mark, models_in

ODD = os.fsdecode(b"latin\xfc.safetensors")
SHOWN = "latin\\xfc.safetensors"


def case(folder: Path) -> tuple[dict[str, Key], Path]:
    """A marked model under a name of another encoding, one that is cut off, and a plain one."""
    keys = keys_of("a")
    models = models_in(folder, 2)
    marked = mark(models[1], keys["a.nmkey"])
    shutil.move(marked, folder / ODD)
    (folder / os.fsdecode(b"cut\xff.safetensors")).write_bytes(b"\x10\0\0\0\0\0\0\0{bad")
    return keys, folder


def strictly(data: bytes) -> object:
    """JSON as strict parsers take it: no half of a character, escaped or not."""
    value = json.loads(data.decode("utf-8"))
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_mark_is_found_whatever_the_name(tmp_path: Path, form: str) -> None:
    keys, models = case(tmp_path / "models")
    chosen = ScanOptions(jobs=1, form=form)  # type: ignore[arg-type]
    result = scan([models], keys, tmp_path / "out", options=chosen)
    assert result.counts == {"error": 1, "nothing": 1, "verified": 1}
    (found,) = [row for row in result.rows() if row.found]
    assert found.target == str(models / SHOWN)
    (bad,) = [row for row in result.rows() if row.error]
    assert bad.target.endswith("cut\\xff.safetensors")
    assert bad.error == "MalformedError"
    for file in (tmp_path / "out").glob("*.jsonl"):
        for line in file.read_bytes().splitlines():
            strictly(line)


def test_the_name_itself_may_be_given(tmp_path: Path) -> None:
    keys, models = case(tmp_path / "models")
    assert scan([models / ODD], keys, tmp_path / "out", options=ONE).verified
    listed = tmp_path / "list"
    listed.write_bytes(os.fsencode(models / ODD) + b"\n")
    assert scan([], keys, tmp_path / "more", lists=[listed], options=ONE).verified


def test_lists_from_a_pipe_may_hold_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\nlatin\xfc\n"), "utf-8"))
    assert list(targets_of([], ["-"])) == ["one", os.fsdecode(b"latin\xfc")]


def test_watching_goes_on(tmp_path: Path) -> None:
    keys, models = case(tmp_path / "models")
    watching = ScanOptions(jobs=1, every=0.01, rounds=2)
    result = scan([models], keys, tmp_path / "out", options=watching)
    assert (result.round, result.new) == (2, {})
    assert result.counts == {"error": 1, "nothing": 1, "verified": 1}


def test_what_is_printed_and_shown_can_be_read(tmp_path: Path) -> None:
    keys, models = case(tmp_path / "models")
    folder = tmp_path / os.fsdecode(b"keys\xfc")
    folder.mkdir()
    keys["a.nmkey"].save(folder / os.fsdecode(b"a\xfc.nmkey"), None)
    out = tmp_path / os.fsdecode(b"out\xfc")
    words = ["scan", models, "--keys", folder, "-o", out, "--jobs", 1]
    done = call(*words)
    assert done.code == 0, done
    assert SHOWN in done.out
    done.out.encode()
    done.err.encode()
    told = strictly(call(*words, "--json").out.encode())
    assert isinstance(told, dict)
    assert told["findings"][0]["target"] == str(models / SHOWN)
    assert told["findings"][0]["key_name"] == "a\\xfc.nmkey"
    page = (out / "index.html").read_bytes().decode("utf-8")
    assert SHOWN in page.replace("<wbr>", "")
    strictly((out / "verdicts" / "0001.json").read_bytes())
    verdict = [out / "verdicts" / "0001.json", models / ODD, "--key", next(folder.iterdir())]
    again = call("recheck", *verdict, "--among", 3)
    assert again.code == 0, again


@pytest.mark.parametrize("name", ["plain", "a\udcfcb", "\ud800", "\0", "\0ab", ""])
def test_names_are_kept_as_they_are(name: str) -> None:
    kept_name(name).encode("utf-8")
    assert restored_name(kept_name(name)) == name
    readable(name).encode("utf-8")
    assert readable(readable(name)) == readable(name)
