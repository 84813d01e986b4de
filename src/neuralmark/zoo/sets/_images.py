"""Single image files, read with Pillow and brought to 32 by 32 pixels."""

import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from neuralmark.errors import DamagedDataSetError, MissingExtraError, UnsafeError
from neuralmark.zoo.sources import DataPart, Labels, Pixels

SIDE = 32
MOST_PIXELS = 50_000_000
MOST_LONG = 100
"""Longer side over shorter: resizing a mere line would take gigabytes."""
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
"""Of ImageNet: these sets have photographs like it."""

_FORMATS = ("JPEG", "PNG", "BMP", "GIF")
_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")

_DAMAGES = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error)
"""What Pillow raises on damaged files."""

Item = TypeVar("Item")
Labelled = tuple[Path, int]
"""An image file and its class."""


def files_in(folder: Path) -> list[Path]:
    """The image files of a folder, in order; what else lies there is passed over."""
    found = (path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))


def in_turns(groups: Iterable[Sequence[Item]]) -> list[Item]:
    """The first of each group, then the second of each, and so on.

    >>> in_turns(["abc", "d", "ef"])
    ['a', 'd', 'e', 'b', 'f', 'c']
    """
    nothing = object()
    rounds: Any = zip_longest(*groups, fillvalue=nothing)
    return [item for item in chain.from_iterable(rounds) if item is not nothing]


def read_part(labelled: Sequence[Labelled], complete: int | None, limit: int | None) -> DataPart:
    """The first of these images, as many as the limit says."""
    kept = list(islice(labelled, limit))
    images: Pixels = np.empty((len(kept), 3, SIDE, SIDE), np.uint8)
    read = reader()
    for number, (path, _) in enumerate(kept):
        images[number] = read(path)
    labels: Labels = np.array([label for _, label in kept], np.int64)
    return DataPart(images, labels, len(labelled), complete)


def reader() -> Callable[[Path], Pixels]:
    """A function from a file to its pixels (3, 32, 32)."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise MissingExtraError(
            "reading images needs Pillow: pip install 'neuralmark[vision]'"
        ) from None

    def read(path: Path) -> Pixels:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # odd metadata; the size is checked below
                with Image.open(path, formats=_FORMATS) as image:
                    if image.width * image.height > MOST_PIXELS:
                        raise UnsafeError(f"{path}: {image.width} x {image.height} pixels")
                    return _small(image.convert("RGB"))
        except Image.DecompressionBombError:
            raise UnsafeError(f"{path}: more pixels than any photograph") from None
        except _DAMAGES as error:
            why = str(error).replace(str(path), "it")[:120]
            raise DamagedDataSetError(f"{path}: a damaged image, or none ({why})") from None

    return read


def _small(image: Any) -> Pixels:
    """The shorter side to 32 pixels, then the middle: torchvision's Resize and CenterCrop."""
    from PIL.Image import Resampling

    width, height = image.size
    shorter = min(width, height)
    if max(width, height) > MOST_LONG * shorter:
        raise ValueError(f"{width} x {height} pixels")
    size = (SIDE * width // shorter, SIDE * height // shorter)
    image = image.resize(size, Resampling.BILINEAR)
    left, top = round((size[0] - SIDE) / 2), round((size[1] - SIDE) / 2)
    pixels: Pixels = np.asarray(image.crop((left, top, left + SIDE, top + SIDE)), np.uint8)
    return pixels.transpose(2, 0, 1)
