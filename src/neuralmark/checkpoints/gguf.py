"""GGUF files of llama.cpp: one file, or several of one split model.

Names and shapes are those of the Hugging Face model: names by architecture (see `gguf_names`),
shapes in numpy's order, the rows of query and key as transformers has them (the converter puts
them in pairs), norms without the 1 that is added for Gemma, experts one by one as they lie in
their stack. Floating-point tensors can be marked as they lie. Quantised ones are dequantised while
they are read, with the formulas of the `gguf` package.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from neuralmark.checkpoints.contract import MAX_TENSORS, Checkpoint, StoredTensor, TensorInfo
from neuralmark.checkpoints.readers.dtypes import FLOATS, ITEMSIZE
from neuralmark.checkpoints.readers.gguf_header import (
    MAGIC,
    GgufHeader,
    ListedTensor,
    extent,
    read_header,
)
from neuralmark.checkpoints.readers.gguf_names import PAIRED, SHIFTED, GgufName, taken_apart
from neuralmark.checkpoints.readers.gguf_types import (
    TYPES,
    UNDECODED,
    BlockDecoder,
    BlockType,
    ShiftedDecoder,
)
from neuralmark.errors import MalformedError
from neuralmark.storage.places import Place

MAX_PARTS = 10_000
MAX_EXPERTS = 4096
MAX_HALF = 2048
"""Half of the largest head whose rows are put in order."""
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def matches(path: Place, head: bytes) -> bool:
    """The four letters."""
    return head.startswith(MAGIC)


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Parse the headers of the file, and of the other parts where it is one of several."""
    tensors: dict[str, StoredTensor] = {}
    headers = dict(_parts(path))
    architecture = next((text for h in headers.values() if (text := _architecture(h))), "")
    first = next(iter(headers.values()))
    for place, header in headers.items():
        for stored in _GgufTable(place, header, first, architecture).tensors():
            if stored.info.name in tensors:
                raise MalformedError(f"{place}: has {stored.info.name[:80]!r} a second time")
            tensors[stored.info.name] = stored
            if len(tensors) > MAX_TENSORS:
                raise MalformedError(f"{place}: has over {MAX_TENSORS:,} tensors")
    found = Checkpoint(path, "gguf", tensors)
    found.heads = first.of_layer(f"{architecture}.attention.head_count", 0) or 0
    return found


def _architecture(header: GgufHeader) -> str:
    return header.text("general.architecture")


def _parts(path: Place) -> Iterator[tuple[Place, GgufHeader]]:
    """Every part of the model and its header, in order; the parts must agree on how many."""
    header = read_header(path)
    count = header.whole("split.count") or 1
    if count == 1:
        yield path, header
        return
    match = _PART.fullmatch(path.name)
    if match is None or not 1 < count <= MAX_PARTS or int(match[3]) != count:
        raise MalformedError(
            f"{path}: is one of {count:,} parts of a model, but not named so"
            " (NAME-00001-of-00003.gguf): give it the name that it was made with"
        )
    listed = 0
    for number in range(count):
        place = path.parent / f"{match[1]}-{number + 1:05d}-of-{match[3]}.gguf"
        if not place.is_file():
            raise MalformedError(f"{path}: the part {place.name} of its model is missing")
        part = header if place == path else read_header(place)
        if part.whole("split.count") != count or part.whole("split.no") != number:
            raise MalformedError(f"{place}: does not say that it is part {number + 1} of {count}")
        listed += len(part.tensors)
        yield place, part
    told = header.whole("split.tensors.count")
    if told is not None and told != listed:
        raise MalformedError(f"{path}: its parts hold {listed:,} tensors, and it says {told:,}")


class _GgufTable:
    """The tensors of one file under the names, and in the order, of the Hugging Face model."""

    def __init__(
        self, place: Place, header: GgufHeader, first: GgufHeader, architecture: str
    ) -> None:
        self._place, self._header, self._first = place, header, first
        self._architecture = architecture
        self._listed = {each.name: each for each in header.tensors}

    def tensors(self) -> Iterator[StoredTensor]:
        """Each tensor, and each expert of a stack by itself."""
        for each in self._header.tensors:
            name = taken_apart(each.name, self._architecture)
            experts = each.shape[0] if len(each.shape) == 3 else 0
            if name.expert is None or not 0 < experts <= MAX_EXPERTS or not extent(each):
                yield self._tensor(each, name)
                continue
            stride = extent(each) // experts
            for number in range(experts):
                one = each._replace(shape=each.shape[1:], offset=each.offset + number * stride)
                yield self._tensor(one, replace(name, name=name.expert.format(number)), number)

    def _tensor(self, each: ListedTensor, name: GgufName, expert: int = 0) -> StoredTensor:
        called = name.name
        if called is None or called in self._listed:  # a stored name comes first
            called = each.name
        kind = TYPES.get(each.type)
        if kind is None or kind.name in UNDECODED:
            known = f"GGML type {each.type}" if kind is None else kind.name
            info = TensorInfo(called, known, each.shape, f"its type {known} cannot be dequantised")
            return StoredTensor(info, self._place, each.offset)
        info = TensorInfo(called, kind.name, each.shape)
        half = self._half(each, name)
        if not kind.plain:
            factor = self._factor(each, expert) if kind.name == "NVFP4" else 0
            return self._quantised(each, info, kind, half, factor)
        if self._architecture in SHIFTED and _is_norm(name) and kind.name in FLOATS:
            return self._shifted(each, info)
        stored = StoredTensor(info, self._place, each.offset)
        return stored if not half else _in_pairs(stored, half)

    def _quantised(
        self, each: ListedTensor, info: TensorInfo, kind: BlockType, half: int, factor: int
    ) -> StoredTensor:
        fixed = (
            f"it is quantised ({kind.name}): mark the model that it was made from, then convert"
            " and quantise that again"
        )
        width = each.shape[-1]
        decoder = BlockDecoder(self._place, each.offset, kind, info.size, width, half, factor)
        info = replace(info, dtype="F32", stored=kind.name, fixed=fixed)
        return StoredTensor(info, self._place, each.offset, decoder=decoder)

    def _factor(self, each: ListedTensor, expert: int) -> int:
        """Where the scale of a whole tensor, or of one expert, lies; 0 where there is none."""
        scale = self._listed.get(each.name.removesuffix("weight") + "scale")
        if scale is None or TYPES.get(scale.type) != TYPES[0] or extent(scale) < 4 * (expert + 1):
            return 0
        return scale.offset + 4 * expert

    def _shifted(self, each: ListedTensor, info: TensorInfo) -> StoredTensor:
        fixed = "it is stored with 1 added to it: mark the model that it was made from"
        decoder = ShiftedDecoder(self._place, each.offset, info.dtype, info.size)
        info = replace(info, dtype="F32", stored=f"{info.dtype}+1", fixed=fixed)
        return StoredTensor(info, self._place, each.offset, decoder=decoder)

    def _half(self, each: ListedTensor, name: GgufName) -> int:
        """Half of the rows of a head, where rows lie in pairs; 0 where they do not."""
        if self._architecture not in PAIRED or name.part not in ("attn_q", "attn_k"):
            return 0
        if name.layer is None or not 1 <= len(each.shape) <= 2:
            return 0
        heads = self._heads("head_count_kv", name.layer) if name.part == "attn_k" else None
        heads = heads or self._heads("head_count", name.layer)
        if heads is None or heads < 1 or each.shape[0] % (2 * heads):
            return 0
        half = each.shape[0] // (2 * heads)
        return half if half <= MAX_HALF else 0

    def _heads(self, what: str, layer: int) -> int | None:
        return self._first.of_layer(f"{self._architecture}.attention.{what}", layer)


def _is_norm(name: GgufName) -> bool:
    return name.ending == "weight" and name.part.endswith("_norm")


def _in_pairs(stored: StoredTensor, half: int) -> StoredTensor:
    """A tensor whose heads' rows lie in pairs, by the steps between its elements."""
    rows, *rest = stored.info.shape
    width = rest[0] if rest else 1
    heads = rows // (2 * half)
    strides = (2 * half * width, width, 2 * width, *((1,) if rest else ()))
    if stored.info.dtype not in ITEMSIZE or half == 1:
        return stored
    return replace(stored, strides=strides, folded=(heads, 2, half, *rest))
