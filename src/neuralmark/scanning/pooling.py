"""One look at many small models at once, or many looks at one large model in a single pass.

What a look finds is how many bits of its mark match. Verdicts are given elsewhere, by the code of
`verify`; here is only found out where one is worth its time.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuralmark import schemes
from neuralmark.checkpoints import Checkpoint, TensorInfo
from neuralmark.checkpoints.readers.dtypes import decode
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Float, Mark, Placement
from neuralmark.core.readout import Known
from neuralmark.keys.key import Key
from neuralmark.marking.levelling import Rows, stored, turned
from neuralmark.marking.reading import Attempt
from neuralmark.marking.verification import margins_of

KEPT = 192 << 20
"""Bytes of derived marks that are kept for the next batch."""
NONE = -1
"""What a look has matched that could not be made."""

Values = npt.NDArray[np.floating]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DrawnMark:
    """A mark, and the weights that carry it."""

    mark: Mark
    carriers: Carriers

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return self.mark.matrix.nbytes + self.carriers.total // 4


class MarkCache:
    """Derived marks, those used last, up to a size: a matrix takes milliseconds to draw."""

    def __init__(self, most: int = KEPT) -> None:
        """`most` is in bytes."""
        self._most, self._size = most, 0
        self._kept: OrderedDict[tuple[str, Placement, bytes], DrawnMark] = OrderedDict()

    def get(self, key: Key, placement: Placement, anchor: bytes) -> DrawnMark:
        """The mark of a key at a placement."""
        name = key.fingerprint, placement, anchor
        found = self._kept.get(name)
        if found is not None:
            self._kept.move_to_end(name)
            return found
        mark = key.at(placement, anchor)
        found = DrawnMark(mark, schemes.of(mark).carriers(mark, placement))
        self._kept[name] = found
        self._size += found.size
        while self._size > self._most and len(self._kept) > 1:
            self._size -= self._kept.popitem(last=False)[1].size
        return found


def matches(drawn: DrawnMark, rows: Sequence[Values]) -> Counts:
    """How many bits match in each model, given its weights laid end to end."""
    carriers, mark = drawn.carriers, drawn.mark
    if not carriers.per_pool:
        return np.full(len(rows), NONE)
    _, at = carriers.between(0, carriers.total)
    sums = np.zeros((len(rows), carriers.pools))
    for model, values in enumerate(rows):
        carriers.sum_into(sums[model], 0, values.take(at))
    return counted(mark, sums / carriers.per_pool)


def counted(mark: Mark, pooled: Float) -> Counts:
    """Bits that match, for each row of means."""
    with np.errstate(over="ignore", invalid="ignore"):
        if schemes.of(mark).linear:
            known = Known.of(mark)
            margins = (pooled @ known.matrix) * known.signs
        else:
            margins = np.stack([margins_of(mark, each) for each in pooled])
    broken = ~np.isfinite(pooled).all(axis=1)
    found: Counts = np.where(broken, NONE, (margins > 0).sum(axis=1))
    return found


Loaded = Mapping[str, Values]
"""Tensors of a model by stored name, flat."""


def load(checkpoint: Checkpoint, names: Sequence[str]) -> dict[str, Values]:
    """The tensors of a model, each read once."""
    return {name: _whole(checkpoint, checkpoint.info(name)) for name in names}


def _whole(checkpoint: Checkpoint, info: TensorInfo) -> Values:
    made: Values = np.empty(info.size, np.dtype("f8" if info.dtype == "F64" else "f4"))
    at = 0
    for piece in checkpoint.read(info.name):
        values = decode(piece, info.dtype)
        made[at : at + len(values)] = values
        at += len(values)
    return made


def laid_out(attempt: Attempt, loaded: Loaded) -> Values:
    """The weights of an attempt, laid end to end: zeros where the model has none."""
    parts: list[Values] = []
    for (_, shape), tensor in zip(attempt.placement, attempt.tensors, strict=True):
        if tensor is None:
            parts.append(np.zeros(int(np.prod(shape)), np.float32))
            continue
        values, own = loaded[tensor.info.name], tensor.info.shape
        if attempt.transposed:
            own, values = own[::-1], values.reshape(own).T.reshape(-1)
        if attempt.by_rows and len(own) > 1:
            with np.errstate(over="ignore", invalid="ignore"):
                squares = np.square(values, dtype=np.float64).reshape(own[0], -1).sum(axis=1)
                values = Rows(squares, values.size // own[0]).levelled(values)
        parts.append(values)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass
class _Stream:
    """One look at a model that is read once for many."""

    attempt: Attempt
    carriers: Carriers
    sums: Float
    starts: Mapping[str, tuple[int, ...]]
    """Where the tensors begin that it reads, by stored name."""

    @classmethod
    def of(cls, attempt: Attempt, carriers: Carriers) -> "_Stream":
        starts: dict[str, tuple[int, ...]] = {}
        for _, start, tensor in attempt.parts():
            if tensor is not None:
                name = tensor.info.name
                starts[name] = (*starts.get(name, ()), start)
        return cls(attempt, carriers.sparing(), np.zeros(carriers.pools), starts)

    def take(self, name: str, at: int, values: Values) -> None:
        """Add what it needs of a piece of a tensor, which begins at `at`."""
        for start in self.starts.get(name, ()):
            low = start + at
            first, places = self.carriers.between(low, low + len(values))
            self.carriers.sum_into(self.sums, first, values.take(places))


Look = tuple[Key, Attempt]


def streamed(checkpoint: Checkpoint, looks: Sequence[Look], marks: MarkCache) -> Counts:
    """How many bits match for each look: every tensor is read once for all of them.

    Twice where rows are levelled, and once more if it is turned.
    """
    streams: list[_Stream | None] = []
    for key, attempt in looks:
        drawn = marks.get(key, attempt.placement, attempt.anchor)
        room = drawn.carriers.per_pool
        streams.append(_Stream.of(attempt, drawn.carriers) if room else None)
    there = [stream for stream in streams if stream is not None]
    for name in dict.fromkeys(name for stream in there for name in stream.starts):
        for transposed in (False, True):
            wanting = [s for s in there if name in s.starts and s.attempt.transposed == transposed]
            if wanting:
                _pass(checkpoint, checkpoint.info(name), transposed, wanting)
    found = np.full(len(looks), NONE)
    for number, (stream, (key, attempt)) in enumerate(zip(streams, looks, strict=True)):
        if stream is not None:
            mark = marks.get(key, attempt.placement, attempt.anchor).mark
            pooled = stream.sums / stream.carriers.per_pool
            found[number] = counted(mark, pooled[None])[0]
    return found


@np.errstate(over="ignore", invalid="ignore")
def _pass(
    checkpoint: Checkpoint, info: TensorInfo, transposed: bool, wanting: Sequence[_Stream]
) -> None:
    """Give a tensor's weights to all who want them."""
    levelling = [stream for stream in wanting if stream.attempt.by_rows]
    plain = [stream for stream in wanting if not stream.attempt.by_rows]
    rows = Rows.of(checkpoint, info, transposed) if levelling else None
    at = 0
    for values in _pieces(checkpoint, info, transposed):
        for stream in plain if rows is not None else wanting:
            stream.take(info.name, at, values)
        if rows is not None:
            level = rows.levelled(values)
            for stream in levelling:
                stream.take(info.name, at, level)
        at += len(values)


def _pieces(checkpoint: Checkpoint, info: TensorInfo, transposed: bool) -> Iterator[Values]:
    for piece in stored(checkpoint, info, transposed):
        yield decode(turned(piece, info) if transposed else piece, info.dtype)
