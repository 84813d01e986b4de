"""Reading and writing model files. One module per format; the file's name is the format's name.

`open_checkpoint` finds the format by the bytes. What formats share is in `contract` and `readers/`.
Third parties register a module with `matches` and `open` under the entry point
group `neuralmark.checkpoints`.
"""

import re
from collections.abc import Iterable, Iterator
from fnmatch import translate
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from neuralmark.checkpoints.contract import Checkpoint, TensorInfo
from neuralmark.checkpoints.readers.hints import hint
from neuralmark.checkpoints.readers.quantised import dequantised
from neuralmark.errors import (
    CheckpointError,
    MalformedError,
    ParameterError,
    UnknownFormatError,
    UsageError,
)
from neuralmark.registry import files_of, foreign
from neuralmark.remote import RemoteOptions, at_url, is_url
from neuralmark.storage.journal import refuse_interrupted
from neuralmark.storage.places import FarPlace, Place

__all__ = [
    "Checkpoint",
    "TensorInfo",
    "WholeFolder",
    "format_names",
    "is_shard",
    "is_shard_name",
    "open_checkpoint",
    "open_file",
    "open_stored",
    "place_of",
    "root_of",
    "whole_folder",
]

HEAD_BYTES = 512
AnyPlace = TypeVar("AnyPlace", Path, FarPlace, Place)
_CRUSHED = re.compile(r"(https?|hf|s3|gs|az):/[^/]")
_SHARD = re.compile(r"-\d{5}-of-(?!00001)\d{5}\.\w+$")


def format_names() -> list[str]:
    """The built-in formats."""
    return files_of(__path__)


def root_of(path: AnyPlace) -> AnyPlace:
    """The folder for an index file, else the path itself: what is copied, locked and recovered."""
    return path.parent if path.is_file() and path.name.endswith(".index.json") else path


def is_shard(path: Place) -> bool:
    """Whether a file is one of several that make up a model."""
    return path.is_file() and is_shard_name(path.name)


def is_shard_name(name: str) -> bool:
    """Whether a file of this name is one of several that make up a model.

    >>> is_shard_name("model-00001-of-00002.safetensors"), is_shard_name("model.safetensors")
    (True, False)
    """
    return _SHARD.search(name) is not None


class WholeFolder(NamedTuple):
    """A folder that is one model."""

    form: str
    deep: bool
    """Whether the folders in it are parts of the model, too."""


def whole_folder(folder: Place, names: Iterable[str]) -> WholeFolder | None:
    """What a folder is that is one model, as files of these names in it show; None: it is none.

    Formats whose models are folders say in PARTS how such files are named, and in DEEP whether
    folders in these folders belong to them.
    """
    told = list(names)
    for form, (module, pattern) in _of_folders().items():
        if any(map(pattern.match, told)) and module.matches(folder, b""):
            return WholeFolder(form, getattr(module, "DEEP", False))
    return None


@cache
def _of_folders() -> dict[str, tuple[Any, re.Pattern[str]]]:
    found = {}
    for form in format_names():
        module = import_module(f"{__name__}.{form}")
        parts = getattr(module, "PARTS", ())
        if parts:
            found[form] = module, re.compile("|".join(map(translate, parts)))
    return found


def open_checkpoint(path: str | Place, base: str | Place | None = None) -> Checkpoint:
    """Open a model file or folder; refuses one whose in-place marking was cut short.

    An adapter reads as the model that it makes of its base, if that is given.
    """
    place = place_of(path)
    if base is not None:
        return _merged(place, base)
    if isinstance(place, FarPlace):
        if not place.exists():
            raise CheckpointError(f"{place}: there is no such file or folder")
        return open_file(place)
    path = place
    try:
        if not path.exists():
            raise CheckpointError(f"{path}: there is no such file or folder")
        refuse_interrupted(root_of(path))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    return open_file(path)


def _merged(place: Place, base: str | Place) -> Checkpoint:
    from neuralmark.checkpoints.adapter import is_adapter, merged

    try:
        if place.exists() and not is_adapter(place):
            raise ParameterError(f"{place}: is no adapter, so leave base=... out")
        whole = open_checkpoint(base)
        return merged(place, whole) if place.exists() else open_checkpoint(place)
    except OSError as error:
        raise CheckpointError(f"{place}: cannot be read ({error.strerror or error})") from None


def place_of(model: str | Place, options: RemoteOptions | None = None) -> Place:
    """Where a model is that was named by its path or its URL (or is a place already)."""
    if isinstance(model, str):
        return at_url(model, options) if is_url(model) else Path(model)
    if isinstance(model, Path) and _CRUSHED.match(str(model)) and not model.exists():
        raise UsageError("a URL is given as a text, not as a Path, which takes a slash out of it")
    return model


def open_file(path: Place) -> Checkpoint:
    """Open by magic bytes, without looking for journals; quantised weights become readable."""
    checkpoint = open_stored(path)
    try:
        return dequantised(checkpoint)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None


def open_stored(path: Place) -> Checkpoint:
    """Open by magic bytes, with the tensors exactly as they are stored."""
    try:
        head = b""
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(HEAD_BYTES)
        elif not path.is_dir():
            raise CheckpointError(f"{path}: is neither a file nor a folder")
        what = hint(path, head)
        if what is not None:
            raise UnknownFormatError(f"{path}: {what}")
        for module in _modules():
            if module.matches(path, head):
                return _with_sound_names(module.open(path))
        if not head and path.is_file():
            raise UnknownFormatError(f"{path}: is empty")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    raise UnknownFormatError(
        f"{path}: not a known checkpoint format (known: {', '.join(format_names())})"
    )


def _with_sound_names(checkpoint: Checkpoint) -> Checkpoint:
    """Refuse names and types that are not text (halves of characters): no digest, no print."""
    for name in checkpoint.names():
        try:
            name.encode("utf-8")
            checkpoint.info(name).dtype.encode("utf-8")
        except UnicodeEncodeError:
            raise MalformedError(
                f"{checkpoint.path}: a tensor's name or type is not valid text"
            ) from None
    return checkpoint


def _modules() -> Iterator[Any]:
    """Built-in formats first; entry points only when none of these matched.

    Of folders, those that a format knows come before the plain ones.
    """
    for name in sorted(format_names(), key="folder".__eq__):
        yield import_module(f"{__name__}.{name}")
    for entry in foreign("neuralmark.checkpoints").values():
        yield entry.load()
