"""Messages of protocol buffers that are cut off, endless or without sense: named errors."""

import os
from pathlib import Path

import pytest

from neuralmark.checkpoints.readers import protobuf
from neuralmark.checkpoints.readers.protobuf import BYTES, FIXED32, VARINT, Wire
from neuralmark.errors import MalformedError, UnsafeError
from tests.support.wire import field, varint


def wire_of(folder: Path, data: bytes) -> Wire:
    path = folder / "message"
    path.write_bytes(data)
    return Wire(path)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80",  # the number of a field that goes on behind the end
        b"\x80" * 12,  # a number of more than 64 bits
        b"\x08",  # a number that is missing
        b"\x08\xff",  # a number that is cut off
        b"\x0a",  # a length that is missing
        b"\x0a\x05abc",  # less than the length says
        b"\x0d\x00\x00",  # three bytes short of four
        b"\x09" + bytes(7),  # seven of eight
        b"\x0b",  # the start of a group, long out of use
        b"\x0e",  # a kind that there is not
        b"\x02\x00",  # a field without a number
        field(1, 1 << 63) + b"\xff",
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, data: bytes) -> None:
    with wire_of(tmp_path, data) as wire, pytest.raises(MalformedError, match="at byte"):
        list(wire.fields((0, len(data))))


def test_every_kind_of_field_is_found(tmp_path: Path) -> None:
    data = field(1, 300) + field(2, b"abc") + b"\x1d" + bytes(4) + b"\x21" + bytes(8)
    with wire_of(tmp_path, data) as wire:
        found = [(number, value, b - a) for number, _, value, (a, b) in wire.fields((0, len(data)))]
    assert found == [(1, 300, 2), (2, 0, 3), (3, 0, 4), (4, 0, 8)]


def test_too_many_fields_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "MAX_FIELDS", 3)
    data = field(1, 1) * 4
    with wire_of(tmp_path, data) as wire:
        assert len(list(wire.fields((0, 6)))) == 3
        with pytest.raises(UnsafeError, match="over 3 fields"):
            list(wire.fields((0, len(data))))


def test_a_file_that_shrinks_while_it_is_read_is_cut_off(tmp_path: Path) -> None:
    data = field(2, bytes(200_000)) + field(1, 1)
    with wire_of(tmp_path, data) as wire:
        fields = wire.fields((0, len(data)))
        _, _, _, span = next(fields)
        os.truncate(tmp_path / "message", 100)
        with pytest.raises(MalformedError, match="is cut off"):
            next(fields)
        with pytest.raises(MalformedError, match="is cut off"):
            wire.bytes(span, 1 << 20)


def test_texts_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = protobuf.MAX_TEXT + 1
    with wire_of(tmp_path, b"a" * long) as wire:
        assert wire.text((0, long - 1)) == "a" * (long - 1)
        with pytest.raises(UnsafeError, match="65,537 bytes is too long"):
            wire.text((0, long))
    monkeypatch.setattr(protobuf, "MAX_CHARACTERS", 10)
    with wire_of(tmp_path, b"abcdef") as wire:
        assert wire.text((0, 6)) == "abcdef"
        with pytest.raises(UnsafeError, match="over 10 characters"):
            wire.text((0, 6))
    with wire_of(tmp_path, b"\xff\xfe") as wire, pytest.raises(MalformedError, match="not text"):
        wire.text((0, 2))


def test_lists_of_numbers_are_read_single_and_packed(tmp_path: Path) -> None:
    packed = varint(3) + varint(-1) + varint(1 << 40)
    with wire_of(tmp_path, packed + b"\x80") as wire:
        assert wire.numbers(VARINT, (1 << 64) - 5, (0, 0)) == [-5]
        assert wire.numbers(BYTES, 0, (0, len(packed))) == [3, -1, 1 << 40]
        assert wire.numbers(BYTES, 0, (0, 0)) == []
        with pytest.raises(MalformedError, match="at byte"):
            wire.numbers(BYTES, 0, (0, len(packed) + 1))
        for kind, span in ((FIXED32, (0, 4)), (BYTES, (0, protobuf.MAX_TEXT + 1))):
            with pytest.raises(MalformedError, match="list of numbers that makes no sense"):
                wire.numbers(kind, 0, span)
