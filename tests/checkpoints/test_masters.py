"""Files that hold an optimizer and no model: its float32 copies of the weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import neuralmark
from neuralmark import Key
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import MalformedError
from tests.support.models import QUICK, gaussian

W = [torch.from_numpy(gaussian(12, 9, seed=n)) for n in range(3)]
MOMENTS = {"exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}
NAMED = [{"params": [0, 1], "param_names": ["a.weight", "a.bias"]}, {"params": [2]}]
FILES: dict[str, tuple[Any, list[str]]] = {
    "Megatron": (
        {
            "optimizer": {
                "optimizer": {"state": {0: MOMENTS}, "param_groups": NAMED},
                "fp32_from_fp16_params": [[W[0], W[1]], [W[2]]],
            }
        },
        ["a.weight", "a.bias", "optimizer.fp32_from_fp16_params.1.0"],
    ),
    "apex": (
        {
            "fp32_from_fp16": [[W[0]], [W[1]]],
            "optimizer_state_dict": {"state": {0: MOMENTS}, "param_groups": [{"params": [0]}]},
        },
        ["fp32_from_fp16.0.0", "fp32_from_fp16.1.0"],
    ),
    "beside the moments": (
        {"state": {0: {**MOMENTS, "master_param": W[0]}, 2: MOMENTS}, "param_groups": NAMED},
        ["a.weight"],
    ),
    "by name": (
        {
            "optimizer_state_dict": {
                "state": {"b.weight": {**MOMENTS, "master_param": W[0]}},
                "param_groups": [{"params": ["b.weight"]}],
            }
        },
        ["b.weight"],
    ),
    "distributed": (
        {0: {(torch.bfloat16, torch.float32): {0: {"param": W[0], **MOMENTS}}}},
        ["0._.0.param"],
    ),
    "DeepSpeed": (
        {"optimizer_state_dict": {"single_partition_of_fp32_groups": [W[0].reshape(-1)]}},
        ["optimizer_state_dict.single_partition_of_fp32_groups.0"],
    ),
}


@pytest.mark.parametrize("who", FILES)
@pytest.mark.parametrize("new", [True, False])
def test_copies_are_found_under_the_best_names(who: str, new: bool, tmp_path: Path) -> None:
    saved, names = FILES[who]
    torch.save(saved, tmp_path / "optim.pt", _use_new_zipfile_serialization=new)
    checkpoint = open_checkpoint(tmp_path / "optim.pt")
    assert checkpoint.names() == names
    raw = b"".join(piece.tobytes() for piece in checkpoint.read(names[0]))
    assert np.array_equal(np.frombuffer(raw, np.float32), W[0].numpy().reshape(-1))


def test_the_mark_is_found_in_them(tmp_path: Path) -> None:
    key = Key.new(QUICK)
    state = {"a.weight": torch.from_numpy(gaussian(128, 128)), "b": torch.ones(3)}
    torch.save(state, tmp_path / "model.pt")
    done = neuralmark.embed(tmp_path / "model.pt", key, tmp_path / "marked.pt")
    marked = torch.load(tmp_path / "marked.pt")
    groups = [{"params": [0, 1], "param_names": list(marked)}]
    optimizer = {"optimizer": {"param_groups": groups}, "fp32_from_fp16": [list(marked.values())]}
    torch.save({"optimizer": optimizer}, tmp_path / "optim.pt")
    assert neuralmark.verify(tmp_path / "optim.pt", key, claim=done.claim).verified


def test_a_model_beside_them_comes_first(tmp_path: Path) -> None:
    saved, _ = FILES["Megatron"]
    torch.save({**saved, "model": {"w": W[2]}}, tmp_path / "both.pt")
    assert open_checkpoint(tmp_path / "both.pt").names() == ["w"]


def test_moments_alone_are_no_model(tmp_path: Path) -> None:
    torch.save({"optimizer": {"state": {0: MOMENTS}}}, tmp_path / "optim.pt")
    with pytest.raises(MalformedError, match=r"nor an optimizer's copies"):
        open_checkpoint(tmp_path / "optim.pt")
