"""neuralmark recheck: what is printed, exit codes, and which errors come through."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.support.commands import call, run
from tests.support.models import plain_key


@pytest.fixture
def verdict(marked: Path, key: Path, tmp_path: Path) -> Path:
    path, claim = tmp_path / "verdict.json", f"{marked}.claim.json"
    result = call("verify", marked, "--key", key, "--claim", claim, "--full-digest", "--json")
    path.write_text(result.out)
    return path


def test_it_holds(verdict: Path, marked: Path, key: Path) -> None:
    result = call("recheck", verdict, marked, "--key", key)
    assert (result.code, result.err) == (0, "")
    assert "THE VERDICT HOLDS" in result.out
    assert "DIFFERS" not in result.out
    for name in ("key", "whole files", "tensor digests", "bits matched", "boundary", "trials"):
        assert any(line.startswith(name) and "holds" in line for line in result.out.splitlines()), (
            name
        )
    assert "library version" in result.out


def test_with_the_claim(verdict: Path, marked: Path, key: Path) -> None:
    words = ("recheck", verdict, marked, "--key", key, "--json")
    assert point(call(*words).json, "claim")["holds"] is None
    told = call(*words, "--claim", f"{marked}.claim.json").json
    assert point(told, "claim")["holds"] is True
    assert told["holds"] is True
    assert told["format"] == "neuralmark-recheck/1"


def point(told: dict[str, list[dict[str, object]]], name: str) -> dict[str, object]:
    return next(each for each in told["points"] if each["name"] == name)


def test_it_does_not_hold(verdict: Path, model: Path, marked: Path, key: Path) -> None:
    result = call("recheck", verdict, model, "--key", key)
    assert (result.code, result.err) == (1, "")
    assert "THE VERDICT DOES NOT HOLD" in result.out
    assert "differs:" in result.out
    edited = json.loads(verdict.read_text()) | {"trials": 1}
    verdict.write_text(json.dumps(edited))
    told = call("recheck", verdict, marked, "--key", key, "--json")
    assert told.code == 1
    assert [each["name"] for each in told.json["points"] if each["holds"] is False] == ["trials"]
    assert (point(told.json, "trials")["then"], told.json["holds"]) == (1, False)


def test_another_key(verdict: Path, marked: Path, tmp_path: Path) -> None:
    other = plain_key(tmp_path / "other.nmkey")
    result = call("recheck", verdict, marked, "--key", other)
    assert result.code == 1
    assert "is of the key nm1-" in result.out


def test_weights_that_cannot_be_read_any_more(
    verdict: Path, marked: Path, key: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "packed.safetensors"
    save_file({n: (99 * w).astype(np.int8) for n, w in load_file(marked).items()}, packed)
    result = call("recheck", verdict, packed, "--key", key)
    assert result.code == 3
    assert "THE VERDICT DOES NOT HOLD" in result.out
    unreadable = call("verify", packed, "--key", key, "--json")
    assert unreadable.code == 3
    verdict.write_text(unreadable.out)
    assert call("recheck", verdict, packed, "--key", key).code == 0  # it said so, and is right


def test_what_cannot_be_read(verdict: Path, marked: Path, key: Path, tmp_path: Path) -> None:
    public = tmp_path / "public.json"
    public.write_text(call("verify", marked, "--key", key, "--public", "--json").out)
    line = call("recheck", public, marked, "--key", key).failed(3, "RecordError")
    assert "the public view" in line
    call("recheck", tmp_path / "no.json", marked, "--key", key).failed(3, "RecordError")
    (tmp_path / "bad.safetensors").write_bytes(marked.read_bytes()[:100])
    call("recheck", verdict, tmp_path / "bad.safetensors", "--key", key).failed(3, "MalformedError")
    call("recheck", verdict, marked, "--key", verdict).failed(3, "KeyFileError")


def test_as_a_process_without_torch(verdict: Path, marked: Path, key: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    path = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2] / 'src'}"}
    result = run("recheck", verdict, marked, "--key", key, env=path)
    assert result.code == 0, result
