"""safetensors files: an 8-byte length, a JSON header, then the tensors' bytes without gaps.

The header is parsed here rather than by the `safetensors` package because streaming and in-place
marking need the offsets, and its numpy side knows neither bfloat16 nor float8. The tests hold
the two against each other.
"""

from typing import Any

from neuralmark.checkpoints.contract import MAX_TENSORS, Checkpoint, StoredTensor, TensorInfo
from neuralmark.checkpoints.readers.dtypes import ITEMSIZE
from neuralmark.core.encoding import strict_json
from neuralmark.errors import MalformedError
from neuralmark.storage.places import Place

MAX_HEADER = 16 << 20
MAX_DIMENSIONS = 64
MAX_DTYPE = 32


def matches(path: Place, head: bytes) -> bool:
    """An 8-byte length that is no larger than a header may be, then a brace."""
    return len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 40


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Parse the header and check that it tells the truth about the file."""
    header, start = read_header(path)
    told = header.pop("__metadata__", None)
    tensors = {name: _entry(path, name, entry, start) for name, entry in header.items()}
    _check_layout(path, header, path.stat().st_size - start)
    checkpoint = Checkpoint(path, "safetensors", tensors)
    if isinstance(told, dict):
        checkpoint.metadata = {k: text for k, text in told.items() if isinstance(text, str)}
    return checkpoint


def read_header(path: Place) -> tuple[dict[str, Any], int]:
    """The header as a table by name, its entries not yet checked, and where the data begins."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER:
            raise MalformedError(
                f"{path}: claims a header of {length:,} bytes, over {MAX_HEADER:,}"
            )
        if 8 + length > size:
            raise MalformedError(f"{path}: is cut off inside its header")
        raw = file.read(length)
    return _table(path, raw), 8 + length


def _table(path: Place, raw: bytes) -> dict[str, Any]:
    """The header as a table by name."""
    try:
        header = strict_json(raw)
        if not isinstance(header, dict) or len(header) > MAX_TENSORS:
            raise ValueError("not a table of tensors")
        "".join(header).encode("utf-8")  # half of a character in a name is refused
    except ValueError as error:
        raise MalformedError(f"{path}: its header is not valid ({error})") from None
    return header


def _entry(path: Place, name: str, entry: Any, start: int) -> StoredTensor:
    """One header entry, checked: types, size against shape."""

    def bad(why: str) -> MalformedError:
        return MalformedError(f"{path}: the header entry of {name[:80]!r} {why}")

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise bad("does not have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or len(dtype) > MAX_DTYPE or not dtype.isascii():
        raise bad("has no dtype")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        raise bad(f"has no shape of at most {MAX_DIMENSIONS} dimensions")
    if not all(_is_count(length) for length in shape):
        raise bad("has a bad shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise bad("has bad offsets")
    known = dtype in ITEMSIZE
    info = TensorInfo(
        name, dtype, tuple(shape), None if known else f"its dtype {dtype!r} is not known"
    )
    if known and info.nbytes != offsets[1] - offsets[0]:
        raise bad(f"says {dtype} {str(shape)[:80]} but spans {offsets[1] - offsets[0]} bytes")
    return StoredTensor(info, path, start + offsets[0])


def _check_layout(path: Place, header: dict[str, Any], size: int) -> None:
    """The tensors must cover the rest of the file: no gap, no overlap, nothing left over."""
    at = 0
    for low, high in sorted(entry["data_offsets"] for entry in header.values()):
        if low != at or high < low:
            raise MalformedError(
                f"{path}: tensors overlap or leave a gap at byte {at:,} of the data"
            )
        at = high
    if at != size:
        raise MalformedError(
            f"{path}: the header describes {at:,} bytes of data, the file has {size:,}"
            " (truncated download, or bytes added at the end?)"
        )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
