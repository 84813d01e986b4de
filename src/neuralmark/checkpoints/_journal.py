"""Changing a checkpoint in place so that a crash at any moment can be undone or completed.

The format is in docs/formats.md. The old bytes are on the disk before the first new one is
written; renaming the journal to `.done`, after the new bytes are on the disk, is the point of no
return. A lock on the checkpoint itself tells a crashed process from one still at work.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from neuralmark import files
from neuralmark.core.encoding import canonical_json, enc, strict_json
from neuralmark.errors import InterruptedEmbedError, OutputError

SUFFIX = ".nmjournal"
DONE = ".done"
MAGIC = b"NMJRNL1\n"
_STEP = 8 << 20
_MAX_HEADER = 64 << 20
_DIGEST = 32


@dataclass(frozen=True)
class Plan:
    """What an in-place change will touch, and the claim that belongs to its result."""

    ranges: list[tuple[Path, int, int]]
    claim_file: Path
    claim: str


def journal_of(path: Path) -> Path:
    """Where the journal of a checkpoint is kept."""
    return path / f".neuralmark{SUFFIX}" if path.is_dir() else path.with_name(path.name + SUFFIX)


def refuse_interrupted(path: Path) -> None:
    """Raise if a journal says that the bytes of this checkpoint cannot be relied on."""
    beside = [journal_of(path), journal_of(path.parent)]
    for journal in beside:
        for candidate in (journal, _done(journal)):
            if candidate.exists():
                raise InterruptedEmbedError(
                    f"{path}: an in-place embedding was cut short ({candidate.name} is beside it);"
                    f" run 'neuralmark recover {path}' first"
                )


def recover(path: Path) -> str | None:
    """Finish or undo what an interrupted in-place change left; say what was done, or None."""
    journal = journal_of(path)
    fresh = _fresh(journal)
    if not any(p.exists() for p in (journal, _done(journal), fresh)):
        return None
    with _locked(path), files.writing(path):
        message = None
        if _done(journal).exists():
            header, _ = _load(_done(journal))
            claim_file = _beside(path, header["claim_file"])
            files.write_text(claim_file, header["claim"], overwrite=True)
            _done(journal).unlink()
            message = f"{path}: completed an interrupted in-place embedding"
        elif journal.exists():
            _restore(path, journal)
            journal.unlink()
            message = f"{path}: undid an interrupted in-place embedding; the old weights are back"
        fresh.unlink(missing_ok=True)
        files.sync(journal.parent)
        return message or f"{path}: removed an unfinished journal; the weights were not touched"


@contextmanager
def changing(path: Path, plan: Plan) -> Iterator[None]:
    """Change the planned ranges inside this block; a failure restores the old bytes."""
    journal = journal_of(path)
    with _locked(path), files.writing(path):
        try:
            _write(journal, plan)
            yield
            journal.replace(_done(journal))
            files.sync(journal.parent)
        except BaseException:
            if journal.exists():
                _restore(path, journal)
                journal.unlink()
            _fresh(journal).unlink(missing_ok=True)
            raise
        files.write_text(plan.claim_file, plan.claim, overwrite=True)
        _done(journal).unlink()
        files.sync(journal.parent)


def _write(journal: Path, plan: Plan) -> None:
    header = canonical_json(
        {
            "ranges": [[file.name, offset, length] for file, offset, length in plan.ranges],
            "claim_file": plan.claim_file.name,
            "claim": plan.claim,
        }
    )
    digest = hashlib.sha256()
    with _fresh(journal).open("wb") as out:
        for part in _parts(header, plan):
            digest.update(part)
            out.write(part)
        out.write(digest.digest())
        out.flush()
        os.fsync(out.fileno())
    _fresh(journal).replace(journal)
    files.sync(journal.parent)


def _parts(header: bytes, plan: Plan) -> Iterator[bytes]:
    yield MAGIC + enc(header)
    for file, offset, length in plan.ranges:
        with file.open("rb") as source:
            source.seek(offset)
            yield from _pieces(source, length)


def _load(journal: Path) -> tuple[dict[str, Any], int]:
    """The journal's header and where the old bytes begin; refuses a damaged journal."""
    damaged = InterruptedEmbedError(
        f"{journal}: the journal is damaged; restore the model from a copy, then delete it"
    )
    size = journal.stat().st_size
    digest = hashlib.sha256()
    with journal.open("rb") as file:
        for piece in _pieces(file, max(size - _DIGEST, 0)):
            digest.update(piece)
        if file.read() != digest.digest():
            raise damaged
        file.seek(0)
        length = int.from_bytes(file.read(len(MAGIC) + 8)[len(MAGIC) :], "little")
        if length > min(size, _MAX_HEADER):
            raise damaged
        try:
            header = strict_json(file.read(length))
        except ValueError:
            raise damaged from None
    if not isinstance(header, dict) or set(header) != {"ranges", "claim_file", "claim"}:
        raise damaged
    return header, len(MAGIC) + 8 + length


def _restore(path: Path, journal: Path) -> None:
    header, start = _load(journal)
    with journal.open("rb") as source:
        source.seek(start)
        for name, offset, length in header["ranges"]:
            with _beside(path, name).open("r+b", buffering=0) as target:
                at = offset
                for piece in _pieces(source, length):
                    files.write_at(target.fileno(), piece, at)
                    at += len(piece)
                os.fsync(target.fileno())


def _beside(path: Path, name: str) -> Path:
    if Path(name).name != name:
        raise InterruptedEmbedError(f"{path}: its journal names {name!r}, which is not beside it")
    return (path if path.is_dir() else path.parent) / name


def _pieces(file: BinaryIO, length: int) -> Iterator[bytes]:
    while length:
        piece = file.read(min(length, _STEP))
        if not piece:
            raise InterruptedEmbedError(f"{file.name}: ends too early")
        length -= len(piece)
        yield piece


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(f"{path}: another process is marking it; try again later") from None
        yield
    finally:
        os.close(handle)


def _done(journal: Path) -> Path:
    return journal.with_name(journal.name + DONE)


def _fresh(journal: Path) -> Path:
    return journal.with_name(journal.name + ".new")
