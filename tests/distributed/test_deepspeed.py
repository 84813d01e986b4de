"""DeepSpeed itself, in two real processes: what its stages allow, and the way round the rest."""

import json
from pathlib import Path
from typing import Any

import pytest

import neuralmark
from neuralmark import Key, Parameters
from tests.support.processes import torchrun

WORKER = Path(__file__).with_name("deepspeed_worker.py")
WAY_OUT = "mark the finished file"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deepspeed")
    done = torchrun(2, WORKER, str(folder), environment={"DS_ACCELERATOR": "cpu"})
    if done.returncode:
        pytest.fail(done.stderr)
    return folder


def found(folder: Path, stage: int) -> list[dict[str, Any]]:
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))[str(stage)]
    assert len(results) == 2
    return list(results)


@pytest.mark.parametrize("stage", [1, 2])
def test_the_loss_marks_what_deepspeed_trains(folder: Path, stage: int) -> None:
    for process in found(folder, stage):
        assert process["verified"]
        assert process["matched"] == 160


@pytest.mark.parametrize(("stage", "asked"), [(1, 2), (2, 2), (3, 3)])
def test_what_cannot_be_marked_is_refused_with_the_way_out(
    folder: Path, stage: int, asked: int
) -> None:
    for process in found(folder, stage):
        assert len(process["refusals"]) == asked
        for message in process["refusals"].values():
            assert "DeepSpeed" in message
            assert WAY_OUT in message


def test_the_gathered_checkpoint_takes_the_mark(folder: Path, tmp_path: Path) -> None:
    for process in found(folder, 3):  # read with the weights gathered: a fair coin
        assert not process["verified"]
        assert 40 < process["matched"] < 120
    key = Key.new(Parameters(160, 320, 1))
    marked = tmp_path / "marked"
    result = neuralmark.embed(folder / "whole", key, marked)
    assert result.verdict is not None
    assert result.verdict.verified
    assert "2.weight" in result.tensors
