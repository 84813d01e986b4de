"""Writing so that a crash leaves the old or the new state, never half of one."""

import errno
import fcntl
import os
import re
import secrets
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import BinaryIO

from neuralmark.errors import OutputError, UnsafeError

LEFT_OUT = (".git", ".hg", ".svn", ".bzr", ".jj")
"""What version control keeps beside a model: no part of it, and full of its unmarked past."""

PRIVATE = 0o600
"""The mode of files that are for their owner only."""

_COPY_STEP = 64 << 20
_FICLONE = 0x40049409
"""Linux: make one file share the bytes of another (ioctl_ficlone(2))."""
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY),
    *(errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
)


def sync(path: Path) -> None:
    """Flush a file's or a folder's content to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_small(path: Path, most: int, *, links: bool = True) -> bytes:
    """The content of a plain file, at most one byte more than `most`.

    Never waits for or drinks from a pipe or a device; follows no link unless it may.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    handle = os.open(path, flags)
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a plain file")
        return file.read(min(most, facts.st_size) + 1)


def create(path: Path, mode: int = 0o644) -> BinaryIO:
    """A new file to write: one that is there, or a link in its place, is never written through."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, mode), "wb")


def write_at(handle: int, data: bytes, offset: int) -> None:
    """Write all of `data` at an offset."""
    view = memoryview(data)
    while len(view):
        done = os.pwrite(handle, view, offset)
        view, offset = view[done:], offset + done


def copy_file(source: Path, target: Path, stop: Event | None = None) -> None:
    """Copy a file's bytes (inside the kernel where it can) and its mode, without syncing.

    A copy that is stopped ends at once and is not complete.
    """
    with open(source, "rb", buffering=0) as src, open(target, "xb", buffering=0) as dst:
        try:
            while os.copy_file_range(src.fileno(), dst.fileno(), _COPY_STEP):
                if stop is not None and stop.is_set():
                    return
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            shutil.copyfileobj(src, dst, _COPY_STEP)  # goes on from where the kernel stopped
    shutil.copymode(source, target)


def clone_file(source: Path, target: Path) -> None:
    """A new file with the same content: the disk shares the bytes until one of them is changed.

    Where it cannot share (FICLONE is known to btrfs, XFS and a few others), they are copied.
    """
    with open(source, "rb", buffering=0) as src, open(target, "xb", buffering=0) as dst:
        try:
            fcntl.ioctl(dst.fileno(), _FICLONE, src.fileno())
        except OSError:
            shared = False
        else:
            shared = True
    if shared:
        shutil.copymode(source, target)
        return
    target.unlink()
    copy_file(source, target)


def link_file(source: Path, target: Path) -> None:
    """A second name for a file that nobody will change; a clone where the disk gives none."""
    try:
        os.link(source.resolve(), target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        clone_file(source, target)


def clone_tree(source: Path, target: Path, changing: Collection[Path]) -> None:
    """As `copy_tree`, but what is not going to change becomes a second name of the same file."""
    if source.is_file():
        clone_file(source, target)
        return
    target.mkdir()
    for entry in sorted(source.iterdir()):
        if left_out(entry):
            continue
        if entry.is_dir():
            clone_tree(entry, target / entry.name, changing)
        else:
            own = clone_file if entry in changing else link_file
            own(entry, target / entry.name)


def left_out(entry: Path) -> bool:
    """Whether copying a model leaves this out: version control, claims, anchors, keys."""
    return entry.name in LEFT_OUT or entry.name.endswith((".claim.json", ".anchor", ".nmkey"))


def copy_tree(source: Path, target: Path, stop: Event | None = None) -> None:
    """Copy a file, or a folder with all it holds except what is not part of a model.

    Links to files are followed, as in a hub's cache; links to folders might lead anywhere.
    """
    if source.is_file():
        copy_file(source, target, stop)
        return
    if not source.is_dir():
        raise UnsafeError(f"{source}: is neither a file nor a folder; take it out of the folder")
    target.mkdir(exist_ok=True)
    for entry in sorted(source.iterdir()):
        if left_out(entry):
            continue
        if entry.is_symlink() and entry.is_dir():
            raise UnsafeError(f"{entry}: links to a folder, which is not followed; take it out")
        if stop is not None and stop.is_set():
            return
        copy_tree(entry, target / entry.name, stop)


def sync_tree(path: Path) -> None:
    """Sync a file, or every file of a folder and the folders themselves."""
    if path.is_dir():
        for entry in path.iterdir():
            sync_tree(entry)
    sync(path)


@contextmanager
def replacing(out: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary path in the folder of `out`; on success sync it and rename it to `out`.

    On any failure the temporary file or folder is removed and `out` stays as it was. A folder is
    only ever replaced by a folder.
    """
    with replacing_together({out: overwrite}) as (temporary,):
        yield temporary


@contextmanager
def replacing_together(outs: Mapping[Path, bool]) -> Iterator[tuple[Path, ...]]:
    """As `replacing`, for several that belong together; each says whether it may be replaced.

    They get their names in the order given, when all are complete; if one cannot, none does. A
    process killed between two names leaves those that come first.
    """
    for out, overwrite in outs.items():
        with writing(out):
            if not out.parent.is_dir():
                raise OutputError(f"{out.parent} is not a folder: create it first")
            if os.path.lexists(out) and not overwrite:
                raise OutputError(
                    f"{out} exists already: choose another name, or pass overwrite=True"
                )
    temporaries = {out: beside(out, "nmtmp") for out in outs}
    with writing(list(outs)[-1]):
        try:
            yield tuple(temporaries.values())
            for temporary in temporaries.values():
                sync_tree(temporary)
            with uninterrupted():
                _put_all(temporaries)
        finally:
            with uninterrupted():
                for temporary in temporaries.values():
                    remove(temporary)


def _put_all(temporaries: Mapping[Path, Path]) -> None:
    """Rename all, in order; what was there is kept until all have their names."""
    ends: list[_End] = []
    try:
        for out, temporary in temporaries.items():
            ends.append(_put(temporary, out, keep=len(temporaries) > 1))
            sync(out.parent)
    except BaseException:
        for end in reversed(ends):
            end(False)
        raise
    for end in ends:
        end(True)


def beside(path: Path, purpose: str) -> Path:
    """A name for a temporary file or folder beside `path` that nobody else uses or foresees."""
    return path.with_name(f".{secrets.token_hex(8)}.{purpose}.{path.name}")


def leftovers(path: Path, purpose: str) -> list[Path]:
    """Temporary files of that purpose that a killed process left beside `path`."""
    form = re.compile(rf"\.[0-9a-f]{{16}}\.{purpose}\.{re.escape(path.name)}")
    with os.scandir(path.parent) as entries:
        return [path.with_name(entry.name) for entry in entries if form.fullmatch(entry.name)]


_End = Callable[[bool], None]
"""What ends a renaming: well (what was there is removed), or not (it is put back)."""


def _put(temporary: Path, out: Path, *, keep: bool) -> _End:
    """Rename a finished file or folder to its place; `keep` what was there until the end."""
    if not os.path.lexists(out):
        temporary.replace(out)
        return lambda well: None if well else remove(out)
    if out.is_dir() and not out.is_symlink():
        return _put_folder(temporary, out)
    old = _second_name(out) if keep else None
    try:
        temporary.replace(out)
    except OSError:
        if old is not None:
            remove(old)
        raise
    if old is None:
        return lambda well: None
    return lambda well: remove(old) if well else _back(old, out)


def _put_folder(temporary: Path, out: Path) -> _End:
    if not temporary.is_dir():
        raise OutputError(f"{out} is a folder: choose another name")
    old = beside(out, "nmold")
    out.replace(old)
    try:
        temporary.replace(out)
    except OSError:
        old.replace(out)
        raise
    return lambda well: remove(old) if well else _back(old, out)


def _back(old: Path, out: Path) -> None:
    if out.is_dir() and not out.is_symlink():
        remove(out)
    old.replace(out)


def _second_name(out: Path) -> Path | None:
    """Another name for a file, so that it can be put back; None where the disk knows no such."""
    old = beside(out, "nmold")
    try:
        os.link(out, old, follow_symlinks=False)
    except OSError:
        return None
    return old


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM until the block is done; for short steps that belong together.

    Only the main thread can and need do so: signals are raised nowhere else.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    former = {number: signal.signal(number, lambda n, _: caught.append(n)) for number in signals}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if caught:
        signal.raise_signal(caught[0])


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write into a named error."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise OutputError(
                f"no space left to write {out}: free some, or choose another disk"
            ) from None
        if error.errno in _REFUSED:
            raise OutputError(
                f"{out} cannot be written ({error.strerror}): choose another place"
            ) from None
        raise


def write_text(out: Path, text: str, *, overwrite: bool = False, mode: int = 0o644) -> None:
    """Write a small text file in one step."""
    write_bytes(out, text.encode("utf-8"), overwrite=overwrite, mode=mode)


def write_bytes(out: Path, content: bytes, *, overwrite: bool = False, mode: int = 0o644) -> None:
    """Write a small file in one step."""
    with writing(out):
        if not out.name or out.is_dir():
            raise OutputError(f"{out} is a folder: give the name of a file")
    with replacing(out, overwrite=overwrite) as temporary, create(temporary, mode) as file:
        file.write(content)


def remove(path: Path) -> None:
    """Remove a file or a folder that may not be there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
