"""Journals that nobody's crash has left: they may name their own checkpoint and nothing else."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from neuralmark.core.encoding import enc
from tests.support.checks import content_of
from tests.support.commands import call
from tests.support.models import sharded_model


def journal(path: Path, header: Any, old: bytes = b"", magic: bytes = b"NMJRNL1\n") -> Path:
    """A journal whose digest is right."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = magic + enc(text) + old
    path.write_bytes(body + hashlib.sha256(body).digest())
    return path


@pytest.fixture
def header(marked: Path) -> dict[str, Any]:
    return {
        "ranges": [[marked.name, 8, 4]],
        "claim_file": f"{marked.name}.claim.json",
        "claim": Path(f"{marked}.claim.json").read_text(),
        "anchor": None,
    }


DRAFT = f".{'0' * 16}.nmdraft.marked.safetensors.anchor"


def test_an_anchor_gets_its_name(marked: Path, header: dict[str, Any]) -> None:
    draft, place = marked.with_name(DRAFT), Path(f"{marked}.anchor")
    place.unlink()
    draft.write_text("sealed")
    named = header | {"anchor": [DRAFT, place.name]}
    journal(Path(f"{marked}.nmjournal.done"), named, marked.read_bytes()[8:12])
    assert call("recover", marked).code == 0
    assert place.read_text() == "sealed"
    assert not draft.exists()


def test_an_anchor_of_a_mark_that_was_undone_goes_too(marked: Path, header: dict[str, Any]) -> None:
    draft = marked.with_name(DRAFT)
    draft.write_text("sealed")
    before = Path(f"{marked}.anchor").read_bytes()
    named = header | {"anchor": [DRAFT, f"{marked.name}.anchor"]}
    journal(Path(f"{marked}.nmjournal"), named, marked.read_bytes()[8:12])
    assert call("recover", marked).code == 0
    assert not draft.exists()
    assert Path(f"{marked}.anchor").read_bytes() == before


def test_the_form_itself_is_right(marked: Path, header: dict[str, Any]) -> None:
    before = marked.read_bytes()
    journal(Path(f"{marked}.nmjournal"), header, b"abcd")
    assert call("recover", marked).code == 0
    assert marked.read_bytes() == before[:8] + b"abcd" + before[12:]


@pytest.mark.parametrize("ending", ["", ".done"])
@pytest.mark.parametrize(
    "change",
    [
        {"ranges": [["../victim", 0, 4]]},
        {"ranges": [["victim", 0, 4]]},
        {"ranges": [["", 0, 4]]},
        {"ranges": [["..", 0, 4]]},
        {"ranges": [["marked.safetensors", -1, 4]]},
        {"ranges": [["marked.safetensors", 0, -4]]},
        {"ranges": [["marked.safetensors", 0, 5]]},
        {"ranges": [["marked.safetensors", 0, 3]]},
        {"ranges": [["marked.safetensors", 1 << 70, 4]]},
        {"ranges": [["marked.safetensors", 0.0, 4]]},
        {"ranges": [["marked.safetensors", True, 4]]},
        {"ranges": [["marked.safetensors", 0]]},
        {"ranges": [[["marked.safetensors"], 0, 4]]},
        {"ranges": [[7, 0, 4]]},
        {"ranges": 5},
        {"ranges": None},
        {"ranges": {"a": 1}},
        {"claim_file": ".bashrc"},
        {"claim_file": "../x.claim.json"},
        {"claim_file": "marked.safetensors./../x.claim.json"},
        {"claim_file": "victim.claim.json"},
        {"claim_file": 5},
        {"claim": "rm -rf /"},
        {"claim": "{}"},
        {"claim": None},
        {"claim": {}},
        {"anchor": []},
        {"anchor": "victim"},
        {"anchor": [DRAFT]},
        {"anchor": ["victim", "marked.safetensors.anchor"]},
        {"anchor": [DRAFT, "victim"]},
        {"anchor": [DRAFT, "marked.safetensors.0123456.anchor"]},
        {"anchor": [DRAFT, "../marked.safetensors.anchor"]},
        {"anchor": ["../" + DRAFT, "marked.safetensors.anchor"]},
        {"anchor": [DRAFT, "other.anchor"]},
        {"anchor": [7, None]},
    ],
)
def test_foreign_journals(
    marked: Path, tmp_path: Path, header: dict[str, Any], change: dict[str, Any], ending: str
) -> None:
    (tmp_path / "victim").write_text("precious")
    around = tmp_path.parent  # where "../victim" would be, with what other tests left
    journal(Path(f"{marked}.nmjournal{ending}"), header | change, b"abcd")
    before, beside = content_of(tmp_path), sorted(around.iterdir())
    assert "damaged" in call("recover", marked).failed(3, "InterruptedEmbedError")
    call("inspect", marked).failed(3, "InterruptedEmbedError")
    assert content_of(tmp_path) == before
    assert sorted(around.iterdir()) == beside


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"{}", b"{", b"\xff", b"[" * 100_000])
def test_headers_that_are_none(marked: Path, text: bytes) -> None:
    journal(Path(f"{marked}.nmjournal"), text)
    assert "damaged" in call("recover", marked).failed(3, "InterruptedEmbedError")


def test_other_magic(marked: Path, header: dict[str, Any]) -> None:
    journal(Path(f"{marked}.nmjournal"), header, b"abcd", magic=b"NMJRNL2\n")
    assert "damaged" in call("recover", marked).failed(3, "InterruptedEmbedError")


def test_links_are_not_followed(tmp_path: Path, header: dict[str, Any]) -> None:
    folder = sharded_model(tmp_path / "folder")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder / "link.safetensors").symlink_to(victim)
    change = {"ranges": [["link.safetensors", 0, 4]], "claim_file": "folder.claim.json"}
    journal(folder / ".neuralmark.nmjournal", header | change, b"abcd")
    call("recover", folder).failed(3, "InterruptedEmbedError")
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("ending", ["", ".done"])
def test_a_planted_journal_is_never_followed_unasked(
    marked: Path, tmp_path: Path, key: Path, header: dict[str, Any], ending: str
) -> None:
    """Once, plain `embed -o` recovered, and wrote the claim through a planted link."""
    victim = tmp_path.parent / f"{tmp_path.name}-bashrc"
    victim.write_text("precious")
    claim = Path(f"{marked}.claim.json")
    claim.unlink()
    Path(f"{claim}.new").symlink_to(victim)
    journal(Path(f"{marked}.nmjournal{ending}"), header, b"abcd")
    before = content_of(tmp_path)
    out = tmp_path.parent / f"{tmp_path.name}-out.safetensors"
    for command in (
        ("embed", marked, "--key", key, "-o", out),
        ("embed", marked, "--key", key, "--dry-run"),
        ("inspect", marked),
        ("claim", marked, "--key", key),
        ("verify", marked, "--key", key),
    ):
        call(*command).failed(3, "InterruptedEmbedError")
        assert content_of(tmp_path) == before
    assert call("recover", marked).code == 0  # asked to
    assert victim.read_text() == "precious"
    assert claim.exists() == (ending == ".done")


@pytest.mark.parametrize("ending", ["", ".done"])
def test_journals_that_are_links_or_pipes(
    marked: Path, tmp_path: Path, header: dict[str, Any], ending: str
) -> None:
    place = Path(f"{marked}.nmjournal{ending}")
    real = journal(tmp_path / "elsewhere", header, b"abcd")
    place.symlink_to(real)
    before = marked.read_bytes()
    assert "damaged" in call("recover", marked).failed(3, "InterruptedEmbedError")
    place.unlink()
    os.mkfifo(place)
    assert "plain file" in call("recover", marked).failed(3, "InterruptedEmbedError")
    assert marked.read_bytes() == before


def test_the_claim_of_an_in_place_mark_replaces_a_link(
    model: Path, key: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (f"{model.name}.claim.json.new", f"{model.name}.nmjournal.new"):
        (tmp_path / name).symlink_to(victim)
    Path(f"{model}.claim.json").symlink_to(victim)
    assert call("embed", model, "--key", key, "--in-place").code == 0
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("kind", ["fifo", "zero", "link", "dangling", "huge"])
def test_what_is_planted_as_a_claim_neither_hangs_nor_leads_away(
    model: Path, key: Path, tmp_path: Path, kind: str
) -> None:
    claim = Path(f"{model}.claim.json")
    if kind == "fifo":
        os.mkfifo(claim)
    elif kind == "huge":
        with claim.open("wb") as file:
            file.truncate(1 << 40)
    else:
        targets = {"zero": "/dev/zero", "link": str(model), "dangling": str(tmp_path / "no")}
        claim.symlink_to(targets[kind])
    out = tmp_path / "out.safetensors"
    assert call("embed", model, "--key", key, "-o", out).code == 0
    assert call("embed", model, "--key", key, "--dry-run", "--other-key", key).code == 0
    if kind != "dangling":
        call("verify", out, "--key", key, "--claim", claim).failed(3, "RecordError")
    os.mkfifo(tmp_path / "pipe.json")
    os.mkfifo(tmp_path / "o2.safetensors.claim.json")
    call("verify", out, "--key", key, "--claim", tmp_path / "pipe.json").failed(3, "RecordError")
    assert call("embed", model, "--key", key, "-o", tmp_path / "o2.safetensors").code == 0
