"""Which models are looked at: files, folders, globs, URLs and lists, one after the other.

Nothing is held but the folders that are open, so a folder of a million files is no burden. What is
not there is passed on all the same, and becomes a row.
"""

import glob
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path

from neuralmark.checkpoints import WholeFolder, is_shard_name, place_of, whole_folder
from neuralmark.errors import NeuralMarkError, ParameterError
from neuralmark.remote import RemoteOptions, is_url
from neuralmark.remote.transfer.addresses import masked
from neuralmark.scanning.contract import TargetName
from neuralmark.storage.files import LEFT_OUT
from neuralmark.storage.places import FarPlace, Place

SUFFIXES = (
    *(".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".pt2", ".gguf", ".onnx"),
    *(".keras", ".h5", ".hdf5", ".msgpack", ".th", ".model"),
)
"""Endings of model files, for searching folders; whatever is named is taken."""
MAGIC = (b"GGUF", b"\x89HDF\r\n\x1a\n")
"""How model files begin that go by other endings; safetensors are told by their header."""
MOST_SORTED = 10_000
"""Entries of a folder up to which they come in order."""
HELD_BACK = 1_000
"""Far files that are not passed on yet: they may be parts of a model that is listed next."""
_INDEX = re.compile(r"\.(safetensors|bin|msgpack)\.index\.json$")
_FIRST_OF_SPLIT = re.compile(r"-00001-of-\d{5}\.gguf$")
"""Split files of llama.cpp have no index: the first stands for all."""
_GLOB = re.compile(r"[*?\[]")


def targets_of(
    given: Iterable[str | Path],
    lists: Iterable[str | Path] = (),
    skip: Path | None = None,
    remote: RemoteOptions | None = None,
) -> Iterator[str]:
    """All models that were named, or lie in folders that were; `skip` is a folder of ours."""
    ours = None if skip is None else skip.resolve()
    for each in chain(map(str, given), chain.from_iterable(map(_listed, lists))):
        yield from _behind(each, remote) if is_url(each) else _expanded(each, ours)


def _listed(file: str | Path) -> Iterator[str]:
    """The lines of a file; `-` is the standard input."""
    try:
        with _lines(file) as lines:
            for line in lines:
                if "\0" in line:
                    raise ValueError("it is no text")
                if line.strip() and not line.startswith("#"):
                    yield line.strip()
    except (OSError, ValueError) as error:
        raise ParameterError(f"{file}: no list of targets can be read from it ({error})") from None


def _lines(file: str | Path) -> AbstractContextManager[Iterable[str]]:
    """Lines as the file system takes them: names may hold bytes that are no UTF-8."""
    if str(file) != "-":
        return open(file, encoding="utf-8", errors="surrogateescape")
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    return nullcontext(sys.stdin)


def _expanded(target: TargetName, skip: Path | None) -> Iterator[str]:
    path = Path(target)
    if _is_folder(path):
        found = _searched(path, skip)
        first = next(found, None)
        yield from (target,) if first is None else chain((first,), found)
    elif _GLOB.search(target) and not os.path.lexists(path):
        yield from _matching(target, skip)
    else:
        yield target


def _behind(url: TargetName, remote: RemoteOptions | None) -> Iterator[str]:
    """The models behind a URL: itself, or those in the folder that it is.

    What cannot be listed is passed on as it is, and becomes a row; credentials in it are not.
    """
    empty = True
    try:
        place = place_of(url, remote)
        if isinstance(place, FarPlace) and not _is_far_file(place) and place.is_dir():
            for found in _far(place):
                empty = False
                yield found
    except (NeuralMarkError, OSError):
        empty = True
    if empty:
        yield masked(url)


def _is_far_file(place: FarPlace) -> bool:
    """Whether it is no folder; what is named like a model is not asked for."""
    return is_model_name(place.name) or place.is_file()


def _far(folder: FarPlace) -> Iterator[str]:
    """The models in a far folder and below, as they are listed."""
    held: deque[FarPlace] = deque()
    wholes = _FarWholes()
    failure: Exception | None = None
    try:
        for file in folder.walk():
            if wholes.has(file):
                continue
            if wholes.found(file):
                held = deque(each for each in held if not wholes.has(each))
                yield str(file.parent)
            elif is_model_name(file.name):
                held.append(file)
                if len(held) > HELD_BACK:
                    yield str(held.popleft())
    except (NeuralMarkError, OSError) as error:
        failure = error
    yield from map(str, held)
    if failure is not None:
        raise failure


class _FarWholes:
    """Far folders that are one model each, the latest: listings go from folder to folder."""

    def __init__(self) -> None:
        self._flat: deque[str] = deque(maxlen=HELD_BACK)
        self._deep: deque[str] = deque(maxlen=64)

    def has(self, file: FarPlace) -> bool:
        """Whether a file is a part of one."""
        folder = f"{file.parent}/"
        return folder in self._flat or folder.startswith(tuple(self._deep))

    def found(self, file: FarPlace) -> bool:
        """Whether a file shows that its folder is one."""
        folder = file.parent
        whole = _whole(folder, [file.name])
        if whole is not None:
            (self._deep if whole.deep else self._flat).append(f"{folder}/")
        return whole is not None


def _whole(folder: Place, names: Iterable[str]) -> WholeFolder | None:
    """What a folder is that is one model; one that cannot be looked into is none."""
    try:
        return whole_folder(folder, names)
    except (NeuralMarkError, OSError):
        return None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _matching(pattern: str, skip: Path | None) -> Iterator[str]:
    """What a pattern finds; where it finds nothing, the pattern itself, which becomes a row."""
    empty = True
    for found in glob.iglob(pattern, recursive=True):  # noqa: PTH207 - may begin anywhere
        empty = False
        path = Path(found)
        if path.is_dir():
            yield from _searched(path, skip)
        elif is_model_file(path):
            yield found
    if empty:
        yield pattern


def _searched(folder: Path, skip: Path | None) -> Iterator[str]:
    """The models in a folder and below; links to folders are not followed."""
    left = [folder]
    while left:
        here = left.pop()
        if skip is not None and here.resolve() == skip:
            continue
        entries = _entries(here)
        first = list(islice(entries, MOST_SORTED))
        whole = _whole(here, (entry.name for entry in first))
        if whole is not None:
            yield str(here)
            if whole.deep:
                continue
        below = []
        for entry in chain(first, entries):
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in LEFT_OUT:
                    below.append(Path(entry.path))
            elif whole is None and is_model_file(Path(entry.path)):
                yield entry.path
        left += reversed(below)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The entries of a folder: in order, unless there are very many."""
    try:
        with os.scandir(folder) as entries:
            some = list(islice(entries, MOST_SORTED))
            yield from sorted(some, key=lambda entry: entry.name)
            yield from entries
    except OSError:
        return  # what cannot be listed holds nothing that could be read


def is_model_file(path: Path) -> bool:
    """Whether a file is a model, or the index of one; its shards alone are none."""
    return is_model_name(path.name) or (not _is_other(path.name) and _begins_like_one(path))


def is_model_name(name: str) -> bool:
    """Whether a file of this name is a model, or the index of one.

    >>> is_model_name("model.safetensors.index.json"), is_model_name("notes.txt")
    (True, False)
    """
    if _INDEX.search(name):
        return True
    return name.lower().endswith(SUFFIXES) and not _is_other(name)


def _is_other(name: str) -> bool:
    """Whether it is a shard, a key, an anchor or a claim."""
    shard = is_shard_name(name) and not _FIRST_OF_SPLIT.search(name)
    return shard or name.endswith((".nmkey", ".anchor", ".claim.json"))


def _begins_like_one(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return False
        head = os.read(handle, 16)
        length = int.from_bytes(head[:8], "little")
        return head.startswith(MAGIC) or (8 < length < 100 << 20 and head[8:10] == b'{"')
    except OSError:
        return False
    finally:
        os.close(handle)


def stamp_of(
    target: TargetName, remote: RemoteOptions | None = None
) -> tuple[str | None, float | None]:
    """What changes with a file or folder, and when it was last changed.

    Nothing for what is not there; of a URL the stamp only, and only if it is said how to ask.
    """
    if is_url(target):
        return (None if remote is None else _far_stamp(target, remote)), None
    path = Path(target)
    try:
        facts = path.stat()
        folder = stat.S_ISDIR(facts.st_mode)
        if folder or _INDEX.search(path.name):
            return _stamp_of_folder(path if folder else path.parent)
    except (OSError, ValueError):
        return None, None
    return f"{facts.st_size}-{facts.st_mtime_ns}-{facts.st_ino}", facts.st_mtime


def _far_stamp(target: TargetName, remote: RemoteOptions) -> str | None:
    try:
        place = place_of(target, remote)
        return repr(place.stamp()) if isinstance(place, FarPlace) else None
    except (NeuralMarkError, OSError):
        return None


def _stamp_of_folder(folder: Path) -> tuple[str | None, float | None]:
    count = size = newest = 0
    for entry in _entries(folder):
        if entry.is_file():
            facts = entry.stat()
            count, size = count + 1, size + facts.st_size
            newest = max(newest, facts.st_mtime_ns)
    return f"{count}-{size}-{newest}", newest / 1e9
