"""Importing a key matrix made elsewhere (a raw key), to check marks made elsewhere."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neuralmark import schemes
from neuralmark.checkpoints import Checkpoint, open_checkpoint
from neuralmark.core.key import (
    MAX_CONTENT,
    MAX_ENTRIES,
    NONE,
    TILED,
    Filter,
    Pooling,
    watermark,
)
from neuralmark.errors import KeyFileError, ParameterError
from neuralmark.keys.key import Key

OWN_SCHEME = "neuralmark"
NPY_MAGIC = b"\x93NUMPY"
_MAX_NPY_HEADER = 4096
_NPY = re.compile(
    rb"\x93NUMPY(?:\x01\x00|[\x02\x03]\x00(?=....\{))(?P<length>..(?:..)?)"
    rb"\{'descr': '(?P<descr>[ -&(-~]{1,32})', "
    rb"'fortran_order': (?P<fortran>True|False), 'shape': \((?P<shape>[0-9, ]{0,300})\), \} *\n",
    re.DOTALL,
)


def import_key(
    path: str | Path,
    *,
    rounds: int | None = None,
    pooling: Pooling = "strided",
    filter: Filter | None = None,  # noqa: A002 - the name it has everywhere
    scheme: str = OWN_SCHEME,
    own: Mapping[str, Any] | None = None,
) -> Key:
    """Make a raw key of a float32 matrix `K`, optional `content` bytes and optional `bits`.

    From .npz or safetensors, or one matrix in .npy. NeuralMark's bits are the hash of K and the
    content, and others are refused: they would belong to another matrix. Other schemes take any
    bits, and `positions` (whole numbers) where the key selects single weights.

    Args:
        path: The file that holds the matrix.
        rounds: How many times the filter is applied; NeuralMark's have to be given.
        pooling: How carriers are pooled, `strided` or `contiguous`.
        filter: How carriers are chosen; by default `tiled`, or as is usual for the scheme.
        scheme: Whose matrix it is.
        own: Settings that only this scheme has, by name.

    Returns:
        A raw key, which can match but never proves anything.

    Raises:
        KeyFileError: The file cannot be read, has no K, or its bits are of another matrix.
        ParameterError: K is not a float32 matrix, or a value is out of range.
        UnknownSchemeError: There is no scheme of this name.

    Examples:
        >>> import numpy as np
        >>> np.save("K.npy", np.random.default_rng(0).standard_normal((64, 32)).astype("float32"))
        >>> neuralmark.import_key("K.npy", rounds=4).kind
        'raw'
    """
    path = Path(path)
    if scheme == OWN_SCHEME and rounds is None:
        raise ParameterError("give the rounds of the filter that this matrix was used with")
    found = _found_in(path)
    if scheme == OWN_SCHEME:
        assert rounds is not None
        if own:
            raise ParameterError(f"the scheme {scheme} has no setting {min(own)!r}")
        key = Key.raw(found.matrix, rounds, pooling, found.content, filter or TILED)
        if found.bits is not None:
            _check_bits(path, found.bits, key)
        return key
    pools, bits = found.matrix.shape
    parameters = schemes.parameters(
        scheme,
        bits=bits,
        pools=None if filter in (None, NONE) else pools,
        rounds=rounds,
        filter=filter,
        own=own,
    )
    return Key.chosen(
        parameters,
        found.matrix,
        bits=found.bits,
        positions=found.positions,
        content=found.content,
    )


@dataclass(frozen=True)
class _FoundArrays:
    """What a file made elsewhere holds."""

    matrix: npt.NDArray[np.float32]
    content: bytes = b""
    bits: npt.NDArray[np.uint8] | None = None
    positions: npt.NDArray[np.int64] | None = None


def _found_in(path: Path) -> _FoundArrays:
    try:
        with path.open("rb") as file:
            magic = file.read(len(NPY_MAGIC))
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read ({error.strerror})") from None
    if magic == NPY_MAGIC:
        return _FoundArrays(_npy(path))
    checkpoint = open_checkpoint(path)
    names = checkpoint.names()
    if "K" not in names:
        raise KeyFileError(f"{path}: has no array named K")
    info = checkpoint.info("K")
    if info.dtype != "F32" or len(info.shape) != 2:
        raise ParameterError(
            f"{path}: K must be a float32 matrix (its bytes are hashed), not {info.dtype}"
            f" of shape {info.shape}"
        )
    matrix = np.frombuffer(_bytes(checkpoint, "K", 4 * MAX_ENTRIES), "<f4").reshape(info.shape)
    content = _bytes(checkpoint, "content", MAX_CONTENT) if "content" in names else b""
    bits = positions = None
    if "bits" in names:
        if checkpoint.info("bits").dtype not in ("U8", "I8", "BOOL"):
            raise ParameterError(f"{path}: bits must be uint8 or bool, one element per bit")
        bits = np.frombuffer(_bytes(checkpoint, "bits", 1 << 20), np.uint8)
    if "positions" in names:
        if checkpoint.info("positions").dtype != "I64":
            raise ParameterError(f"{path}: positions must be int64, one element per weight")
        positions = np.frombuffer(_bytes(checkpoint, "positions", 8 * MAX_ENTRIES), "<i8")
    return _FoundArrays(matrix, content, bits, positions)


def _check_bits(path: Path, stored: npt.NDArray[np.uint8], key: Key) -> None:
    """`bits` holds one byte per bit (uint8 or bool)."""
    assert key.matrix is not None
    if stored.tobytes() != watermark(key.matrix, key.content).tobytes():
        raise KeyFileError(
            f"{path}: its bits are not the hash of K and the content; a key whose bits were chosen"
            " freely proves nothing and is refused"
        )


def _npy(path: Path) -> npt.NDArray[np.float32]:
    """The matrix in a .npy file; its header is matched, never evaluated."""
    with path.open("rb") as file:
        match = _NPY.match(file.read(_MAX_NPY_HEADER))
    start = match.end("length") if match else 0
    if match is None or int.from_bytes(match["length"], "little") != match.end() - start:
        raise KeyFileError(f"{path}: not a .npy file as numpy writes it")
    descr, fortran, lengths = match["descr"].decode("ascii"), match["fortran"], match["shape"]
    shape = tuple(int(length) for length in lengths.replace(b",", b" ").split())
    if descr != "<f4" or len(shape) != 2:
        raise ParameterError(f"{path}: K must be a float32 matrix, not {descr} of shape {shape}")
    if math.prod(shape) > MAX_ENTRIES:
        raise ParameterError(f"{path}: K has over {MAX_ENTRIES:,} entries")
    if path.stat().st_size != match.end() + 4 * math.prod(shape):
        raise KeyFileError(f"{path}: is cut off, or has bytes added at the end")
    values = np.fromfile(path, "<f4", offset=match.end())
    return values.reshape(shape, order="F" if fortran == b"True" else "C")


def _bytes(checkpoint: Checkpoint, name: str, limit: int) -> bytes:
    info = checkpoint.info(name)
    if info.obstacle is not None:
        raise KeyFileError(f"{checkpoint.path}: {name} cannot be read: {info.obstacle}")
    if info.nbytes > limit:
        raise ParameterError(f"{checkpoint.path}: {name} has {info.nbytes:,} bytes, over {limit:,}")
    return b"".join(piece.tobytes() for piece in checkpoint.read(name))
