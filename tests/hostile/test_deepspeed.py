"""Folders of DeepSpeed that are damaged in one way each: named errors, nothing guessed."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neuralmark.checkpoints import deepspeed, open_checkpoint
from neuralmark.errors import CheckpointError, MalformedError, UnsafeError, UnsuitableTensorError
from tests.support.makers import deepspeed as maker
from tests.support.makers import values

ARRAYS = {
    "a": np.arange(24, dtype=np.float32).reshape(4, 6),
    "b": np.ones(6, np.float32),
    "c": np.full((3, 5), 2, np.float32),
}
MODEL = "mp_rank_00_model_states.pt"
FIRST, SECOND = (f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(2))
FLATS = "single_partition_of_fp32_groups"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return maker.make(ARRAYS, tmp_path)


def change(folder: Path, name: str, alter: Callable[[Any], Any]) -> None:
    """Alter what a file holds, or put something else into it."""
    path = folder / "global_step7" / name
    held = torch.load(path, weights_only=False)
    given = alter(held)
    torch.save(held if given is None else given, path)


def optimizer(**changes: Any) -> Callable[[Any], None]:
    return lambda held: held["optimizer_state_dict"].update(changes)


def test_files_that_were_only_written_again(folder: Path) -> None:
    for name in (MODEL, FIRST, SECOND):
        change(folder, name, lambda held: None)
    for name, array in ARRAYS.items():
        assert np.array_equal(values(folder, name), array)


LONG = torch.zeros(40)


@pytest.mark.parametrize(
    ("name", "alter", "why"),
    [
        (MODEL, lambda held: [held], "is not a file of model states"),
        (MODEL, lambda held: held.pop("param_shapes") and None, "which parameters there are"),
        (MODEL, lambda held: held.update(param_shapes={"a": (4, 6)}), "which parameters there"),
        (MODEL, lambda held: held.update(param_shapes=[{"a": "big"}]), "no name or no shape"),
        (MODEL, lambda held: held.update(param_shapes=[{"a": (-4, 6)}]), "no name or no shape"),
        (MODEL, lambda held: held.update(param_shapes=[{3: (4, 6)}]), "no name or no shape"),
        (MODEL, lambda held: held.update(param_shapes=[{"a": (4, 600)}]), "do not cover it"),
        (MODEL, lambda held: held["param_shapes"][1].update(a=(1,)), "two parameters are named"),
        (MODEL, lambda held: held.update(frozen_param_shapes={"f": (2,)}), "misses the parameter"),
        (
            MODEL,
            lambda held: held.update(
                frozen_param_shapes={"f": (2,)}, frozen_param_fragments={"f": [0.0, 1.0]}
            ),
            "'f' is not a tensor",
        ),
        (
            MODEL,
            lambda held: held.update(
                frozen_param_shapes={"f": (2,)}, frozen_param_fragments={"f": torch.ones(1)}
            ),
            "do not cover it",
        ),
        (FIRST, lambda held: [held], "holds no optimizer state"),
        (FIRST, lambda held: {"optimizer_state_dict": None}, "holds no optimizer state"),
        (FIRST, optimizer(**{FLATS: [torch.zeros(2, 6)] * 2}), "0 is not a run of numbers"),
        (FIRST, optimizer(**{FLATS: [torch.zeros(12)[::2]] * 2}), "0 is not a run of numbers"),
        (FIRST, optimizer(**{FLATS: [LONG] * 99}), "partitions are longer than the file"),
        (FIRST, optimizer(zero_stage=1, **{FLATS: [LONG]}), "different kinds of partitions"),
        (SECOND, optimizer(zero_stage=1), "different kinds of partitions"),
        (SECOND, optimizer(**{FLATS: [LONG.long()] * 2}), "parts of 'a' are not of one kind"),
        (SECOND, optimizer(**{FLATS: [LONG.double()] * 2}), "parts of 'a' are not of one kind"),
        (FIRST, optimizer(partition_count=[4, 4]), "of 2 processes, of 4"),
        (FIRST, optimizer(partition_count="two"), "of 2 processes, of 0"),
        (FIRST, optimizer(param_alignment_paddings=[[0, 0, 0]]), "paddings do not fit"),
        (FIRST, optimizer(param_alignment_paddings=[7]), "paddings do not fit"),
        (FIRST, optimizer(param_alignment_paddings=[[1 << 50], [9, 9]]), "do not cover it"),
    ],
)
def test_states_that_lie_are_refused(
    folder: Path, name: str, alter: Callable[[Any], Any], why: str
) -> None:
    change(folder, name, alter)
    with pytest.raises(MalformedError, match=why):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"zero_stage": 9},
        {"zero_stage": True},
        {"zero_stage": 3},  # of stage 3, but without the groups of stage 3
        {FLATS: []},
        {FLATS: torch.ones(3)},
        {FLATS: [torch.ones(3), 5]},
    ],
)
def test_partitions_that_are_missing_say_what_to_save(
    folder: Path, changes: dict[str, Any]
) -> None:
    change(folder, FIRST, optimizer(**changes))
    with pytest.raises(CheckpointError, match=r"no float32 partitions.*save_16bit_model"):
        open_checkpoint(folder)


def test_too_many_files_and_tensors_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(deepspeed, "MAX_PROCESSES", 1)
        with pytest.raises(UnsafeError, match="states of over 1 processes"):
            open_checkpoint(folder)
    monkeypatch.setattr(deepspeed, "MAX_TENSORS", 2)
    with pytest.raises(UnsafeError, match="over 2 tensors"):
        open_checkpoint(folder)


def test_further_names_of_a_parameter_are_read_and_others_are_not(folder: Path) -> None:
    shared = {"tied": "a", "b": "a", "lost": "absent", "odd": 3, 4: "a"}
    change(folder, MODEL, lambda held: held.update(shared_params=shared))
    assert set(open_checkpoint(folder).names()) == {*ARRAYS, "tied"}
    assert np.array_equal(values(folder, "tied"), ARRAYS["a"])
    assert np.array_equal(values(folder, "b"), ARRAYS["b"])  # a name of its own comes first


def test_frozen_parameters_are_whole(folder: Path) -> None:
    frozen = {"f": torch.arange(6.0)}
    shapes = OrderedDict(f=torch.Size([2, 3]))
    change(
        folder,
        MODEL,
        lambda held: held.update(frozen_param_shapes=shapes, frozen_param_fragments=frozen),
    )
    assert np.array_equal(values(folder, "f"), np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize(
    "odd",
    [
        torch.zeros(1).expand(20),  # would be read from the bytes behind it
        torch.eye(4).to_sparse(),
        torch.ones(20, device="meta"),
    ],
)
def test_frozen_parameters_that_are_no_plain_tensors_are_listed_and_not_read(
    folder: Path, odd: torch.Tensor
) -> None:
    frozen = {"frozen_param_shapes": {"f": (20,)}, "frozen_param_fragments": {"f": odd}}
    change(folder, MODEL, lambda held: held.update(frozen))
    opened = open_checkpoint(folder)
    assert opened.info("f").obstacle is not None
    with pytest.raises(UnsuitableTensorError):
        list(opened.read("f"))
    assert np.array_equal(values(folder, "a"), ARRAYS["a"])
    change(folder, MODEL, lambda held: held["frozen_param_shapes"].update(a=(4, 6)))
    change(folder, MODEL, lambda held: held["frozen_param_fragments"].update(a=odd))
    with pytest.raises(MalformedError, match="two parameters are named 'a'"):
        open_checkpoint(folder)
