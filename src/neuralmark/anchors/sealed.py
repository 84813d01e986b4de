"""The file of an anchor: payloads, then the header, sealed under a key derived from the secret.

docs/formats.md describes it. Whoever holds the key opens it, and nobody else: the difference
between a marked model and its anchor shows the mark.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.chunks import ChunkReader, ChunkWriter
from neuralmark.anchors.header import MAX_HEADER, AnchorHeader, header_from
from neuralmark.anchors.payload import PayloadLayout, Sink, check_payload, read_payload
from neuralmark.errors import AnchorError
from neuralmark.keys.key import Key
from neuralmark.storage import files

SUFFIX = ".anchor"
_LENGTH = 8
_STEP = 1 << 20


def write_anchor(path: Path, key: Key, build: Callable[[Sink], Anchor]) -> Anchor:
    """Write a new anchor file (mode 0600); `build` gives the payloads to what it is called with."""
    with files.create(path, files.PRIVATE) as file:
        return _write(file, key, build)


def _write(file: BinaryIO, key: Key, build: Callable[[Sink], Anchor]) -> Anchor:
    writer = ChunkWriter(file, key)
    anchor = build(writer.write)
    header = AnchorHeader(anchor.entries, anchor.skeleton, anchor.bits).to_bytes()
    writer.write(header + len(header).to_bytes(_LENGTH, "little"))
    writer.finish()
    return anchor


def load_anchor(path: str | Path, key: Key, *, links: bool = True) -> Anchor:
    """Open an anchor file and check all of it; values are decoded when they are asked for.

    Memory is a few chunks and the header; later that of the largest tensor that is asked for.
    """
    path = Path(path)
    reader = ChunkReader(path, key, links=links)
    try:
        return _loaded(reader)
    except AnchorError as error:
        told = str(error)
        raise error if told.startswith(f"{path}: ") else AnchorError(f"{path}: {told}") from None


def _loaded(reader: ChunkReader) -> Anchor:
    if reader.size < _LENGTH:
        raise AnchorError("the anchor is damaged or cut off")
    length = int.from_bytes(reader.read(reader.size - _LENGTH, _LENGTH), "little")
    start = reader.size - _LENGTH - length
    if start < 0 or length > MAX_HEADER:
        raise AnchorError("the anchor's list of tensors is longer than one may be")
    header = header_from(reader.read(start, length))
    sizes = [PayloadLayout(entry, header.bits).size for entry in header.entries]
    if sum(sizes) != start:
        raise AnchorError("the anchor's shapes do not fit its size")
    offsets = [0, *accumulate(sizes)]
    reads = {
        entry.name: partial(_shifted, reader, offset)
        for entry, offset in zip(header.entries, offsets, strict=False)
    }
    for entry in header.entries:
        check_payload(entry, header.bits, reads[entry.name])
    return Anchor(
        header.entries,
        header.skeleton,
        header.digest,
        lambda entry, rows: read_payload(entry, header.bits, reads[entry.name], rows),
        header.bits,
    )


def _shifted(reader: ChunkReader, start: int, offset: int, count: int) -> bytes:
    """Bytes of one payload, which begins at `start`."""
    return reader.read(start + offset, count)


def reseal_anchor(source: Path, key: Key, target: Path, other: Key) -> None:
    """Write the same anchor for the holder of another key; its digest stays what it is."""
    load_anchor(source, key)
    reader = ChunkReader(source, key)
    with files.create(target, files.PRIVATE) as file:
        writer = ChunkWriter(file, other)
        for start in range(0, reader.size, _STEP):
            writer.write(reader.read(start, min(_STEP, reader.size - start)))
        writer.finish()
