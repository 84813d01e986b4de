"""Msgpack files of Flax: what `flax.serialization.to_bytes` and `msgpack_serialize` write.

Tables within tables become names with dots. Kernels keep their shape, [in, out]: it is the one
that whoever works with Flax sees, and a claim of the other shape is read with the matrices turned.
Beside `params`, the state of an optimizer is left out: it is as large as the weights, and none.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints.contract import Checkpoint, StoredTensor, TensorInfo
from neuralmark.checkpoints.readers.dtypes import FLOATS, ITEMSIZE, decode
from neuralmark.checkpoints.readers.msgpack_tree import ArrayAt, Branch, looks_like, read_tree
from neuralmark.errors import MalformedError
from neuralmark.storage.places import Place, read_at

CHUNKED = "__msgpack_chunked_array__"
WEIGHTS, STATES = "params", ("opt_state", "optimizer", "opt_states")
FIXED = (
    "a file of Flax can only be read: save the weights with safetensors.flax.save_file, mark"
    " that file, and load it back"
)
DTYPES = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
    **{"float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ"},
    **{"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8"},
    **{"uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8"},
    **{"complex64": "C64", "complex128": "C128"},
}


def matches(path: Place, head: bytes) -> bool:
    """A table whose first key is a text."""
    return looks_like(head)


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Find every array of the tree."""
    tree = read_tree(path)
    if isinstance(tree.members.get(WEIGHTS), Branch):
        for name in STATES:
            tree.members.pop(name, None)
    tensors: dict[str, StoredTensor] = {}
    for name, stored in _arrays(path, tree, ""):
        if name in tensors:
            raise MalformedError(f"{path}: has two arrays that are called {name[:80]!r}")
        tensors[name] = stored
    if not tensors:
        raise MalformedError(f"{path}: is a table without arrays, not a model of Flax")
    return Checkpoint(path, "flax", tensors)


def _arrays(path: Place, branch: Branch, before: str) -> Iterator[tuple[str, StoredTensor]]:
    for key, node in branch.members.items():
        name = f"{before}{key}"
        if isinstance(node, ArrayAt):
            yield name, _stored(path, name, node)
        elif isinstance(node, Branch):
            if CHUNKED in node.members:
                yield name, _joined(path, name, node)
            else:
                yield from _arrays(path, node, f"{name}.")


def _stored(path: Place, name: str, array: ArrayAt) -> StoredTensor:
    dtype = _dtype(path, name, array)
    obstacle = None if dtype in ITEMSIZE else f"its dtype {array.dtype!r} is not known"
    info = TensorInfo(name, dtype, array.shape, obstacle, fixed=FIXED)
    return StoredTensor(info, path, array.offset)


def _dtype(path: Place, name: str, array: ArrayAt) -> str:
    """The type under our name; the bytes must be as many as the shape says."""
    dtype = DTYPES.get(array.dtype)
    if dtype is None:
        return f"flax {array.dtype}"
    if array.size * ITEMSIZE[dtype] != array.nbytes:
        raise MalformedError(
            f"{path}: {name[:80]!r} says {array.dtype} {str(list(array.shape))[:80]} but has"
            f" {array.nbytes:,} bytes"
        )
    return dtype


def _joined(path: Place, name: str, branch: Branch) -> StoredTensor:
    """An array that was cut into flat chunks because it is too large for one."""
    bad = MalformedError(f"{path}: the chunks of {name[:80]!r} do not fit its shape")
    shape, chunks = _numbered(branch.members.get("shape")), _numbered(branch.members.get("chunks"))
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        raise bad
    lengths = tuple(n for n in shape if type(n) is int)
    parts = [part for part in chunks if isinstance(part, ArrayAt) and len(part.shape) == 1]
    whole = math.prod(lengths)
    if not parts or len(parts) < len(chunks) or sum(part.size for part in parts) != whole:
        raise bad
    dtypes = {_dtype(path, name, part) for part in parts}
    if len(dtypes) > 1:
        raise bad
    (dtype,) = dtypes
    if len(parts) == 1:
        one = ArrayAt(parts[0].dtype, lengths, parts[0].offset, parts[0].nbytes)
        return _stored(path, name, one)
    if dtype not in FLOATS:
        info = TensorInfo(name, dtype, lengths, "it is cut into chunks, and not of numbers")
        return StoredTensor(info, path, parts[0].offset)
    info = TensorInfo(name, "F32", lengths, stored=f"{dtype} in {len(parts)} chunks", fixed=FIXED)
    ends = tuple(accumulate(part.size for part in parts))
    places = tuple(part.offset for part in parts)
    return StoredTensor(
        info, path, parts[0].offset, decoder=ChunkDecoder(path, dtype, places, ends)
    )


def _numbered(node: object) -> list[object]:
    """The members of a table whose keys are 0, 1, 2, …; none of any other."""
    members = node.members if isinstance(node, Branch) else {}
    numbered = list(members) == [str(number) for number in range(len(members))]
    return list(members.values()) if numbered else []


@dataclass(frozen=True)
class ChunkDecoder:
    """A flat array in several runs of bytes."""

    file: Place
    dtype: str
    places: tuple[int, ...]
    """Where each chunk begins."""
    ends: tuple[int, ...]
    """Behind which element each ends."""
    unit: int = 1
    nbytes: int = 0

    def values(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The elements start … stop-1."""
        found, itemsize, at = np.empty(stop - start, np.float32), ITEMSIZE[self.dtype], start
        with self.file.open("rb", buffering=0) as file:
            while at < stop:
                chunk = bisect_right(self.ends, at)
                begin = self.ends[chunk - 1] if chunk else 0
                end = min(stop, self.ends[chunk])
                raw = np.empty((end - at) * itemsize, np.uint8)
                place = self.places[chunk] + (at - begin) * itemsize
                if read_at(file, raw.data, place) < len(raw):
                    raise MalformedError(f"{self.file}: ends inside an array in chunks")
                with np.errstate(all="ignore"):
                    found[at - start : end - start] = decode(raw, self.dtype)
                at = end
        return found
