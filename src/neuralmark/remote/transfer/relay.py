"""A place served over a socket: for a process that may read one model and reach nothing else.

The parent, which may use the network and the disk, answers for one place and what lies in it
(`relayed`). The child sees a `RelayedPlace`, which any format reads. The child is not trusted: it
may ask only for names in this place, and for so much at a time. A message is a line of JSON with
its length before it, then bytes if it announces some.
"""

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Self

from neuralmark import errors
from neuralmark.errors import CheckpointError, NeuralMarkError, RemoteError
from neuralmark.storage.places import FarPlace, Place, expect, read_at

MOST_MESSAGE = 1 << 20
MOST_BYTES = 8 << 20
"""Bytes that are answered at once."""
MOST_NAMES = 10_000
MOST_DEPTH = 16
_LENGTH = struct.Struct("<IQ")


@contextlib.contextmanager
def relayed(place: Place) -> Iterator[socket.socket]:
    """A socket to hand to a child, behind which a place is served until this ends.

    The child makes a `RelayedPlace` of it. A place on this machine can be served, too. Of an index
    file serve the folder, and name the file to the child: its shards lie beside it.
    """
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve_place, args=[place, ours], daemon=True)
    thread.start()
    try:
        yield theirs
    finally:
        theirs.close()
        with contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)
        thread.join()


def serve_place(place: Place, connection: socket.socket) -> None:
    """Answer for a place until the other side hangs up, or breaks the rules."""
    with connection:
        while True:
            try:
                asked, _ = _received(connection, 0)
                told, data = _answered(place, asked)
                _sent(connection, told, data)
            except (OSError, ValueError, EOFError, KeyError, TypeError, RecursionError):
                return


def _answered(place: Place, asked: Any) -> tuple[Any, bytes]:
    """What a question comes to; every failure is told by its name."""
    try:
        return _asked(_under(place, asked["names"]), asked)
    except (FileNotFoundError, NotADirectoryError):
        return {"error": "FileNotFoundError", "message": "there is no such file"}, b""
    except NeuralMarkError as error:
        return {"error": type(error).__name__, "message": str(error)}, b""
    except OSError as error:
        message = f"{place}: cannot be read ({error.strerror or error})"
        return {"error": CheckpointError.__name__, "message": message}, b""


def _under(place: Place, names: Any) -> Place:
    """What lies in a place under bare names; anything else breaks the rules."""
    if not isinstance(names, list) or len(names) > MOST_DEPTH:
        raise ValueError("no list of names")
    for name in names:
        bare = isinstance(name, str) and Path(name).name == name and "\\" not in name
        if not bare or not name.isprintable() or name in ("", ".", ".."):
            raise ValueError("not a bare name")
        place = place / name
    return place


def _asked(place: Place, asked: Any) -> tuple[Any, bytes]:
    verb = asked["verb"]
    if verb == "look":
        told = {"file": place.is_file(), "folder": place.is_dir(), "shown": str(place)}
        return {**told, "name": place.name}, b""
    if verb == "size":
        return {"size": place.stat().st_size}, b""
    if verb == "stamp":
        return {"stamp": repr(_stamp(place)), "pinned": _pinned(place)}, b""
    if verb == "names":
        entries: Iterator[Place] = iter(place.iterdir())
        names = [each.name for each in islice(entries, MOST_NAMES)]
        return {"names": [name for name in names if name.isprintable()]}, b""
    if verb == "expect":
        ranges = [(_count(at), _count(length)) for at, length in asked["ranges"]]
        expect(place, ranges)
        return {}, b""
    if verb == "read":
        at, room = _count(asked["at"]), bytearray(min(_count(asked["length"]), MOST_BYTES))
        with place.open("rb", buffering=0) as file:
            got = read_at(file, memoryview(room), at)
        return {}, bytes(room[:got])
    raise ValueError("no such verb")


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError("not a number of bytes")
    return value


def _stamp(place: Place) -> Any:
    if isinstance(place, FarPlace):
        return place.stamp()
    s = place.stat()
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns


def _pinned(place: Place) -> str | None:
    return place.pinned() if isinstance(place, FarPlace) else None


@dataclass
class _Line:
    """The child's end: one question at a time."""

    connection: socket.socket
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, verb: str, names: tuple[str, ...], **more: Any) -> tuple[Any, bytes]:
        with self.lock:
            try:
                _sent(self.connection, {"verb": verb, "names": list(names), **more}, b"")
                told, data = _received(self.connection, MOST_BYTES)
            except (OSError, ValueError, EOFError):
                raise RemoteError("the model is not served any more") from None
        if "error" in told:
            raise _error(told["error"], told["message"])
        return told, data


def _error(name: str, message: str) -> Exception:
    if name == "FileNotFoundError":
        return FileNotFoundError(2, message)
    kind = getattr(errors, name, None)
    known = isinstance(kind, type) and issubclass(kind, NeuralMarkError)
    return kind(message) if known else CheckpointError(message)  # type: ignore[misc]


class RelayedPlace(FarPlace):
    """A place that another process serves over a socket (`relayed`)."""

    def __init__(self, line: "socket.socket | _Line", names: tuple[str, ...] = ()) -> None:
        """`line`: the socket that the parent handed over."""
        self._line = line if isinstance(line, _Line) else _Line(line)
        self._names = names
        self._looked: dict[str, Any] | None = None
        self._size: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RelayedPlace) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[int, tuple[str, ...]]:
        return id(self._line), self._names

    def __str__(self) -> str:
        return str(self._look()["shown"])

    def __truediv__(self, name: str) -> Self:
        return type(self)(self._line, (*self._names, name))

    @property
    def name(self) -> str:
        """The last part of its address."""
        return str(self._look()["name"])

    @property
    def parent(self) -> Self:
        """The folder that it lies in; of the place that is served, itself."""
        return type(self)(self._line, self._names[:-1])

    def is_file(self) -> bool:
        """Whether it holds bytes."""
        return bool(self._look()["file"])

    def is_dir(self) -> bool:
        """Whether something lies in it."""
        return bool(self._look()["folder"])

    def iterdir(self) -> Iterator[Self]:
        """What lies in this folder, not deeper."""
        return (self / name for name in self._ask("names")[0]["names"])

    def size(self) -> int:
        """How many bytes it holds."""
        if self._size is None:
            self._size = int(self._ask("size")[0]["size"])
        return self._size

    def stamp(self) -> tuple[Any, ...]:
        """What changes with its content, asked for anew."""
        return (self._ask("stamp")[0]["stamp"],)

    def pinned(self) -> str | None:
        """To which version of it all reading is held."""
        pin = self._ask("stamp")[0]["pinned"]
        return None if pin is None else str(pin)

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Pass on what will be read soon."""
        step = 10_000
        for at in range(0, len(ranges), step):
            self._ask("expect", ranges=[list(each) for each in ranges[at : at + step]])

    def read_into(self, buffer: memoryview, at: int) -> int:
        """Fill the buffer with the bytes from `at` on; returns how many there were."""
        done = 0
        while done < len(buffer):
            wanted = min(len(buffer) - done, MOST_BYTES)
            _, data = self._ask("read", at=at + done, length=wanted)
            if not data:
                break
            buffer[done : done + len(data)] = data
            done += len(data)
        return done

    def _look(self) -> dict[str, Any]:
        if self._looked is None:
            self._looked = self._ask("look")[0]
        return self._looked

    def _ask(self, verb: str, **more: Any) -> tuple[Any, bytes]:
        return self._line.ask(verb, self._names, **more)


def _sent(connection: socket.socket, told: Any, data: bytes) -> None:
    line = json.dumps(told).encode()
    connection.sendall(_LENGTH.pack(len(line), len(data)) + line)
    if data:
        connection.sendall(data)


def _received(connection: socket.socket, most: int) -> tuple[Any, bytes]:
    length, count = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > MOST_MESSAGE or count > most:
        raise ValueError("a message that is too long")
    told = json.loads(_exactly(connection, length))
    if not isinstance(told, dict):
        raise ValueError("not a message")
    return told, _exactly(connection, count)


def _exactly(connection: socket.socket, length: int) -> bytes:
    room = bytearray(length)
    view, done = memoryview(room), 0
    while done < length:
        got = connection.recv_into(view[done:])
        if not got:
            raise EOFError
        done += got
    return bytes(room)
