"""Making safetensors files quickly, without torch: the tests' and benchmarks' own small writer."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
DTYPES = {"float32": "F32", "float64": "F64", "float16": "F16", "uint8": "U8", "int64": "I64"}
SIZES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1},
    **{"U8": 1, "I8": 1, "I32": 4, "I64": 8},
}


def bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Bits of the nearest bfloat16 values, ties to even."""
    word = values.view(np.uint32)
    return ((word + np.uint32(0x7FFF) + ((word >> 16) & 1)) >> 16).astype(np.uint16)


def header(
    table: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Length and JSON header of tensors (dtype, shape) laid end to end in this order."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"} | dict(metadata or {})}
    at = 0
    for name, (dtype, shape) in table.items():
        size = SIZES[dtype] * int(np.prod(shape, dtype=np.int64))
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def save(path: Path, tensors: Mapping[str, Array], dtype: str | None = None) -> None:
    """Write arrays; `dtype` names what raw arrays stand for (BF16 for uint16, F8_… for uint8)."""
    table = {name: (dtype or DTYPES[str(a.dtype)], a.shape) for name, a in tensors.items()}
    with path.open("wb") as file:
        file.write(header(table))
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).data)


def load(path: Path, name: str) -> npt.NDArray[np.float32]:
    """One float32 tensor of a file made by `save` (or by anyone)."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
        assert entry["dtype"] == "F32"
        start, stop = entry["data_offsets"]
        file.seek(8 + length + start)
        data = np.frombuffer(file.read(stop - start), np.float32)
    return data.reshape(entry["shape"])


def write_repeated(
    path: Path,
    table: Mapping[str, tuple[str, tuple[int, ...]]],
    blocks: Mapping[str, Iterable[bytes | memoryview]],
) -> None:
    """Write a file whose tensors' bytes come from `blocks`."""
    with path.open("wb") as file:
        file.write(header(table))
        for name in table:
            for block in blocks[name]:
                file.write(block)
