"""Fetching an archive from its usual place, checked, and unpacked without leaving the folder."""

import hashlib
import shutil
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from neuralmark.errors import DamagedDataSetError, MissingDataSetError, OutputError, UnsafeError

_CHUNK = 1 << 20
_TIMEOUT = 60.0
_MOST = 16 << 30
"""No data set of the zoo unpacks to more."""


@dataclass(frozen=True)
class Archive:
    """An archive of a data set."""

    url: str
    md5: str
    """As its keepers publish it: against damage on the way; https vouches for the sender.

    Empty where they publish none: then the unpacked files are checked.
    """
    inner: str = ""
    """An archive inside it that is unpacked as well."""


def fetch(archive: Archive, folder: Path) -> None:
    """Download, check and unpack into the folder; nothing is left of a failed attempt."""
    name = PurePosixPath(archive.url).name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".neuralmark-", dir=folder) as work:
            packed, fresh = Path(work) / name, Path(work) / "unpacked"
            _download(archive, packed)
            unpack(packed, fresh)
            if archive.inner:
                unpack(fresh / archive.inner, (fresh / archive.inner).parent)
                (fresh / archive.inner).unlink()
            for made in sorted(fresh.iterdir()):
                if not (folder / made.name).exists():
                    shutil.move(made, folder / made.name)
    except OSError as error:
        raise OutputError(f"cannot unpack {name} in {folder}: {error.strerror or error}") from None


def _download(archive: Archive, path: Path) -> None:
    from urllib.error import URLError
    from urllib.request import urlopen

    if not archive.url.startswith("https://"):
        raise UnsafeError(f"{archive.url} is not fetched: only https addresses are")
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urlopen(archive.url, timeout=_TIMEOUT) as answer, path.open("wb") as file:  # noqa: S310
            while chunk := answer.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
    except (URLError, TimeoutError, ConnectionError) as error:
        why = getattr(error, "reason", error)
        raise MissingDataSetError(
            f"cannot fetch {archive.url} ({why}); without a network, put the data into a folder"
            " and name it (data=DIR)"
        ) from None
    if archive.md5 and digest.hexdigest() != archive.md5:
        raise DamagedDataSetError(
            f"{archive.url} is not what was published (md5 {digest.hexdigest()}, expected"
            f" {archive.md5}): try again"
        )


def unpack(packed: Path, folder: Path) -> None:
    """Unpack a tar or zip archive; a member that would leave the folder is an error."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(packed):
            with zipfile.ZipFile(packed) as book:
                _check_size(sum(each.file_size for each in book.infolist()))
                _check_names(book.namelist())
                book.extractall(folder)  # noqa: S202 - the names are checked
        else:
            with tarfile.open(packed) as rolls:
                _check_size(sum(each.size for each in rolls.getmembers()))
                rolls.extractall(folder, filter="data")
    except (tarfile.FilterError, UnsafeError) as error:
        raise UnsafeError(f"{packed.name}: {error}") from None
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, FileNotFoundError) as error:
        raise DamagedDataSetError(f"{packed.name}: a damaged archive ({error})") from None


def _check_size(size: int) -> None:
    if size > _MOST:
        raise UnsafeError(f"it unpacks to {size:,} bytes, above the cap of {_MOST:,}")


def _check_names(names: list[str]) -> None:
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:
            raise UnsafeError(f"its member {name[:80]!r} would leave the folder")
