"""The data that triggers are drawn from: arrays in .npz or safetensors, or a folder of images."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints import Checkpoint, open_checkpoint
from neuralmark.checkpoints.readers.dtypes import FLOATS, decode
from neuralmark.core.triggers import UNLABELLED, Inputs, Labels
from neuralmark.errors import MissingExtraError, TriggerError, UnknownFormatError
from neuralmark.triggers.arrays import inputs_of, labels_of

INPUTS, LABELS = "inputs", "labels"
MOST_BYTES = 4 << 30
"""Of the data that triggers are drawn from."""
_TYPES = {
    **{"I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"},
    **{"U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"},
    **{"BOOL": "?", "C64": "<c8", "C128": "<c16"},
}
"""What numpy calls the types that are no floating-point numbers; most are refused by their name."""
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm")


def read_inputs(path: Path) -> tuple[Inputs, Labels]:
    """Inputs as the model takes them, and their labels (-1 where there are none)."""
    if path.is_dir():
        return _from_folder(path)
    checkpoint = _opened(path)
    if INPUTS not in checkpoint.names():
        raise TriggerError(
            f"{path}: has no array named {INPUTS}: store what the model takes as {INPUTS}, and"
            f" classes as {LABELS}"
        )
    stored = _array(checkpoint, INPUTS)
    if not stored.size:
        raise TriggerError(f"{path}: {INPUTS} is empty, of shape {stored.shape}: give some")
    inputs = inputs_of(stored, f"{path}: ")
    if LABELS not in checkpoint.names():
        return inputs, np.full(len(inputs), UNLABELLED, np.int64)
    labels = labels_of(_array(checkpoint, LABELS), f"{path}: ")
    if labels.shape != (len(inputs),) or (labels < 0).any():
        raise TriggerError(
            f"{path}: {LABELS} must be a whole number from 0 for each of the {len(inputs):,} inputs"
        )
    return inputs, labels


def _opened(path: Path) -> Checkpoint:
    try:
        return open_checkpoint(path)
    except UnknownFormatError:
        raise TriggerError(
            f"{path}: is neither .npz nor safetensors with an array {INPUTS}, nor a folder of"
            " images"
        ) from None


def _array(checkpoint: Checkpoint, name: str) -> npt.NDArray[Any]:
    info = checkpoint.info(name)
    readable = info.dtype in _TYPES or info.dtype in FLOATS
    if info.obstacle is not None and not readable:
        raise TriggerError(f"{checkpoint.path}: {name} cannot be read: {info.obstacle}")
    if not readable or not info.shape:
        raise TriggerError(
            f"{checkpoint.path}: {name} must be a list of floating-point numbers as the model takes"
            f" them, or of int64, not {info.dtype} of shape {info.shape}"
        )
    if info.nbytes > MOST_BYTES:
        raise TriggerError(
            f"{checkpoint.path}: {name} has {info.nbytes:,} bytes, over {MOST_BYTES:,}: give a part"
        )
    data = np.frombuffer(b"".join(piece.tobytes() for piece in checkpoint.read(name)), np.uint8)
    if info.dtype in FLOATS:
        return decode(data, info.dtype).reshape(info.shape)
    return data.view(_TYPES[info.dtype]).reshape(info.shape)


def _from_folder(path: Path) -> tuple[Inputs, Labels]:
    """Images as (channels, rows, columns) from 0 to 1; folders in it are classes, by name."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingExtraError(
            "a folder of images needs Pillow: pip install 'neuralmark[vision]', or give the inputs"
            " as .npz"
        ) from None
    classes = sorted(each for each in path.iterdir() if each.is_dir())
    places = [(label, each) for label, each in enumerate(classes)] or [(UNLABELLED, path)]
    arrays: list[npt.NDArray[np.float32]] = []
    labels, size = [], 0
    for label, folder in places:
        for file in sorted(folder.iterdir()):
            if file.suffix.lower() not in _IMAGES:
                continue
            try:
                with Image.open(file) as image:
                    mode = image if image.mode in ("L", "RGB") else image.convert("RGB")
                    pixels = np.asarray(mode, np.float32) / np.float32(255)
            except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
                raise TriggerError(f"{file}: is no image that can be read ({error})") from None
            array = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
            if arrays and array.shape != arrays[0].shape:
                raise TriggerError(
                    f"{file}: is {array.shape}, and the first image is {arrays[0].shape}: bring all"
                    " to the size and colours that the model takes"
                )
            arrays.append(array)
            labels.append(label)
            size += array.nbytes
            if size > MOST_BYTES:
                raise TriggerError(f"{path}: holds over {MOST_BYTES:,} bytes of images: give fewer")
    if not arrays:
        raise TriggerError(f"{path}: holds no images ({', '.join(_IMAGES)})")
    return np.stack(arrays), np.array(labels, np.int64)
