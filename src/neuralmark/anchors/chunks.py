"""Bytes sealed in chunks: written once from front to back, read anywhere within bounded memory.

A file is `MAGIC ‖ enc(public header) ‖ chunks`. The public header (canonical JSON) names format,
version, the fingerprint of the key and a nonce; with the nonce, a file has a cipher key of its own.
A chunk is AES-256-GCM of at most `CHUNK` bytes; its nonce is its number and whether it is the last,
and everything before the first chunk is its associated data. So whatever is cut off, edited,
swapped or taken from another file is noticed.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from neuralmark.core.encoding import canonical_json, enc, strict_json
from neuralmark.errors import AnchorError, AnchorMismatchError, InputError, UsageError
from neuralmark.keys.key import Key
from neuralmark.keys.sealing import b64, unb64

VERSION = 1
CHUNK = 1 << 16
TAG = 16
NONCE_BYTES = 32
_MAX_PUBLIC = 1 << 12
_MEMBERS = {"fingerprint", "format", "nonce", "version"}


@dataclass(frozen=True)
class SealedKind:
    """What is sealed: how its files begin, what it is called, and what its errors are."""

    magic: bytes
    format: str
    noun: str
    damaged: type[InputError]
    foreign: type[UsageError]


ANCHOR = SealedKind(b"NMANCHR1", "neuralmark-anchor", "anchor", AnchorError, AnchorMismatchError)
MAGIC, FORMAT = ANCHOR.magic, ANCHOR.format


@dataclass(frozen=True)
class PublicHeader:
    """What anybody may read of a sealed file."""

    fingerprint: str
    nonce: bytes
    kind: SealedKind = ANCHOR

    def to_bytes(self) -> bytes:
        """Everything before the first chunk."""
        public = {
            "fingerprint": self.fingerprint,
            "format": self.kind.format,
            "nonce": b64(self.nonce),
            "version": VERSION,
        }
        return self.kind.magic + enc(canonical_json(public))


def read_public(path: Path, *, links: bool = True) -> PublicHeader:
    """The public header of an anchor file; needs no key."""
    with _opened(path, links=links) as file:
        return _public(path, file, ANCHOR)


def is_sealed(path: Path) -> bool:
    """Whether a file begins as an anchor does; folders and what cannot be read are none."""
    try:
        with _opened(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (AnchorError, OSError):
        return False


@contextmanager
def _opened(path: Path, *, links: bool = True, kind: SealedKind = ANCHOR) -> Iterator[BinaryIO]:
    """A plain file to read: never waits for a pipe, follows no link unless it may."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    try:
        file = os.fdopen(os.open(path, flags), "rb", buffering=0)
        with file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise kind.damaged(f"{path}: is not a plain file")
            yield file
    except OSError as error:
        raise kind.damaged(f"{path}: cannot be read ({error.strerror or error})") from None


def _public(path: Path, file: BinaryIO, kind: SealedKind) -> PublicHeader:
    magic = kind.magic
    head = file.read(len(magic) + 8)
    if head[: len(magic)] != magic:
        raise kind.damaged(f"{path}: not a NeuralMark {kind.noun}")
    length = int.from_bytes(head[len(magic) :], "little")
    broken = f"{path}: the {kind.noun} is damaged"
    if len(head) < len(magic) + 8 or length > _MAX_PUBLIC:
        raise kind.damaged(f"{broken} (its header is cut off or too long)")
    try:
        public = strict_json(file.read(length))
        return _checked_public(path, public, kind)
    except (ValueError, TypeError, KeyError):
        raise kind.damaged(f"{broken} (its header is not readable)") from None


def _checked_public(path: Path, public: Any, kind: SealedKind) -> PublicHeader:
    if not isinstance(public, dict) or public.get("format") != kind.format:
        raise kind.damaged(f"{path}: not a NeuralMark {kind.noun}")
    if type(public.get("version")) is not int or public["version"] != VERSION:
        raise kind.damaged(f"{path}: the {kind.noun} is of an unknown version; update neuralmark")
    if set(public) != _MEMBERS or not isinstance(public["fingerprint"], str):
        raise ValueError("not its members")
    header = PublicHeader(public["fingerprint"], unb64(public["nonce"], NONCE_BYTES), kind)
    header.fingerprint.encode("utf-8")
    return header


def _cipher(key: Key, nonce: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key.anchor_key(nonce))


def _chunk_nonce(number: int, last: bool) -> bytes:
    return bytes(3) + number.to_bytes(8, "little") + bytes([last])


class ChunkWriter:
    """Seals bytes that come in pieces of any size."""

    def __init__(self, file: BinaryIO, key: Key, kind: SealedKind = ANCHOR) -> None:
        """Write the public header; the file is the caller's."""
        public = PublicHeader(key.fingerprint, secrets.token_bytes(NONCE_BYTES), kind)
        self._cipher = _cipher(key, public.nonce)
        self._head = public.to_bytes()
        self._file, self._rest, self._number = file, bytearray(), 0
        file.write(self._head)

    def write(self, data: bytes) -> None:
        """The next bytes; at least one stays back for the last chunk."""
        self._rest += data
        while len(self._rest) > CHUNK:
            self._put(bytes(self._rest[:CHUNK]), last=False)
            del self._rest[:CHUNK]

    def finish(self) -> None:
        """The last chunk, which says that it is."""
        self._put(bytes(self._rest), last=True)
        self._rest.clear()

    def _put(self, plain: bytes, *, last: bool) -> None:
        nonce = _chunk_nonce(self._number, last)
        self._file.write(self._cipher.encrypt(nonce, plain, self._head))
        self._number += 1


class ChunkReader:
    """The plain bytes of a sealed file, anywhere in it; opened anew for every read."""

    def __init__(
        self, path: Path, key: Key, *, links: bool = True, kind: SealedKind = ANCHOR
    ) -> None:
        """Read the public header, and see whose the file is."""
        self._path, self._links, self._kind = path, links, kind
        self._recent = -1, b""
        with _opened(path, links=links, kind=kind) as file:
            public = _public(path, file, kind)
            self._start = file.tell()
            sealed = os.fstat(file.fileno()).st_size - self._start
        if public.fingerprint != key.fingerprint:
            raise kind.foreign(
                f"{path}: the {kind.noun} is of the key {public.fingerprint[:60]}, not of this one"
                f" ({key.fingerprint}); give the key that made it"
            )
        self._head = public.to_bytes()
        if len(self._head) != self._start or sealed < TAG:
            raise kind.damaged(f"{path}: the {kind.noun} is damaged or cut off")
        self._cipher = _cipher(key, public.nonce)
        self._count = max(-(-sealed // (CHUNK + TAG)), 1)
        self.size = sealed - self._count * TAG
        if not 0 <= self.size <= self._count * CHUNK or self.size < (self._count - 1) * CHUNK:
            raise kind.damaged(f"{path}: the {kind.noun} is damaged or cut off")

    def read(self, offset: int, count: int) -> bytes:
        """Plain bytes; every chunk they lie in is opened and so checked."""
        first, last = offset // CHUNK, (offset + count - 1) // CHUNK
        if first == last == self._recent[0]:
            plain = self._recent[1]
        else:
            with _opened(self._path, links=self._links, kind=self._kind) as file:
                file.seek(self._start + first * (CHUNK + TAG))
                plain = b"".join(self._chunk(file, number) for number in range(first, last + 1))
        start = offset - first * CHUNK
        if len(plain) < start + count:
            raise self._damaged("is damaged or cut off")
        return plain[start : start + count]

    def _chunk(self, file: BinaryIO, number: int) -> bytes:
        from cryptography.exceptions import InvalidTag

        sealed = _filled(file, CHUNK + TAG)
        try:
            plain: bytes = self._cipher.decrypt(
                _chunk_nonce(number, number == self._count - 1), sealed, self._head
            )
        except (InvalidTag, ValueError):
            raise self._damaged(f"was cut off, damaged or edited (chunk {number})") from None
        self._recent = number, plain
        return plain

    def _damaged(self, how: str) -> InputError:
        return self._kind.damaged(f"{self._path}: the {self._kind.noun} {how}")


def _filled(file: BinaryIO, count: int) -> bytes:
    """As many bytes as there are, up to a number: a plain read may give fewer."""
    parts = []
    while count and (part := file.read(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
