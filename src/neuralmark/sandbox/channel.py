"""Messages between a sandboxed process and its parent: a length, then so many bytes."""

import os

LONGEST = 256 << 20
"""Bytes of one message: a batch of verdicts, or a piece of a file."""
_LENGTH = 5


def send(handle: int, kind: bytes, body: bytes) -> None:
    """Write a message, whose first byte says what it is."""
    message = (len(body) + 1).to_bytes(_LENGTH, "little") + kind + body
    view = memoryview(message)
    while len(view):
        view = view[os.write(handle, view) :]


def receive(handle: int) -> tuple[bytes, bytes]:
    """Read a message; EOFError where the other side is gone, ValueError where it is too long."""
    length = int.from_bytes(_exactly(handle, _LENGTH), "little")
    if not 0 < length <= LONGEST:
        raise ValueError("a message of an impossible length")
    body = _exactly(handle, length)
    return body[:1], body[1:]


def _exactly(handle: int, count: int) -> bytes:
    got = bytearray()
    while len(got) < count:
        piece = os.read(handle, min(count - len(got), 1 << 20))
        if not piece:
            raise EOFError
        got += piece
    return bytes(got)
