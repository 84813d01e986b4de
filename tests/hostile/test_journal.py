"""Journals that nobody's crash has left: they may name their own checkpoint and nothing else."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import call, content_of, sharded_model

from neuralmark.core.encoding import enc


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
    }


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
    ],
)
def test_foreign_journals(
    marked: Path, tmp_path: Path, header: dict[str, Any], change: dict[str, Any], ending: str
) -> None:
    (tmp_path / "victim").write_text("precious")
    journal(Path(f"{marked}.nmjournal{ending}"), header | change, b"abcd")
    before = content_of(tmp_path.parent)
    for command in ("recover", "inspect"):
        assert "damaged" in call(command, marked).failed(3, "InterruptedEmbedError")
    assert content_of(tmp_path.parent) == before


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
    call("inspect", folder).failed(3, "InterruptedEmbedError")
    assert victim.read_text() == "precious"
