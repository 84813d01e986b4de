"""What is far reads like a file, and only what is asked for is fetched."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from neuralmark import EmbedOptions, Key, Parameters, embed, verify
from neuralmark.checkpoints import open_checkpoint
from neuralmark.checkpoints.contract import Checkpoint, StoredTensor, TensorInfo
from neuralmark.errors import CheckpointError, UnsuitableTensorError, UsageError
from neuralmark.marking import verification
from neuralmark.marking.drafting import plan
from neuralmark.storage import places
from tests.support.far import MirrorPlace


def test_a_far_file_is_read_sought_and_told_like_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(range(100)))
    place = MirrorPlace(tmp_path / "f")
    with place.open() as far, (tmp_path / "f").open("rb") as near:
        for step in ((10, os.SEEK_SET), (-3, os.SEEK_END), (5, os.SEEK_SET), (2, os.SEEK_CUR)):
            assert far.seek(*step) == near.seek(*step)
            assert far.read(7) == near.read(7)
            assert far.tell() == near.tell()
    assert place.read_bytes() == bytes(range(100))
    assert places.read_small(place, 10) == bytes(range(11))


def test_ranges_end_where_the_file_ends(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(range(100)))
    for place in (MirrorPlace(tmp_path / "f"), tmp_path / "f"):
        with place.open("rb", buffering=0) as file:
            assert places.bytes_at(file, 30, 90) == bytes(range(90, 100))
            assert places.bytes_at(file, 30, 200) == b""


def test_a_verdict_on_something_far_fetches_the_header_and_the_marked_tensors(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(1)
    arrays = {f"l{i}.weight": rng.standard_normal((300, 400)).astype(np.float32) for i in range(9)}
    save_file(arrays, tmp_path / "m.safetensors")
    key = Key.new(Parameters(bits=160, pools=200))
    result = embed(
        tmp_path / "m.safetensors",
        key,
        tmp_path / "o.safetensors",
        EmbedOptions(tensors=["l3.weight"], anchor=False),
    )
    place = MirrorPlace(tmp_path / "o.safetensors")
    verdict = verification.verify(place, key, claim=result.claim)
    near = verify(tmp_path / "o.safetensors", key, claim=result.claim)
    assert verdict.verified
    assert verdict.matched == near.matched == 160
    assert place.fetched < 1.1 * 300 * 400 * 4


def test_what_is_far_is_never_written(tmp_path: Path) -> None:
    save_file({"w": np.zeros((4, 4), np.float32)}, tmp_path / "m.safetensors")
    checkpoint = open_checkpoint(MirrorPlace(tmp_path / "m.safetensors"))
    with pytest.raises(UsageError, match="only a file or folder of this machine"):
        checkpoint.write(tmp_path / "out", {})
    with pytest.raises(UsageError, match="only a file or folder of this machine"):
        checkpoint.in_place_ranges(["w"])


def test_nothing_far_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        open_checkpoint(MirrorPlace(tmp_path / "none"))


class Halves:
    """A decoder for the tests: every value is half of its index."""

    unit = 7
    nbytes = 4

    def values(self, start: int, stop: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return (np.arange(start, stop) / 2).astype(np.float32)


def test_computed_tensors_are_read_in_runs_and_never_marked(tmp_path: Path) -> None:
    info = TensorInfo("w", "F32", (300, 2000), None, "Q2", "save it as safetensors")
    stored = StoredTensor(info, tmp_path / "x", 0, decoder=Halves())
    checkpoint = Checkpoint(tmp_path / "x", "halves", {"w": stored})
    whole = np.concatenate([raw.view(np.float32) for raw in checkpoint.read("w")])
    assert np.array_equal(whole, np.arange(600_000, dtype=np.float32) / 2)
    assert checkpoint.read_run("w", 5, 8).view(np.float32).tolist() == [2.5, 3.0, 3.5]
    assert stored.nbytes == 4
    key = Key.new(Parameters(bits=160, pools=200))
    with pytest.raises(UnsuitableTensorError, match=r"not marked: save it as safetensors"):
        plan(checkpoint, key)


def test_far_files_are_plain_python_files(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert isinstance(MirrorPlace(tmp_path / "f").open(), io.BufferedReader)
