"""What the writer of the gguf package writes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.support.makers import Arrays

WRITES = True

Kind = gguf.GGMLQuantizationType


def make(arrays: Arrays, where: Path) -> Path:
    return save(where / "model.gguf", dict(arrays))


def victim(path: Path) -> Path:
    return path


def save(
    path: Path,
    arrays: Mapping[str, npt.NDArray[Any]],
    architecture: str = "none",
    kinds: Mapping[str, Kind] | None = None,
    fields: Mapping[str, int] | None = None,
    **options: Any,
) -> Path:
    """A file of arrays; those with a type in `kinds` hold the bytes of that type."""
    writer = gguf.GGUFWriter(path, architecture, **options)
    for name, value in (fields or {}).items():
        writer.add_uint32(name, value)
    for name, array in arrays.items():
        writer.add_tensor(name, array, raw_dtype=(kinds or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantised(array: npt.NDArray[np.float32], kind: Kind) -> npt.NDArray[np.uint8]:
    """By the package's quantiser."""
    done: npt.NDArray[np.uint8] = gguf.quants.quantize(array, kind)
    return done
