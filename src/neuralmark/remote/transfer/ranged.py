"""One file of a web server: what it is, and ranges of it that hold what they promise."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from neuralmark.errors import ChangedError, NeuralMarkError, RemoteError
from neuralmark.remote.contract import FileFacts, FirstLook
from neuralmark.remote.transfer.addresses import Address
from neuralmark.remote.transfer.http import Answer, HttpClient, passing
from neuralmark.remote.transfer.retrying import PassingTrouble

FIRST_LOOK = 64 << 10
"""Bytes that are asked for with the first request: most headers fit."""
_ABSENT = (404, 410)
_EXPIRED = (400, 401, 403, 404, 410)
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_NO_RANGE = re.compile(r"bytes \*/(\d{1,18})")

Refusal = Callable[[str, Answer], NeuralMarkError]
"""The error for an answer that is none."""


class RangedFile:
    """Asks for one URL. Where redirects led is remembered until that address is no good."""

    def __init__(self, client: HttpClient, address: Address, shown: str, refusal: Refusal) -> None:
        """`shown`: the address as it is printed."""
        self._client, self._address, self._shown = client, address, shown
        self._refusal = refusal
        self._led_to: Address | None = None
        self._lock = threading.Lock()

    def look(self, first: int = FIRST_LOOK) -> FirstLook | None:
        """Its size and version, and so many of its first bytes; None where there is none."""
        tries = self._client.tries(self._shown)
        while True:
            try:
                return self._first(first)
            except PassingTrouble as trouble:
                tries.again(trouble)

    def fetch(self, facts: FileFacts, start: int, stop: int) -> bytearray:
        """A range of the version that was seen; a cut-off transfer goes on where it was cut."""
        room, got = bytearray(stop - start), 0
        tries = self._client.tries(self._shown)
        while got < len(room):
            before = got
            try:
                for piece in self._stream(facts, start + got, stop):
                    room[got : got + len(piece)] = piece
                    got += len(piece)
                if got == before:
                    raise PassingTrouble("the connection was cut off (nothing came)")
                if got < len(room):
                    tries.again(PassingTrouble("the connection was cut off"), got - before)
            except PassingTrouble as trouble:
                tries.again(trouble, got - before)
        return room

    def _first(self, first: int) -> FirstLook | None:
        with self._asked({"Range": f"bytes=0-{first - 1}"}, fresh=True) as answer:
            if answer.status in _ABSENT:
                return None
            passing(answer)
            if answer.status == 416:
                return self._empty(answer)
            if answer.status == 200:
                return self._whole(answer)
            if answer.status != 206:
                raise self._refusal(self._shown, answer)
            low, high, size = self._told(answer)
            if low != 0 or high >= first or high + 1 < min(first, size):
                raise self._lie("another range than it was asked for")
            head = b"".join(answer.body(high + 1))
            if len(head) != high + 1:
                raise PassingTrouble("the connection was cut off")
            return FirstLook(_facts(answer, size), head)

    def _empty(self, answer: Answer) -> FirstLook:
        found = _NO_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != 0:
            raise self._lie("that even the first byte is beyond the end")
        return FirstLook(_facts(answer, 0))

    def _whole(self, answer: Answer) -> FirstLook:
        """A server without ranges is good enough for a file that fits into one of them."""
        data = b"".join(answer.body(FIRST_LOOK + 1))
        if len(data) > FIRST_LOOK:
            raise RemoteError(
                f"{self._shown}: the server does not offer ranges (it sends the whole file when"
                " asked for a part): download the file first"
            )
        length = answer.headers.get("Content-Length", "")
        if length.isdigit() and int(length) != len(data):
            raise PassingTrouble("the connection was cut off")
        return FirstLook(_facts(answer, len(data)), data)

    def _stream(self, facts: FileFacts, start: int, stop: int) -> Iterator[bytes]:
        wanted = {"Range": f"bytes={start}-{stop - 1}", **_only_if(facts)}
        with self._asked(wanted) as answer:
            passing(answer)
            if answer.status in (412, 416, *_ABSENT):
                raise self._changed()
            if answer.status == 200 and (start, stop) != (0, facts.size):
                raise (
                    self._changed()
                    if _facts(answer, 0) != _unsized(facts)
                    else self._lie("the whole file where it offered ranges before")
                )
            if answer.status not in (200, 206):
                raise self._refusal(self._shown, answer)
            if answer.status == 206:
                low, high, size = self._told(answer)
                if size != facts.size:
                    raise self._changed()
                if low != start or high >= stop:
                    raise self._lie("another range than it was asked for")
                stop = high + 1
            if _facts(answer, facts.size) != facts:
                raise self._changed()
            yield from answer.body(stop - start)

    def _told(self, answer: Answer) -> tuple[int, int, int]:
        """First and last byte of an answer, and the size of the file."""
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise self._lie("packed bytes though it was asked for plain ones")
        found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if found is None or found[3] == "*":
            raise self._lie("a part without saying which (Content-Range)")
        low, high, size = int(found[1]), int(found[2]), int(found[3])
        length = answer.headers.get("Content-Length", "")
        if not low <= high < size or (length and length != str(high - low + 1)):
            raise self._lie("a part whose length contradicts itself")
        return low, high, size

    @contextmanager
    def _asked(self, headers: Mapping[str, str], *, fresh: bool = False) -> Iterator[Answer]:
        """An answer from where redirects led before; from the start if that is no good any more."""
        headers = {"Accept-Encoding": "identity", **headers}
        with self._lock:
            known = None if fresh else self._led_to
        answer = self._client.open(known or self._address, headers, self._address)
        if known is not None and answer.status in _EXPIRED:
            with answer:
                pass
            answer = self._client.open(self._address, headers)
        with self._lock:
            self._led_to = None if answer.address == self._address else answer.address
        with answer:
            yield answer

    def _changed(self) -> ChangedError:
        return changed(self._shown)

    def _lie(self, what: str) -> RemoteError:
        return RemoteError(f"{self._shown}: the server is not to be relied on: it sent {what}")


def changed(shown: str) -> ChangedError:
    """The error for a file that is another one than before."""
    return ChangedError(f"{shown}: changed while it was read; verify it again")


def _only_if(facts: FileFacts) -> dict[str, str]:
    """The condition that it is still the same file, in the server's own words."""
    if facts.strong is not None:
        return {"If-Match": facts.strong}
    return {} if facts.modified is None else {"If-Unmodified-Since": facts.modified}


def _facts(answer: Answer, size: int) -> FileFacts:
    etag, modified = answer.headers.get("ETag"), answer.headers.get("Last-Modified")
    return FileFacts(size, etag, None, None if etag and not etag.startswith("W/") else modified)


def _unsized(facts: FileFacts) -> FileFacts:
    return FileFacts(0, facts.etag, facts.version, facts.modified)
