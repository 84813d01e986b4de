"""neuralmark report: the page of a kept record is the page that its command wrote."""

import json
from pathlib import Path

import pytest

from neuralmark import Key, embed
from tests.support.checks import content_of
from tests.support.commands import call
from tests.support.models import plain_key
from tests.support.paths import RELEASE


def kept(path: Path, *words: object) -> Path:
    """What a command prints with --json, in a file."""
    result = call(*words, "--json")
    json.loads(result.out)
    path.write_text(result.out)
    return path


def again(record: Path, page: Path) -> bytes:
    """The page drawn from the record alone."""
    result = call("report", record, "-o", page)
    assert (result.code, result.err) == (0, ""), result
    return page.read_bytes()


@pytest.mark.parametrize("view", [[], ["--public"]])
def test_verdicts(marked: Path, key: Path, tmp_path: Path, view: list[str]) -> None:
    page = tmp_path / "then.html"
    words = ("verify", marked, "--key", key, "--full-digest", "--owner", "Äcme", "--report", page)
    record = kept(tmp_path / "v.json", *words, *view)
    then = page.read_bytes()
    date = json.loads(record.read_text())["date"]
    assert date.encode() in then
    for gone in (marked, key):
        gone.unlink()
    assert again(record, tmp_path / "now.html") == then


def test_cards(marked: Path, key: Path, tmp_path: Path) -> None:
    page = tmp_path / "then.html"
    only = ("--only", "noise", "--only", "detect", "--only", "finetune", "--jobs", "1")
    words = ("attack", "suite", marked, "--key", key, *only, "--report", page)
    record = kept(tmp_path / "c.json", *words)
    assert again(record, tmp_path / "now.html") == page.read_bytes()


def test_rulings(marked: Path, key: Path, tmp_path: Path) -> None:
    thief, page = plain_key(tmp_path / "thief.nmkey"), tmp_path / "then.html"
    stolen = tmp_path / "stolen.safetensors"
    embed(marked, Key.load(thief), stolen)
    parties = ("--claimant", "Acme", key, marked, "--claimant", "Bandit", thief, stolen)
    words = ("arbitrate", *parties, "--disputed", stolen, "--commitment", "Acme", "2024-05-01")
    record = kept(tmp_path / "r.json", *words, "--report", page)
    assert again(record, tmp_path / "now.html") == page.read_bytes()


@pytest.mark.parametrize(
    ("name", "noun"),
    [
        ("verdict", "verdict"),
        ("public", "public verdict"),
        ("card", "card"),
        ("ruling", "ruling"),
    ],
)
def test_json_says_what_it_was(tmp_path: Path, name: str, noun: str) -> None:
    out = tmp_path / "page.html"
    told = call("report", RELEASE / f"{name}.json", "-o", out, "--json").json
    assert told == {"record": noun, "file": str(RELEASE / f"{name}.json"), "page": str(out)}
    assert out.read_text().startswith("<!DOCTYPE html>")


def test_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    record, out = tmp_path / "v.json", tmp_path / "page.html"
    record.write_bytes((RELEASE / "verdict.json").read_bytes())
    out.write_text("mine")
    result = call("report", record, "-o", out)
    assert "--force" in result.failed(2, "OutputError")
    assert out.read_text() == "mine"
    assert call("report", record, "-o", out, "--force").code == 0
    assert "<h1>Verified</h1>" in out.read_text()
    before = content_of(tmp_path)
    assert "one of the inputs" in call("report", record, "-o", record, "--force").failed(
        2, "OutputError"
    )
    assert content_of(tmp_path) == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "none of NeuralMark's records"),
        ("[1, 2]", "none of NeuralMark's records"),
        ("{", "not valid JSON"),
        ('{"format": "neuralmark-card/7"}', "unknown version"),
        ('{"format": "neuralmark-claim", "version": 1}', "a claim, which has no page"),
        ('{"format": "neuralmark-ruling/1"}', "is damaged"),
    ],
)
def test_what_is_no_record(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "r.json").write_text(content)
    result = call("report", tmp_path / "r.json", "-o", tmp_path / "page.html")
    assert words in result.failed(3, "RecordError")
    assert not (tmp_path / "page.html").exists()
