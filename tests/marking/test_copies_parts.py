"""The parts that find and refuse copies, one at a time."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from neuralmark import EmbedOptions, Key, embed, verify
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import OutputError
from neuralmark.marking.copies import (
    _Buffer,
    _others,
    check_whole,
    left_out_of,
    other_copies,
    refuse_unmarkable,
)
from neuralmark.marking.placement import catalogue
from tests.support.models import QUICK, gaussian, gaussian_model, sharded_model


def pieces_of(data: Any, *sizes: int) -> Iterator[Any]:
    """The bytes in pieces of these sizes, all from one buffer that is used again."""
    buffer, at = np.empty(max(sizes), np.uint8), 0
    for size in sizes:
        buffer[:size] = data[at : at + size]
        yield buffer[:size]
        at += size


def test_whole_elements_are_taken_from_pieces_of_any_length() -> None:
    data = np.arange(24, dtype=np.uint8)
    buffer = _Buffer(pieces_of(data, 3, 10, 1, 2, 8), 4)
    taken = [buffer.take(count).tolist() for count in (1, 2, 0, 1, 2)]
    assert taken == [[*range(4)], [*range(4, 12)], [], [*range(12, 16)], [*range(16, 24)]]
    with pytest.raises(StopIteration):
        buffer.take(1)


def test_no_more_is_read_than_is_taken() -> None:
    read: list[int] = []

    def noted() -> Iterator[Any]:
        for number in range(4):
            read.append(number)
            yield np.full(2, number, np.uint8)

    buffer = _Buffer(noted(), 2)
    assert buffer.take(1).tolist() == [0, 0]
    assert read == [0]
    assert buffer.take(2).tolist() == [1, 1, 2, 2]
    assert read == [0, 1, 2]


def test_what_is_left_out_is_named_once(tmp_path: Path) -> None:
    folder = gaussian_model(tmp_path / "m.safetensors").parent
    assert left_out_of(folder) == ()
    for place in (tmp_path, tmp_path / "sub"):
        place.mkdir(exist_ok=True)
        (place / "mine.nmkey").write_text("secret")
    assert left_out_of(folder) == ("left out of the copy: mine.nmkey",)
    assert left_out_of(folder / "m.safetensors") == ()


def copies_of(folder: Path) -> list[tuple[str, list[str], bool]]:
    source = open_checkpoint(folder)
    found = other_copies(source, folder, tuple(catalogue(source)))
    return [(copy.name, [t.name for t in copy.tensors], copy.complete) for copy in found]


def test_shards_of_an_index_are_one_copy(tmp_path: Path) -> None:
    folder = sharded_model(tmp_path / "model")
    assert copies_of(folder) == []
    other = folder / "older"
    shutil.copytree(folder, other, ignore=shutil.ignore_patterns("older"))
    everything = [t.name for t in catalogue(open_checkpoint(folder))]
    assert copies_of(folder) == [("older/model.safetensors.index.json", everything, True)]
    part = {"a.weight": gaussian(128, 128, seed=1)}
    save_file(part, folder / "part.safetensors")
    assert ("part.safetensors", ["a.weight"], False) in copies_of(folder)
    own = {file.resolve() for file in open_checkpoint(folder).files()}
    names = [name for name, _ in _others(folder, own)]
    assert names == ["older/model.safetensors.index.json", "part.safetensors"]


def whole(path: Path, out: Any, *, named: bool = False) -> None:
    check_whole(open_checkpoint(path), path, out, named=named)


def test_an_ending_promises_a_format_of_a_file_alone(tmp_path: Path) -> None:
    path = gaussian_model(tmp_path / "m.safetensors")
    for out in (None, "o.safetensors", "o.SafeTensors", "o", "o.other", tmp_path / "o.safetensors"):
        whole(path, out)
    for out, promised in (("o.bin", "torch"), ("o.gguf", "gguf"), ("o.pkl", "another")):
        with pytest.raises(OutputError, match=promised):
            whole(path, out)
    odd = tmp_path / "m.bin"  # of safetensors, whatever its name says
    shutil.copy(path, odd)
    whole(odd, "o.bin")
    whole(odd, "o.safetensors")
    folder = sharded_model(tmp_path / "model")
    whole(folder, "o.bin")
    shard = folder / "model-00001-of-00002.safetensors"
    whole(shard, "o.safetensors", named=True)
    with pytest.raises(OutputError, match="one shard of several"):
        whole(shard, "o.safetensors")
    index = folder / "model.safetensors.index.json"
    whole(index, "o.bin")


def test_a_folder_of_one_model_has_nothing_that_is_refused(tmp_path: Path) -> None:
    folder = sharded_model(tmp_path / "model")
    refuse_unmarkable(open_checkpoint(folder), folder)


def test_a_copy_of_other_values_is_marked_in_tensors_of_several_pieces(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "ema").mkdir(parents=True)
    table = {"a.weight": gaussian(800, 700)}  # more than one piece is read of it
    save_file(table, folder / "model.safetensors")
    average = {"a.weight": table["a.weight"] + gaussian(800, 700, seed=3) / 100}
    save_file(average, folder / "ema" / "model.safetensors")
    key, out = Key.new(QUICK), tmp_path / "out"
    done = embed(folder, key, out, EmbedOptions(anchor=False, strength=1.0))
    assert done.claim is not None
    assert verify(out / "ema", key, claim=done.claim).matched == 160


def test_a_copy_that_is_alike_in_some_tensors_keeps_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "other").mkdir(parents=True)
    gaussian_model(folder / "model.safetensors")
    table = dict(load_file(folder / "model.safetensors"))
    table["layer2.weight"] = 3 * table["layer2.weight"]
    save_file(table, folder / "other" / "model.safetensors")
    key, out = Key.new(QUICK), tmp_path / "out"
    done = embed(folder, key, out, EmbedOptions(anchor=False, strength=1.0))
    after = load_file(out / "other" / "model.safetensors")["layer2.weight"]
    assert np.abs(after - table["layer2.weight"]).mean() < 0.1 * np.abs(after).mean()
    assert done.claim is not None
    assert verify(out / "other", key, claim=done.claim).matched == 160


def test_two_tables_of_the_same_bytes_are_one_copy(tmp_path: Path) -> None:
    folder = gaussian_model(tmp_path / "m.safetensors").parent
    arrays = load_file(tmp_path / "m.safetensors").items()
    state = {name: torch.from_numpy(np.array(value)) for name, value in arrays}
    torch.save({"state_dict": state, "state_dict_ema": state}, folder / "last.pt")
    source = open_checkpoint(tmp_path / "m.safetensors")
    copies = other_copies(source, folder, tuple(catalogue(source)))
    assert [copy.name for copy in copies] == ["last.pt"]
