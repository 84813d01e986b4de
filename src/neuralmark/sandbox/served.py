"""Models that are far, for a process without a network: its parent reads, and hands pieces over.

The process names one of the models that it was told to read, and files in it by their bare names;
its parent asks for nothing else in its name. What it asks for, and in which order, can still be
seen by whoever has the model: to keep even that in, fetch the model first.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from threading import Lock
from typing import Any, Self

from neuralmark.errors import CheckpointError, SandboxError
from neuralmark.sandbox import child
from neuralmark.storage.places import FarPlace, Place, expect, read_at

PIECE = 8 << 20
"""Bytes that are handed over at a time."""
MOST_NAMES = 10_000
MOST_DEPTH = 8
MOST_RANGES = 10_000
"""Ranges that are announced at a time."""
ServedName = str
"""A model, as the parent told the process."""

QUESTION = "place"
_BARE = re.compile(r"[^/\\?#%]{1,255}")


class ServedPlace(FarPlace):
    """In the sandboxed process: a model that the parent reads."""

    def __init__(self, target: ServedName, names: tuple[str, ...] = (), up: int = 0) -> None:
        """`target`: as the parent was told; `names` lie in it, or `up` one in its folder."""
        self._target, self._names, self._up = target, names, up
        self._looked: dict[str, Any] | None = None

    def _ask(self, verb: str, *more: Any) -> bytes:
        return child.ask(QUESTION, self._target, self._up, list(self._names), verb, *more)

    def _look(self) -> dict[str, Any]:
        if self._looked is None:
            self._looked = json.loads(self._ask("look"))
        return self._looked

    def __eq__(self, other: object) -> bool:
        """Whether it is the same file."""
        if not isinstance(other, ServedPlace) or self._target != other._target:
            return False
        if self._up == other._up:
            return self._names == other._names
        return str(self) == str(other)

    def __hash__(self) -> int:
        """The same for the same file."""
        return hash(self._target)

    def __str__(self) -> str:
        """Its address as it may be printed."""
        return str(self._look()["shown"])

    def __truediv__(self, name: str) -> Self:
        """What lies in this folder under a bare name."""
        return type(self)(self._target, (*self._names, name), self._up)

    @property
    def name(self) -> str:
        """The last part of its address."""
        return str(self._look()["name"])

    @property
    def parent(self) -> Self:
        """The folder that it lies in; of the model itself one step, and no further."""
        if self._names:
            return type(self)(self._target, self._names[:-1], self._up)
        return type(self)(self._target, (), 1)

    def is_file(self) -> bool:
        """Whether it holds bytes."""
        return bool(self._look()["file"])

    def is_dir(self) -> bool:
        """Whether something lies in it."""
        return bool(self._look()["folder"])

    def iterdir(self) -> Iterator[Self]:
        """What lies in this folder, not deeper."""
        return (self / name for name in json.loads(self._ask("names")))

    def size(self) -> int:
        """How many bytes it holds."""
        return int(self._look()["size"])

    def stamp(self) -> tuple[Any, ...]:
        """What changes with its content, asked for anew."""
        return (json.loads(self._ask("stamp")),)

    def pinned(self) -> str | None:
        """To which version of it all reading is held."""
        told = json.loads(self._ask("pinned"))
        return None if told is None else str(told)

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Pass on what will be read soon."""
        for at in range(0, len(ranges), MOST_RANGES):
            self._ask("expect", ranges[at : at + MOST_RANGES])

    def read_into(self, buffer: memoryview, at: int) -> int:
        """Fill the buffer with the bytes from `at` on; returns how many there were."""
        done = 0
        while done < len(buffer):
            data = self._ask("read", at + done, min(len(buffer) - done, PIECE))
            if not data:
                break
            buffer[done : done + len(data)] = data
            done += len(data)
        return done


class PlaceServer:
    """In the parent: answers for the models that a process was told to read, and for no others."""

    def __init__(self, find: Callable[[str], Place]) -> None:
        """`find` gives the place of a target."""
        self._find = find
        self._allowed: frozenset[str] = frozenset()
        self._places: dict[str, Place] = {}
        self._lock = Lock()

    def allow(self, targets: Iterable[str]) -> None:
        """From now on, answer for these; what is known of others is forgotten."""
        self._allowed = frozenset(targets)
        with self._lock:
            self._places = {each: self._places[each] for each in self._allowed & {*self._places}}

    def answer(self, question: str, arguments: list[Any]) -> bytes:
        """What a question comes to."""
        try:
            target, up, names, verb, *more = arguments
            sound = question == QUESTION and target in self._allowed and up in (0, 1)
            bare = len(names) <= MOST_DEPTH and all(_is_bare(name) for name in names)
        except (ValueError, TypeError):
            sound = bare = False
        if not (sound and bare):
            raise SandboxError("the sandboxed process asked for what it was not told to read")
        place = self._place(target)
        try:
            place = place.parent if up else place
            for name in names:
                place = place / name
            return _told(place, verb, more)
        except OSError as error:
            why = error.strerror or error
            raise CheckpointError(f"{place}: cannot be read ({why})") from None

    def _place(self, target: ServedName) -> Place:
        with self._lock:
            if target not in self._places:
                self._places[target] = self._find(target)
            return self._places[target]


def _is_bare(name: Any) -> bool:
    if not isinstance(name, str) or not name.isprintable() or name in (".", ".."):
        return False
    return _BARE.fullmatch(name) is not None


def _told(place: Place, verb: str, more: list[Any]) -> bytes:
    if verb == "look":
        file = place.is_file()
        folder = not file and place.is_dir()
        told = {"file": file, "folder": folder, "shown": str(place), "name": place.name}
        return json.dumps({**told, "size": place.stat().st_size if file else 0}).encode()
    if verb == "names":
        inside: Iterator[Place] = iter(place.iterdir())
        found = [each.name for each in islice(inside, MOST_NAMES)]
        return json.dumps([name for name in found if _is_bare(name)]).encode()
    if verb == "stamp":
        return json.dumps(repr(_stamp(place))).encode()
    if verb == "pinned":
        return json.dumps(place.pinned() if isinstance(place, FarPlace) else None).encode()
    try:
        if verb == "expect":
            (ranges,) = more
            expect(place, [(_count(at), _count(length)) for at, length in ranges])
            return b""
        at, length = map(_count, more)
        if verb != "read":
            raise ValueError(verb)
    except (ValueError, TypeError):
        raise SandboxError("the sandboxed process asked for nonsense") from None
    room = bytearray(min(PIECE, length))
    with place.open("rb", buffering=0) as opened:
        return bytes(room[: read_at(opened, memoryview(room), at)])


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError("not a number of bytes")
    return value


def _stamp(place: Place) -> tuple[Any, ...]:
    if isinstance(place, FarPlace):
        return place.stamp()
    facts = place.stat()
    return facts.st_size, facts.st_mtime_ns, facts.st_ino
