"""Which models are looked at: files, folders, globs, addresses and lists, one after the other.

Nothing is held but the folders that are open, so a folder of a million files is no burden. What is
not there is passed on all the same, and becomes a row.
"""

import glob
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path

from neuralmark.checkpoints import place_of
from neuralmark.errors import NeuralMarkError, ParameterError
from neuralmark.scanning.contract import TargetName
from neuralmark.storage.files import LEFT_OUT
from neuralmark.storage.places import FarPlace

SUFFIXES = (
    *(".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".pt2", ".gguf", ".onnx"),
    *(".keras", ".h5", ".hdf5", ".msgpack", ".th", ".model"),
)
"""Endings of model files, for searching folders; whatever is named is taken."""
MAGIC = (b"GGUF", b"\x89HDF\r\n\x1a\n")
"""How model files begin that go by other endings; safetensors are told by their header."""
FOLDERS = (".metadata", "model_index.json", "adapter_config.json")
"""A folder with one of these files is one model: distributed, a pipeline, an adapter."""
MOST_SORTED = 10_000
"""Entries of a folder up to which they come in order."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SHARD = re.compile(r"-\d{5}-of-(?!00001)\d{5}\.\w+$")
_INDEX = re.compile(r"\.(safetensors|bin)\.index\.json$")
_GLOB = re.compile(r"[*?\[]")


def is_address(target: TargetName) -> bool:
    """Whether this is an address, not a path.

    >>> is_address("s3://bucket/model.safetensors"), is_address("a/b.npz")
    (True, False)
    """
    return _ADDRESS.match(target) is not None


def targets_of(
    given: Iterable[str | Path], lists: Iterable[str | Path] = (), skip: Path | None = None
) -> Iterator[str]:
    """All models that were named, or lie in folders that were; `skip` is a folder of ours."""
    ours = None if skip is None else skip.resolve()
    for each in chain(map(str, given), chain.from_iterable(map(_listed, lists))):
        yield from _expanded(each, ours)


def _listed(file: str | Path) -> Iterator[str]:
    """The lines of a file; `-` is the standard input."""
    try:
        with nullcontext(sys.stdin) if str(file) == "-" else open(file, encoding="utf-8") as lines:
            for line in lines:
                if line.strip() and not line.startswith("#"):
                    yield line.strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{file}: no list of targets can be read from it ({error})") from None


def _expanded(target: TargetName, skip: Path | None) -> Iterator[str]:
    if is_address(target):
        yield from _behind(target)
        return
    path = Path(target)
    if _is_folder(path):
        found = _searched(path, skip)
        first = next(found, None)
        yield from (target,) if first is None else chain((first,), found)
    elif _GLOB.search(target) and not os.path.lexists(path):
        yield from _matching(target, skip)
    else:
        yield target


def _behind(address: TargetName) -> Iterator[str]:
    """The models behind an address: itself, or those in the folder that it is.

    What cannot be listed is passed on as it is, and becomes a row.
    """
    empty = True
    try:
        place = place_of(address)
        if isinstance(place, FarPlace) and not place.is_file() and place.is_dir():
            for found in _far(place):
                empty = False
                yield found
    except (NeuralMarkError, OSError):
        empty = True
    if empty:
        yield address


def _far(folder: FarPlace) -> Iterator[str]:
    """The models in a far folder and below, as they are listed."""
    left = [folder]
    while left:
        here = left.pop()
        for each in here.iterdir():
            if each.name in FOLDERS:
                yield str(here)
            elif is_model_name(each.name):
                yield str(each)
            elif "." not in each.name and each.is_dir():
                left.append(each)


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
        if any((here / name).is_file() for name in FOLDERS):
            yield str(here)
            continue
        below = []
        for entry in _entries(here):
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in LEFT_OUT:
                    below.append(Path(entry.path))
            elif is_model_file(Path(entry.path)):
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
    return bool(_SHARD.search(name)) or name.endswith((".nmkey", ".anchor", ".claim.json"))


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


def stamp_of(target: TargetName, *, far: bool = False) -> tuple[str | None, float | None]:
    """What changes with a file or folder, and when it was last changed.

    Nothing for what is not there; of what is far, the stamp only, and only if that is asked for.
    """
    if is_address(target):
        return (_far_stamp(target) if far else None), None
    path = Path(target)
    try:
        facts = path.stat()
        folder = stat.S_ISDIR(facts.st_mode)
        if folder or _INDEX.search(path.name):
            return _stamp_of_folder(path if folder else path.parent)
    except (OSError, ValueError):
        return None, None
    return f"{facts.st_size}-{facts.st_mtime_ns}-{facts.st_ino}", facts.st_mtime


def _far_stamp(target: TargetName) -> str | None:
    try:
        place = place_of(target)
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
