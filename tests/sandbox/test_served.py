"""Models that are far, for a process without a network."""

from pathlib import Path
from typing import Any

import pytest

from neuralmark import Key, VerifyOptions, embed, verify
from neuralmark.errors import CheckpointError, ParameterError, SandboxError
from neuralmark.sandbox import served
from neuralmark.sandbox.confined import Confined
from neuralmark.sandbox.limits import SandboxLimits
from neuralmark.sandbox.served import QUESTION, PlaceServer
from tests.support import hostile
from tests.support.far import MirrorPlace
from tests.support.models import QUICK, gaussian_model, sharded_model
from tests.support.scans import PLAIN

APART = VerifyOptions(sandbox=SandboxLimits(memory=1 << 30))


def test_a_far_model_is_verified_in_a_sandbox(tmp_path: Path) -> None:
    key = Key.new(QUICK)
    out = tmp_path / "marked.safetensors"
    embed(gaussian_model(tmp_path / "m.safetensors"), key, out, options=PLAIN)
    claim = tmp_path / "marked.safetensors.claim.json"
    far = MirrorPlace(out)
    verdict = verify(far, key, claim=claim, options=APART)
    assert verdict.verified
    assert verdict.model == f"far:{out}"
    assert far.fetched > 0
    here = verify(far, key, claim=claim)
    assert {**here.to_dict(), "date": 0} == {**verdict.to_dict(), "date": 0}


def test_folders_and_indexes_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = Key.new(QUICK)
    folder = sharded_model(tmp_path / "model")
    monkeypatch.setattr(served, "PIECE", 1000)
    for place in (MirrorPlace(folder), MirrorPlace(folder / "model.safetensors.index.json")):
        assert verify(place, key, options=APART).coverage.share > 0.9
    with pytest.raises(CheckpointError, match="no such file or folder"):
        verify(MirrorPlace(tmp_path / "none"), key, options=APART)


def test_only_what_was_told_is_served(tmp_path: Path) -> None:
    gaussian_model(tmp_path / "m.safetensors")
    server = PlaceServer(lambda target: MirrorPlace(tmp_path / target))
    server.allow(["m.safetensors"])
    wrong: list[list[Any]] = [
        ["other.safetensors", 0, [], "look"],
        ["m.safetensors", 2, [], "look"],
        ["m.safetensors", 1, [".."], "look"],
        ["m.safetensors", 1, ["a/b"], "look"],
        ["m.safetensors", 1, ["a"] * 9, "look"],
        ["m.safetensors", 1, [3], "look"],
        ["m.safetensors", 0, 5, "look"],
        ["m.safetensors", 0, [], "write", 0, 1],
        ["m.safetensors", 0, [], "read", -1, 1],
        ["m.safetensors", 0, [], "read", 0, 1 << 70],
        ["m.safetensors", 0, [], "expect", 7],
        ["m.safetensors", 0, [], "expect", [[-1, 5]]],
        ["m.safetensors", 1, ["%2e%2e"], "look"],
        ["m.safetensors"],
    ]
    for arguments in wrong:
        with pytest.raises(SandboxError, match="asked for"):
            server.answer(QUESTION, arguments)
    with pytest.raises(SandboxError):
        server.answer("other", ["m.safetensors", 0, [], "look"])
    assert len(server.answer(QUESTION, ["m.safetensors", 0, [], "read", 0, 16])) == 16
    assert b"m.safetensors" in server.answer(QUESTION, ["m.safetensors", 1, [], "names"])


def test_a_fault_of_the_parent_is_an_answer() -> None:
    def answer(question: str, arguments: list[Any]) -> bytes:
        raise LookupError("nothing there")

    with (
        Confined(APART.sandbox, answer) as reader,
        pytest.raises(SandboxError, match="LookupError: nothing there"),
    ):
        reader.call(hostile.asked, "anything", 1)


def test_what_cannot_go_into_a_sandbox_is_refused(tmp_path: Path) -> None:
    key = Key.new(QUICK)
    with pytest.raises(ParameterError, match="a sandbox is for files"):
        verify({"layer1.weight": 1}, key, options=APART)
    with pytest.raises(ParameterError, match="sandbox must be SandboxLimits"):
        VerifyOptions(sandbox=True)  # type: ignore[arg-type]
