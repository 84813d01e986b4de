"""ONNX graphs that lie, or say what no reader can use: named errors, and never wrong numbers."""

import os
from pathlib import Path

import numpy as np
import pytest

from neuralmark.checkpoints import open_checkpoint
from neuralmark.checkpoints.readers import onnx_graph
from neuralmark.errors import MalformedError, UnsafeError, UnsuitableTensorError
from tests.support.makers import values
from tests.support.wire import INT32, RAW, field, floats, model, node, tensor, varint, written

F32, U8, STRING, F16, U4, UNKNOWN = 1, 2, 8, 10, 21, 99


def test_a_graph_that_ends_inside_its_first_fields(tmp_path: Path) -> None:
    for data in (b"\x08\x0a\x3a", b"\x08\x0a\x3a\x80", b"\x08\x0a\xca\x01\x90"):
        with pytest.raises(MalformedError, match="at byte"):
            open_checkpoint(written(tmp_path, data))


def test_tensors_without_a_name_get_one(tmp_path: Path) -> None:
    path = written(tmp_path, model(floats("", 2, 3), floats("w", 4)))
    assert open_checkpoint(path).names() == ["unnamed@0", "w"]
    assert np.array_equal(values(path, "unnamed@0"), np.ones((2, 3)))


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, model(floats("unnamed@1", 2), floats("", 3)))
    with pytest.raises(MalformedError, match="two tensors are named 'unnamed@1'"):
        open_checkpoint(path)


def test_a_name_in_two_graphs_is_two_tensors(tmp_path: Path) -> None:
    """What takes such a name is not known, so its scales are not used."""
    scaled = node("DequantizeLinear", ["w", "s"], ["y"])
    weight = tensor("w", (2,), U8, b"\x02\x03")
    path = written(tmp_path, model(weight, floats("w", 3), floats("s"), nodes=(scaled,)))
    checkpoint = open_checkpoint(path)
    assert checkpoint.names() == ["w", "w@1"]
    assert checkpoint.info("w").dtype == "U8"
    assert np.array_equal(values(path, "w@1"), np.ones(3))


def test_tensors_in_functions_are_found(tmp_path: Path) -> None:
    constant = field(2, "c") + field(4, "Constant")
    constant += field(5, field(1, "value") + field(5, floats("", 2, 2)))
    path = written(tmp_path, model(floats("w", 3), more=field(25, field(7, constant))))
    assert open_checkpoint(path).names() == ["w", "c"]
    assert np.array_equal(values(path, "c"), np.ones((2, 2)))


def test_too_many_tensors_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_graph, "MAX_TENSORS", 2)
    path = written(tmp_path, model(*(floats(f"w{n}", 1) for n in range(2))))
    assert len(open_checkpoint(path).names()) == 2
    written(tmp_path, model(*(floats(f"w{n}", 1) for n in range(3))))
    with pytest.raises(UnsafeError, match="over 2 tensors"):
        open_checkpoint(path)


def test_fields_of_another_kind_are_passed_over(tmp_path: Path) -> None:
    odd = field(1, 7) + field(4, "Identity") + field(1, "w") + field(2, "y")
    path = written(tmp_path, model(floats("w", 2), nodes=(odd,)))
    assert np.array_equal(values(path, "w"), [1, 1])


@pytest.mark.parametrize(("code", "kind"), [(STRING, "string"), (UNKNOWN, "type 99")])
def test_types_that_hold_no_numbers_are_obstacles(tmp_path: Path, code: int, kind: str) -> None:
    weight = tensor("w", (2,), code, b"ab")
    scaled = node("DequantizeLinear", ["w", "s"], ["y"])
    packed = node("MatMulNBits", ["x", "w", "s"], ["z"], K=32, N=1, block_size=32)
    path = written(tmp_path, model(weight, floats("s"), nodes=(scaled, packed)))
    info = open_checkpoint(path).info("w")
    assert info.dtype == kind
    assert info.obstacle == f"its numbers are {kind}, and nothing says what they stand for"
    with pytest.raises(UnsuitableTensorError, match="nothing says what they stand for"):
        list(open_checkpoint(path).read("w"))


def test_nibbles_alone_say_nothing(tmp_path: Path) -> None:
    for held in (RAW, INT32):
        path = written(tmp_path, model(tensor("w", (4,), U4, b"\x21\x43", held)))
        assert "nothing says" in str(open_checkpoint(path).info("w").obstacle)


def test_lists_that_are_too_long_to_be_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, model(tensor("w", (3,), F16, b"\x01\x02\x03", INT32)))
    assert open_checkpoint(path).info("w").obstacle is None
    monkeypatch.setattr("neuralmark.checkpoints.onnx.MAX_VARINTS", 2)
    assert open_checkpoint(path).info("w").obstacle is not None


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        (b"\x80\x01", "more or fewer numbers than it says"),  # one where two were announced
        (b"\x01\x02\x03", "more or fewer numbers than it says"),
        (b"\x01\x80", "more or fewer numbers than it says"),  # the second is cut off
        (b"\x80" * 10 + b"\x01\x01", "a number that is too long"),
    ],
)
def test_lists_of_numbers_that_lie_are_found_out(tmp_path: Path, numbers: bytes, why: str) -> None:
    path = written(tmp_path, model(tensor("w", (2,), F16, numbers, INT32)))
    with pytest.raises(MalformedError, match=why):
        values(path, "w")


def test_a_list_of_numbers_that_is_sound(tmp_path: Path) -> None:
    bits = np.array([1.5, -2], "<f2").view("<u2")
    path = written(
        tmp_path, model(tensor("w", (2,), F16, b"".join(map(varint, bits.tolist())), INT32))
    )
    assert np.array_equal(values(path, "w"), [1.5, -2])


def test_a_graph_that_shrinks_after_it_was_opened(tmp_path: Path) -> None:
    weight = tensor("w", (64,), U8, bytes(64))
    scaled = node("DequantizeLinear", ["w", "s"], ["y"])
    path = written(tmp_path, model(floats("s"), weight, nodes=(scaled,)))
    checkpoint = open_checkpoint(path)
    os.truncate(path, path.stat().st_size - 10)
    with pytest.raises(MalformedError, match="ends inside a tensor"):
        list(checkpoint.read("w"))


@pytest.mark.parametrize(
    ("scales", "numbers"),
    [
        ((3,), {"axis": 0}),  # for another number of channels
        ((2,), {"axis": 5}),  # along a dimension that there is not
        ((2,), {"axis": -9}),
        ((2, 1), {"axis": 1, "block_size": 4}),  # blocks of another length
        ((2, 2), {"axis": 1, "block_size": -3}),
    ],
)
def test_scales_that_do_not_fit_are_not_used(
    tmp_path: Path, scales: tuple[int, ...], numbers: dict[str, int]
) -> None:
    weight = tensor("w", (2, 6), U8, bytes(range(12)))
    scaled = node("DequantizeLinear", ["w", "s"], ["y"], **numbers)
    path = written(tmp_path, model(weight, floats("s", *scales), nodes=(scaled,)))
    info = open_checkpoint(path).info("w")
    assert (info.dtype, info.stored) == ("U8", None)


def packed(tmp_path: Path, zero: bytes | None, inputs: list[str], **numbers: int) -> Path:
    """One row of 32 weights in 4 bits: the codes 0 … 15 twice, with the scale 1."""
    codes = bytes(low | low + 1 << 4 for low in range(0, 16, 2)) * 2
    told = {"K": 32, "N": 1, "bits": 4, "block_size": 32, **numbers}
    made = node("MatMulNBits", ["x", *inputs], ["y"], **told)
    parts = [tensor("w", (1, 1, 16), U8, codes), floats("s", 1), *([zero] if zero else [])]
    return written(tmp_path, model(*parts, nodes=(made,)))


@pytest.mark.parametrize(
    ("zero", "shift"),
    [
        (None, 8),
        (tensor("z", (1,), U8, b"\x05"), 5),
        (tensor("z", (1,), F32, np.array([2.5], "<f4").tobytes()), 2.5),
    ],
)
def test_packed_weights_with_zero_points_of_each_kind(
    tmp_path: Path, zero: bytes | None, shift: float
) -> None:
    path = packed(tmp_path, zero, ["w", "s", *(["z"] if zero else [])])
    expected = np.tile(np.arange(16) - shift, 2).reshape(1, 32)
    assert np.array_equal(values(path, open_checkpoint(path).names()[0]), expected)


@pytest.mark.parametrize(
    ("inputs", "numbers"),
    [
        (["w", "s"], {"bits": 3}),
        (["w", "s"], {"block_size": 8}),
        (["w", "s"], {"block_size": 48}),
        (["w", "s"], {"K": 64}),
        (["w", "s"], {"N": 2}),
        (["w", "s"], {"N": -1}),
        (["w", "s"], {"block_size": 0}),
        (["w", "absent"], {}),
        (["w", "s", "", "order"], {}),  # its inputs are in another order than the layer's
        (["w", "s", "s"], {"K": 33}),
    ],
)
def test_packed_weights_whose_parts_do_not_fit_are_not_guessed(
    tmp_path: Path, inputs: list[str], numbers: dict[str, int]
) -> None:
    path = packed(tmp_path, None, inputs, **numbers)
    assert open_checkpoint(path).info("w").dtype == "U8"
