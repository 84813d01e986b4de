"""Changing a checkpoint in place so that a crash at any moment can be undone or completed.

The format is in docs/formats.md. The old bytes are on the disk before the first new one is
written; renaming the journal to `.done`, after the new bytes are on the disk, is the point of no
return. A lock on the checkpoint itself tells a crashed process from one still at work.
"""

import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from neuralmark.core.encoding import canonical_json, enc, strict_json
from neuralmark.errors import InterruptedEmbedError, OutputError, RecordError
from neuralmark.records import Claim
from neuralmark.storage import files

SUFFIX = ".nmjournal"
DONE = ".done"
MAGIC = b"NMJRNL1\n"
_DRAFT = "nmdraft"
_STEP = 8 << 20
_MAX_HEADER = 64 << 20
_DIGEST = 32


@dataclass(frozen=True)
class JournalPlan:
    """What an in-place change will touch, and the claim and anchor that belong to its result."""

    ranges: list[tuple[Path, int, int]]
    claim_file: Path
    claim: str
    anchor: tuple[Path, Path] | None = None
    """The finished anchor under the name of a draft (`draft_of`), and the name it will get."""


def draft_of(path: Path) -> Path:
    """A name beside `path` for what is not complete; recovery removes it."""
    return files.beside(path, _DRAFT)


def journal_of(path: Path) -> Path:
    """Where the journal of a checkpoint is kept."""
    return path / f".neuralmark{SUFFIX}" if path.is_dir() else path.with_name(path.name + SUFFIX)


def refuse_interrupted(path: Path) -> None:
    """Raise if a journal says that the bytes of this checkpoint cannot be relied on.

    That of a folder counts for each of its files, and that of a file for its folder.
    """
    for root in (path, path.parent):
        for journal in (journal_of(root), _done(journal_of(root))):
            if os.path.lexists(journal):
                raise _interrupted(path, journal, root)
    for journal in path.glob(f"*{SUFFIX}*") if path.is_dir() else ():
        name, found, _ = journal.name.rpartition(SUFFIX)
        if found and journal.suffix in (SUFFIX, DONE):
            raise _interrupted(path, journal, path / name)


def _interrupted(path: Path, journal: Path, root: Path) -> InterruptedEmbedError:
    return InterruptedEmbedError(
        f"{path}: an in-place embedding was cut short, or is under way ({journal.name} is there);"
        f" run 'neuralmark recover {root}' first"
    )


def recover(path: Path) -> str | None:
    """Finish or undo what an interrupted in-place change left; say what was done, or None."""
    journal = journal_of(path)
    left = files.leftovers(_unfinished(journal), _DRAFT) + _anchor_drafts(path)
    if not left and not any(os.path.lexists(each) for each in (journal, _done(journal))):
        return None
    with exclusive(path), files.writing(path), files.uninterrupted():
        message = None
        if os.path.lexists(_done(journal)):
            header, _ = _load(path, _done(journal))
            left += files.leftovers(_place(path, header["claim_file"]), _DRAFT)
            _complete(journal, _planned(path, header))
            message = f"{path}: completed an interrupted in-place embedding"
        elif os.path.lexists(journal):
            _undo(path, journal)
            message = f"{path}: undid an interrupted in-place embedding; the old weights are back"
        for draft in left:
            draft.unlink(missing_ok=True)
        files.sync(journal.parent)
        return message or f"{path}: removed an unfinished journal; the weights were not touched"


@contextmanager
def changing(path: Path, plan: JournalPlan) -> Iterator[None]:
    """Change the planned ranges inside this block; a failure restores the old bytes.

    The caller holds the checkpoint with `exclusive`.
    """
    journal = journal_of(path)
    draft = files.beside(_unfinished(journal), _DRAFT)
    with files.writing(path):
        _require_writable(plan)
        try:
            _write(draft, plan)
            if os.path.lexists(journal):
                raise _interrupted(path, journal, path)
            draft.replace(journal)
            files.sync(journal.parent)
            yield
        except BaseException:
            with files.uninterrupted():
                if journal.exists():
                    _undo(path, journal)
                draft.unlink(missing_ok=True)
            raise
        with files.uninterrupted():
            journal.replace(_done(journal))
            files.sync(journal.parent)
            _complete(journal, plan)


def _undo(path: Path, journal: Path) -> None:
    """Put the old bytes back."""
    _restore(path, journal)
    journal.unlink()
    files.sync(journal.parent)


def _complete(journal: Path, plan: JournalPlan) -> None:
    """Name the anchor and write the claim of the new bytes, which are all on the disk."""
    if plan.anchor is not None and os.path.lexists(plan.anchor[0]):
        plan.anchor[0].replace(plan.anchor[1])  # a link is replaced, never followed
        files.sync(plan.anchor[1].parent)
    draft = draft_of(plan.claim_file)
    with files.create(draft, files.PRIVATE) as out:
        out.write(plan.claim.encode("utf-8"))
        out.flush()
        os.fsync(out.fileno())
    draft.replace(plan.claim_file)
    files.sync(plan.claim_file.parent)
    _done(journal).unlink()
    files.sync(journal.parent)


def _planned(path: Path, header: dict[str, Any]) -> JournalPlan:
    """What a journal that was checked says is left to do."""
    names = header["anchor"]
    anchor = None if names is None else (_place(path, names[0]), _place(path, names[1]))
    return JournalPlan([], _place(path, header["claim_file"]), header["claim"], anchor)


def _anchor_drafts(path: Path) -> list[Path]:
    """Anchors that a process left which was killed before there was a journal."""
    form = re.compile(rf"\.[0-9a-f]{{16}}\.{_DRAFT}\.{_anchor_form(path)}")
    with os.scandir(_place(path, "x").parent) as entries:
        return [_place(path, entry.name) for entry in entries if form.fullmatch(entry.name)]


def _anchor_form(path: Path) -> str:
    """How the anchor of a checkpoint is called: as itself, or with a key's first digits."""
    return rf"{re.escape(_stem(path))}(\.[0-9a-f]{{8}})?\.anchor"


def _require_writable(plan: JournalPlan) -> None:
    """Fail before there is a journal rather than after."""
    for file in {file for file, _, _ in plan.ranges}:
        if file.is_symlink():
            raise OutputError(
                f"{file} is a link, and in_place=True changes the model's own files only:"
                " use out=..."
            )
        file.open("r+b").close()


def _write(draft: Path, plan: JournalPlan) -> None:
    header = canonical_json(
        {
            "ranges": [[file.name, offset, length] for file, offset, length in plan.ranges],
            "claim_file": plan.claim_file.name,
            "claim": plan.claim,
            "anchor": None if plan.anchor is None else [file.name for file in plan.anchor],
        }
    )
    digest = hashlib.sha256()
    with files.create(draft, files.PRIVATE) as out:
        for part in _parts(header, plan):
            digest.update(part)
            out.write(part)
        out.write(digest.digest())
        out.flush()
        os.fsync(out.fileno())


def _parts(header: bytes, plan: JournalPlan) -> Iterator[bytes]:
    yield MAGIC + enc(header)
    for file, offset, length in plan.ranges:
        with file.open("rb") as source:
            source.seek(offset)
            yield from _pieces(source, length)


def _load(path: Path, journal: Path) -> tuple[dict[str, Any], int]:
    """The journal's header and where the old bytes begin; refuses a damaged or foreign journal."""
    digest = hashlib.sha256()
    try:
        with _plain(journal, os.O_RDONLY) as file:
            size = os.fstat(file.fileno()).st_size
            for piece in _pieces(file, max(size - _DIGEST, 0)):
                digest.update(piece)
            if file.read() != digest.digest():
                raise ValueError("its digest does not fit")
            file.seek(0)
            magic, length = file.read(len(MAGIC)), int.from_bytes(file.read(8), "little")
            if magic != MAGIC or length > min(size, _MAX_HEADER):
                raise ValueError("it does not begin like a journal")
            header, start = strict_json(file.read(length)), file.tell()
        _check(path, header, size - start - _DIGEST)
    except (ValueError, TypeError, KeyError, RecordError) as error:
        raise InterruptedEmbedError(
            f"{journal}: the journal is damaged ({error}); restore the model from a copy,"
            " then delete the journal"
        ) from None
    return header, start


def _check(path: Path, header: dict[str, Any], size: int) -> None:
    """A journal may only name its own checkpoint: it is a file that nobody vouches for."""
    total = 0
    for name, offset, length in header["ranges"]:
        if name != (Path(name).name if path.is_dir() else path.name):
            raise ValueError("it names what is not beside it")
        target = _beside(path, name)
        if target.is_symlink() or not target.is_file() or type(offset) is not int or offset < 0:
            raise ValueError("it names a file that is not the model's")
        if type(length) is not int or not 0 <= length <= target.stat().st_size - offset:
            raise ValueError("it does not fit the model")
        total += length
    if total != size:
        raise ValueError("its ranges do not fit its size")
    name, claim = header["claim_file"], header["claim"]
    if not isinstance(name, str) or not isinstance(claim, str):
        raise ValueError("its claim is not text")
    named = name.startswith(f"{_stem(path)}.") and name.endswith(".claim.json")
    if not named or name != Path(name).name:
        raise ValueError("it names a claim that is not the model's")
    Claim.loads(claim, "its claim")
    _check_anchor(path, header["anchor"])


def _check_anchor(path: Path, names: Any) -> None:
    """Nothing, or the draft of this model's anchor and the anchor's own name."""
    if names is None:
        return
    draft, name = names
    if not isinstance(name, str) or not re.fullmatch(_anchor_form(path), name):
        raise ValueError("it names an anchor that is not the model's")
    form = rf"\.[0-9a-f]{{16}}\.{_DRAFT}\.{re.escape(name)}"
    if not isinstance(draft, str) or not re.fullmatch(form, draft):
        raise ValueError("it names a draft that is not the anchor's")


def _stem(path: Path) -> str:
    """What the names of claim and anchor begin with."""
    return path.name if path.name not in ("", "..") else path.resolve().name


def _restore(path: Path, journal: Path) -> None:
    header, start = _load(path, journal)
    with _plain(journal, os.O_RDONLY) as source:
        source.seek(start)
        for name, offset, length in header["ranges"]:
            with _plain(_beside(path, name), os.O_RDWR) as target:
                at = offset
                for piece in _pieces(source, length):
                    files.write_at(target.fileno(), piece, at)
                    at += len(piece)
                os.fsync(target.fileno())


def _place(path: Path, name: str) -> Path:
    """Beside the file or the folder, never in a folder: that is published."""
    return (path if path.name not in ("", "..") else path.resolve()).with_name(name)


def _plain(path: Path, flags: int) -> BinaryIO:
    """Open a plain file, never a link, a pipe or a device: a journal may have been planted."""
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ValueError(f"{path.name} cannot be opened: {error.strerror}") from None
    file = os.fdopen(handle, "rb" if flags == os.O_RDONLY else "r+b", buffering=0)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise ValueError(f"{path.name} is not a plain file")
    return cast(BinaryIO, file)


def _beside(path: Path, name: str) -> Path:
    """A file of the folder, or beside the file."""
    return (path if path.is_dir() else path.parent) / name


def _pieces(file: BinaryIO, length: int) -> Iterator[bytes]:
    while length:
        piece = file.read(min(length, _STEP))
        if not piece:
            raise InterruptedEmbedError(f"{file.name}: ends too early")
        length -= len(piece)
        yield piece


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Keep every other process from changing this checkpoint in place."""
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(f"{path}: another process is marking it; try again later") from None
        yield
    finally:
        os.close(handle)


def _unfinished(journal: Path) -> Path:
    return journal.with_name(journal.name + ".new")


def _done(journal: Path) -> Path:
    return journal.with_name(journal.name + DONE)
