"""The inert pickle reader: equal to pickle on plain data, harmless on everything else."""

import contextlib
import os
import pickle
import struct
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuralmark.checkpoints.readers import inert, pickled
from neuralmark.checkpoints.readers.inert import Call, Global, Opaque, Persistent, Reader
from neuralmark.errors import CheckpointError, MalformedError, UnsafeError

SCALARS = st.none() | st.booleans() | st.integers(-(2**59), 2**59) | st.text(max_size=5)
PLAIN = st.recursive(
    SCALARS | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(SCALARS, inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=20,
)
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def load(folder: Path, data: bytes) -> pickled.Pickle:
    path = folder / "stream"
    path.write_bytes(data)
    with path.open("rb") as file:
        return pickled.load(Reader(file, len(data)))


def seconds(action: Callable[[], Any]) -> float:
    """Of this process only: how busy the machine is does not count."""
    start = time.process_time()
    action()
    return time.process_time() - start


@SHARED
@given(value=PLAIN, protocol=st.integers(0, 5))
def test_plain_data_is_read_as_pickle_reads_it(tmp_path: Path, value: Any, protocol: int) -> None:
    assert load(tmp_path, pickle.dumps(value, protocol)).value == value


@pytest.mark.parametrize("protocol", range(3, 6))
def test_bytes_and_sets(tmp_path: Path, protocol: int) -> None:
    value = load(tmp_path, pickle.dumps([b"ab", {7}, frozenset({8})], max(protocol, 4))).value
    assert value == [b"ab", [7], [8]]
    assert load(tmp_path, pickle.dumps(b"x" * 300, protocol)).value == b"x" * 300


@pytest.mark.parametrize("protocol", range(6))
def test_ordered_dictionaries_are_dictionaries(tmp_path: Path, protocol: int) -> None:
    value = OrderedDict([("b", 1), ("a", (2, 3))])
    found = load(tmp_path, pickle.dumps(value, protocol)).value
    assert list(found.items()) == list(value.items())


def test_ordered_dictionary_of_python_2(tmp_path: Path) -> None:
    stream = b"ccollections\nOrderedDict\n(]((X\x01\x00\x00\x00aK\x01l(X\x01\x00\x00\x00bK\x02letR."
    assert load(tmp_path, stream).value == {"a": 1, "b": 2}


def test_persistent_references_are_kept(tmp_path: Path) -> None:
    found = load(tmp_path, b"(K\x01QPabc\nt.")
    assert [reference.value for reference in found.persistents] == [1, "abc"]
    assert all(isinstance(part, Persistent) for part in found.value)


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_run(tmp_path: Path, protocol: int) -> None:
    stream = pickle.dumps({"weights": Evil(f"touch {tmp_path}/ran")}, protocol)
    call = load(tmp_path, stream).value["weights"]
    assert isinstance(call, Call)
    assert isinstance(call.function, Global)
    assert call.function.name == "system"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "stream",
    [
        b"(i__import__\nos\n.",
        b"(cos\nsystem\nX\x02\x00\x00\x00lso.",
        b"(X\x02\x00\x00\x00lsios\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.",
        b"\x80\x04cos\nsystem\n)}\x92}b.",
        b"cos\nsystem\n)\x81}X\x01\x00\x00\x00aK\x01sb.",
    ],
)
def test_every_way_to_call_gives_a_note(tmp_path: Path, stream: bytes) -> None:
    assert isinstance(load(tmp_path, stream).value, Call)


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b".",
        b"N",
        b"NN.",
        b"(N.",
        b"0N.",
        b"t.",
        b"N\x85\x86.",
        b"h\x00.",
        b"g-1\n.",
        b"Np-1\n.",
        b"Np99999999999999999999\n.",
        b"\xff.",
        b"\x82\x01.",
        b"\x97.",
        b"NR.",
        b"K\x01)R.",
        b"cos\nsystem\nNR.",
        b"ca b\nc\n.",
        b"K\x01K\x02\x93.",
        b"K\x01K\x02K\x03s.",
        b"K\x01K\x02a.",
        b"}(K\x01u.",
        b"(K\x01d.",
        b"K\x01}b.",
        b"(o.",
        b"X\xff\xff\xff\xffabc.",
        b"X\x02\x00\x00\x00\xff\xff.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"\x8b\xff\xff\xff\xff.",
        b"Iabc\n.",
        b"I" + b"9" * 5000 + b"\n.",
        b"L12",
        b"S'abc\n.",
        b"F1.2.3\n.",
        b"G\x00.",
        b"Vabc",
    ],
)
def test_damaged_streams(tmp_path: Path, stream: bytes) -> None:
    with pytest.raises(MalformedError, match="stream"):
        load(tmp_path, stream)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    value = {"a": [1.5, 2**70, "ü"], "b": (None, True, b"x"), "c": OrderedDict(d=Evil("true"))}
    for protocol in (0, 2, 4):
        stream = pickle.dumps(value, protocol)
        for length in range(len(stream)):
            with pytest.raises(MalformedError):
                load(tmp_path, stream[:length])


@SHARED
@given(data=st.binary(max_size=60))
def test_noise_gives_named_errors_only(tmp_path: Path, data: bytes) -> None:
    with contextlib.suppress(CheckpointError):
        load(tmp_path, data + b".")


@SHARED
@given(data=st.data())
def test_flipped_bytes_give_named_errors_only(tmp_path: Path, data: Any) -> None:
    stream = bytearray(pickle.dumps([{"a": 1, "b": (2.5, None)}, OrderedDict(c=Evil("true"))], 2))
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CheckpointError):
        load(tmp_path, bytes(stream))


def bomb(levels: int) -> bytes:
    """A tuple of two tuples of two tuples …: 2**levels leaves, each level stored once."""
    level = b"q\x00h\x00\x86"
    return b"\x80\x02K\x01" + level * levels


def test_an_exponential_value_is_read_at_once(tmp_path: Path) -> None:
    assert seconds(lambda: load(tmp_path, bomb(5000) + b".")) < 2


def test_an_exponential_key_is_not_hashed(tmp_path: Path) -> None:
    stream = b"}" + bomb(5000)[2:] + b"K\x01s."
    found: list[Any] = []
    assert seconds(lambda: found.append(load(tmp_path, stream).value)) < 2
    assert [type(key) for key in found[0]] == [Opaque]


def test_giant_numbers_are_not_kept(tmp_path: Path) -> None:
    giant = b"\x8b" + struct.pack("<i", 1 << 20) + b"\x7f" * (1 << 20)
    stream = b"}" + giant + b"q\x00K\x01s" + b"h\x00K\x01s" * 5000 + b"."
    assert seconds(lambda: load(tmp_path, stream)) < 2
    assert isinstance(load(tmp_path, giant + b".").value, Opaque)


def test_colliding_numbers_are_not_hashed(tmp_path: Path) -> None:
    prime = 2**61 - 1
    items = b"".join(
        b"\x8a\x0b" + (prime * i).to_bytes(11, "little") + b"K\x01s" for i in range(20_000)
    )
    assert seconds(lambda: load(tmp_path, b"}" + items + b".")) < 3


def test_copying_the_same_entries_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickled, "MAX_OPCODES", 20_000)
    pairs = b"(" + b"(K\x01K\x01l" * 1000 + b"lq\x000"
    stream = b"(" + pairs + b"ccollections\nOrderedDict\nh\x00\x85R" * 1000 + b"t."
    with pytest.raises(UnsafeError, match="again and again"):
        load(tmp_path, stream)


def test_a_deep_nest_is_read_and_released(tmp_path: Path) -> None:
    load(tmp_path, b"K\x01" + b"\x85" * 100_000 + b".")
    nest = b"".join((b"ca\nb\nq\x000", b"h\x00" * 50_000, b")R", b"\x85R" * 49_999, b"."))
    assert isinstance(load(tmp_path, nest).value, Call)


def test_too_many_opcodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MAX_OPCODES", 1000)
    with pytest.raises(UnsafeError, match="opcodes"):
        load(tmp_path, b"N0" * 1000 + b"N.")


def test_too_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inert, "MAX_BYTES", 1000)
    with pytest.raises(UnsafeError, match="longer than"):
        load(tmp_path, b"N0" * 1000 + b"N.")
    with pytest.raises(UnsafeError, match="longer than"):
        load(tmp_path, b"X\x00\x10\x00\x00" + b"a" * 4096 + b".")


def test_too_long_a_line(tmp_path: Path) -> None:
    with pytest.raises(UnsafeError, match="line"):
        load(tmp_path, b"I" + b"1" * 100_000 + b"\n.")


def test_what_is_put_into_an_object_is_dropped(tmp_path: Path) -> None:
    found = load(tmp_path, pickle.dumps(deque([1, 2, 3]))).value
    assert isinstance(found, Call)
