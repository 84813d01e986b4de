"""What nobody foresaw has an exit code of its own; odd names and types are no surprise."""

import json
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import save_file

from neuralmark.checkpoints import open_checkpoint
from neuralmark.core.names import natural
from tests.support.commands import call
from tests.support.models import gaussian, gaussian_model, plain_key


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("x"), RecursionError("deep")])
def test_unforeseen_errors_exit_with_70_and_say_where_to_report(
    tmp_path: Path, error: Exception
) -> None:
    model, key = gaussian_model(tmp_path / "m.safetensors"), plain_key(tmp_path / "k.nmkey")
    with mock.patch("neuralmark.marking.verification.open_checkpoint", side_effect=error):
        line = call("verify", model, "--key", key).failed(70, "DefectError")
        told = call("verify", model, "--key", key, "--json")
        shown = call("verify", model, "--key", key, env={"NEURALMARK_TRACEBACK": "1"})
    assert type(error).__name__ in line
    assert "report it" in line
    assert (told.code, told.json["exit_code"]) == (70, 70)
    assert (shown.code, "Traceback" in shown.err) == (70, True)


@pytest.mark.parametrize("digits", [4299, 4301, 100_000])
def test_names_with_thousands_of_digits(tmp_path: Path, digits: int) -> None:
    name = "layer." + "7" * digits + ".weight"
    save_file({name: gaussian(128, 128), "b.weight": gaussian(96, 128)}, tmp_path / "m.safetensors")
    key = plain_key(tmp_path / "k.nmkey")
    assert call("verify", tmp_path / "m.safetensors", "--key", key).code == 1
    assert call("inspect", tmp_path / "m.safetensors").code == 0


def test_numbers_are_ordered_as_numbers_whatever_their_length() -> None:
    names = ["l.2", "l.10", "l.010", "l.9" + "9" * 5000, "l.1" + "0" * 5001, "l.0", "l.00"]
    ordered = sorted(names, key=natural)
    assert ordered[:4] == ["l.0", "l.00", "l.2", "l.010"] or ordered[2] == "l.2"
    assert ordered.index("l.2") < ordered.index("l.10") < ordered.index(names[3])
    assert ordered.index(names[3]) < ordered.index(names[4])


def header_file(path: Path, dtype: str) -> Path:
    header = {"a": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    return path


@pytest.mark.parametrize("dtype", ["\ud800", "é", "F32\ud800", "\udfff" * 8])
def test_types_that_are_no_text(tmp_path: Path, dtype: str) -> None:
    path, key = header_file(tmp_path / "m.safetensors", dtype), plain_key(tmp_path / "k.nmkey")
    for command in (("verify", path, "--key", key), ("inspect", path)):
        call(*command).failed(3, "MalformedError")


def test_an_infinite_value_elsewhere_is_no_error(tmp_path: Path) -> None:
    tensors = {"a.weight": gaussian(128, 128), "b.weight": gaussian(96, 128)}
    save_file(tensors, tmp_path / "s.safetensors")
    key = plain_key(tmp_path / "k.nmkey")
    marked = tmp_path / "m.safetensors"
    args = ("--key", key, "--tensor", "a.weight")
    assert call("embed", tmp_path / "s.safetensors", *args, "-o", marked).code == 0
    claim = Path(f"{marked}.claim.json")
    from safetensors.numpy import load_file

    spoilt = load_file(marked) | {"b.weight": np.full((96, 128), np.inf, np.float32)}
    save_file(spoilt, marked)
    assert call("verify", marked, "--key", key, "--claim", claim).code == 0
    assert call("verify", marked, *args).code == 0
    assert call("verify", marked, "--key", key).code == 0
    other = plain_key(tmp_path / "o.nmkey")
    told = call("verify", marked, "--key", other, "--json")
    assert (told.code, told.json["status"]) == (3, "unreadable")
    out = tmp_path / "again.safetensors"
    assert call("embed", marked, "--key", other, "--tensor", "a.weight", "-o", out).code == 0


def test_a_file_swapped_for_another_of_the_same_size_and_time_is_seen(tmp_path: Path) -> None:
    one, two = (gaussian_model(tmp_path / name, seed=i) for i, name in enumerate(("a", "b")))
    checkpoint = open_checkpoint(one)
    before, times = checkpoint.stamps(), one.stat()
    os.utime(two, ns=(times.st_atime_ns, times.st_mtime_ns))
    two.replace(one)
    assert one.stat().st_mtime_ns == times.st_mtime_ns
    assert checkpoint.stamps() != before
    before = checkpoint.stamps()
    data = bytearray(one.read_bytes())
    data[-1] ^= 1
    one.write_bytes(data)  # the same inode, and the clock set back
    os.utime(one, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert checkpoint.stamps() != before
