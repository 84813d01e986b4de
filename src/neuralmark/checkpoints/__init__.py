"""Reading and writing model files. One module per format; the file's name is the format's name.

`open_checkpoint` finds the format by the bytes. What formats share is in `contract` and `readers/`.
Third parties register a module with `matches` and `open` under the entry point
group `neuralmark.checkpoints`.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from neuralmark.checkpoints.contract import Checkpoint, TensorInfo
from neuralmark.checkpoints.readers.hints import hint
from neuralmark.errors import CheckpointError, MalformedError, UnknownFormatError
from neuralmark.registry import files_of, foreign
from neuralmark.storage.journal import refuse_interrupted
from neuralmark.storage.places import FarPlace, Place

__all__ = [
    "Checkpoint",
    "TensorInfo",
    "format_names",
    "is_shard",
    "open_checkpoint",
    "open_file",
    "place_of",
    "root_of",
]

HEAD_BYTES = 512
AnyPlace = TypeVar("AnyPlace", Path, FarPlace, Place)
_SHARD = re.compile(r"-\d{5}-of-(?!00001)\d{5}\.\w+$")


def format_names() -> list[str]:
    """The built-in formats."""
    return files_of(__path__)


def root_of(path: AnyPlace) -> AnyPlace:
    """The folder for an index file, else the path itself: what is copied, locked and recovered."""
    return path.parent if path.is_file() and path.name.endswith(".index.json") else path


def is_shard(path: Place) -> bool:
    """Whether a file is one of several that make up a model."""
    return path.is_file() and _SHARD.search(path.name) is not None


def open_checkpoint(path: str | Place) -> Checkpoint:
    """Open a model file or folder; refuses one whose in-place marking was cut short."""
    place = place_of(path)
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


def place_of(model: str | Place) -> Place:
    """Where a model is that was named by its path (or is a place already)."""
    return Path(model) if isinstance(model, str) else model


def open_file(path: Place) -> Checkpoint:
    """Open by magic bytes, without looking for journals."""
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
