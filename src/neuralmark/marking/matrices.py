"""Importing a key matrix made elsewhere (a raw key), to check marks made elsewhere."""

import math
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints import Checkpoint, open_checkpoint
from neuralmark.core.key import MAX_CONTENT, MAX_ENTRIES, TILED, Filter, Pooling, watermark
from neuralmark.errors import KeyFileError, ParameterError
from neuralmark.keys.key import Key

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
    rounds: int,
    pooling: Pooling = "strided",
    filter: Filter = TILED,  # noqa: A002 - the name it has everywhere
) -> Key:
    """Make a raw key of a float32 matrix `K`, optional `content` bytes and optional `bits`.

    From .npz or safetensors, or one matrix in .npy. Bits that do not hash from K and the content
    are refused: they would belong to another matrix.

    Args:
        path: The file that holds the matrix.
        rounds: How many times the filter is applied.
        pooling: How carriers are pooled, `strided` or `contiguous`.
        filter: How carriers are chosen, `tiled` or `stream`.

    Returns:
        A raw key, which can match but never proves anything.

    Raises:
        KeyFileError: The file cannot be read, has no K, or its bits are of another matrix.
        ParameterError: K is not a float32 matrix, or a value is out of range.

    Examples:
        >>> import numpy as np
        >>> np.save("K.npy", np.random.default_rng(0).standard_normal((64, 32)).astype("float32"))
        >>> neuralmark.import_key("K.npy", rounds=4).kind
        'raw'
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            magic = file.read(len(NPY_MAGIC))
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read ({error.strerror})") from None
    if magic == NPY_MAGIC:
        return Key.raw(_npy(path), rounds, pooling, filter=filter)
    checkpoint = open_checkpoint(path)
    if "K" not in checkpoint.names():
        raise KeyFileError(f"{path}: has no array named K")
    info = checkpoint.info("K")
    if info.dtype != "F32" or len(info.shape) != 2:
        raise ParameterError(
            f"{path}: K must be a float32 matrix (its bytes are hashed), not {info.dtype}"
            f" of shape {info.shape}"
        )
    matrix = np.frombuffer(_bytes(checkpoint, "K", 4 * MAX_ENTRIES), "<f4").reshape(info.shape)
    content = b""
    if "content" in checkpoint.names():
        content = _bytes(checkpoint, "content", MAX_CONTENT)
    key = Key.raw(matrix, rounds, pooling, content, filter)
    if "bits" in checkpoint.names():
        if checkpoint.info("bits").dtype not in ("U8", "I8", "BOOL"):
            raise ParameterError(f"{path}: bits must be uint8 or bool, one element per bit")
        _check_bits(path, _bytes(checkpoint, "bits", 1 << 20), key)
    return key


def _check_bits(path: Path, stored: bytes, key: Key) -> None:
    """`bits` holds one byte per bit (uint8 or bool)."""
    assert key.matrix is not None
    if stored != watermark(key.matrix, key.content).tobytes():
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
