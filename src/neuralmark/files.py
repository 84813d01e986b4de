"""Writing so that a crash leaves the old or the new state, never half of one."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neuralmark.errors import OutputError

_COPY_STEP = 64 << 20


def sync(path: Path) -> None:
    """Flush a file's or a folder's content to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_at(handle: int, data: bytes, offset: int) -> None:
    """Write all of `data` at an offset."""
    view = memoryview(data)
    while len(view):
        done = os.pwrite(handle, view, offset)
        view, offset = view[done:], offset + done


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's bytes (inside the kernel where it can) and its mode, without syncing."""
    with open(source, "rb", buffering=0) as src, open(target, "xb", buffering=0) as dst:
        try:
            while os.copy_file_range(src.fileno(), dst.fileno(), _COPY_STEP):
                pass
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            shutil.copyfileobj(src, dst, _COPY_STEP)  # goes on from where the kernel stopped
    shutil.copymode(source, target)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a file, or a folder with all it holds (links are followed, as in a hub's cache)."""
    if source.is_file():
        copy_file(source, target)
        return
    target.mkdir(exist_ok=True)
    for entry in sorted(source.iterdir()):
        copy_tree(entry, target / entry.name)


def sync_tree(path: Path) -> None:
    """Sync a file, or every file of a folder and the folders themselves."""
    if path.is_dir():
        for entry in path.iterdir():
            sync_tree(entry)
    sync(path)


@contextmanager
def replacing(out: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary path in the folder of `out`; on success sync it and rename it to `out`.

    On any failure the temporary file or folder is removed and `out` stays as it was.
    """
    if not out.parent.is_dir():
        raise OutputError(f"{out.parent} is not a folder: create it first")
    if out.exists() and not overwrite:
        raise OutputError(f"{out} exists already: choose another name or pass --force")
    temporary = out.with_name(f".{os.getpid()}.nmtmp.{out.name}")
    try:
        with writing(out):
            yield temporary
            sync_tree(temporary)
            if out.is_dir():
                shutil.rmtree(out)
            temporary.replace(out)
            sync(out.parent)
    finally:
        remove(temporary)


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write into a named error."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(
                f"no space left to write {out}: free some, or choose another disk"
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise OutputError(
                f"{out} cannot be written ({error.strerror}): choose another place"
            ) from None
        raise


def write_text(out: Path, text: str, *, overwrite: bool = False, mode: int = 0o644) -> None:
    """Write a small text file in one step."""
    with replacing(out, overwrite=overwrite) as temporary:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)


def remove(path: Path) -> None:
    """Remove a file or a folder that may not be there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
