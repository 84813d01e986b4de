"""One look at many small models at once, or many looks at one large model in a single pass.

What a look finds is how many bits of its mark match. Verdicts are given elsewhere, by the code of
`verify`; here is only found out where one is worth its time.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from neuralmark import schemes
from neuralmark.checkpoints import Checkpoint, TensorInfo
from neuralmark.checkpoints.readers.dtypes import decode
from neuralmark.core.carriers import Carriers, Listed
from neuralmark.core.key import Float, Mark, Placement
from neuralmark.core.readout import Known, margins
from neuralmark.errors import TooFewCarriersError, UnsuitableTensorError
from neuralmark.keys.key import Key
from neuralmark.marking.levelling import Rows, stored, turned
from neuralmark.marking.reading import Attempt
from neuralmark.scanning.contract import ScanFailure

KEPT = 192 << 20
"""Bytes of derived marks that are kept for the next batch."""
SUMS = 128 << 20
"""Bytes of means that are held at a time: a scheme may have one for every weight."""
NONE = -1
"""What a look has matched that could not be made."""
UNFIT = TooFewCarriersError, UnsuitableTensorError
"""The key cannot be in these tensors: no error of a search, which goes on elsewhere."""

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
        extra = sum(array.nbytes for array in self.mark.extra.values())
        return self.mark.matrix.nbytes + extra + self.carriers.total // 4


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


@dataclass
class QuickLooks:
    """How many bits match for each of some looks, and which of them failed."""

    counts: Counts
    failures: dict[int, ScanFailure] = field(default_factory=dict)
    """By the number of the look; what merely does not fit is none."""

    @classmethod
    def nothing(cls, count: int) -> "QuickLooks":
        """Nothing is read yet."""
        return cls(np.full(count, NONE))

    @contextmanager
    def guarding(self, *looks: int) -> Iterator[None]:
        """Keep what goes wrong within from the other looks; lack of memory is everybody's."""
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:
            self.counts[list(looks)] = NONE
            if not isinstance(error, UNFIT):
                self.failures.update(dict.fromkeys(looks, ScanFailure.of(error)))


def looked(key: Key, attempt: Attempt, rows: Sequence[Values], marks: MarkCache) -> QuickLooks:
    """One look at each model, given its weights laid end to end.

    What breaks the look at all of them is found by looking at each alone.
    """
    found = QuickLooks.nothing(len(rows))
    with found.guarding(*range(len(rows))):
        drawn = marks.get(key, attempt.placement, attempt.anchor)
        try:
            found.counts[:] = matches(drawn, rows)
        except MemoryError:
            raise
        except Exception:
            for model, values in enumerate(rows):
                with found.guarding(model):
                    found.counts[model] = matches(drawn, [values])[0]
    return found


@np.errstate(over="ignore", invalid="ignore")
def matches(drawn: DrawnMark, rows: Sequence[Values]) -> Counts:
    """How many bits match in each model, given its weights laid end to end."""
    carriers, mark = drawn.carriers, drawn.mark
    if not carriers.per_pool:
        return np.full(len(rows), NONE)
    _, at = carriers.between(0, carriers.total)
    together = max(1, SUMS // (8 * carriers.pools))
    found = np.full(len(rows), NONE)
    for start in range(0, len(rows), together):
        some = rows[start : start + together]
        sums = np.zeros((len(some), carriers.pools))
        for model, values in enumerate(some):
            carriers.sum_into(sums[model], 0, values.take(at))
        sums /= carriers.per_pool
        found[start : start + together] = counted(mark, sums)
    return found


def counted(mark: Mark, pooled: Float) -> Counts:
    """Bits that match, for each row of means: the scheme reads them, as in `verify`."""
    found = np.full(len(pooled), NONE)
    whole = np.flatnonzero(np.isfinite(pooled).all(axis=1))
    scheme, known = schemes.of(mark), Known.of(mark)
    with np.errstate(over="ignore", invalid="ignore"):
        if type(scheme).logits is schemes.Scheme.logits:  # pooled @ matrix: for all at once
            read = margins(scheme.logits(known, pooled[whole]), known.signs)
            found[whole] = (read > 0).sum(axis=1)
            return found
        for model in whole:
            read = margins(scheme.logits(known, pooled[model]), known.signs)
            found[model] = (read > 0).sum()
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

    number: int
    attempt: Attempt
    carriers: Carriers
    sums: Float
    starts: Mapping[str, tuple[int, ...]]
    """Where the tensors begin that it reads, by stored name."""
    looks: QuickLooks
    lost: bool = False
    """Whether something went wrong."""

    @classmethod
    def of(cls, number: int, attempt: Attempt, carriers: Carriers, looks: QuickLooks) -> "_Stream":
        starts: dict[str, tuple[int, ...]] = {}
        for _, start, tensor in attempt.parts():
            if tensor is not None:
                name = tensor.info.name
                starts[name] = (*starts.get(name, ()), start)
        sums = np.zeros(carriers.pools)
        return cls(number, attempt, carriers.sparing(), sums, starts, looks)

    @property
    def size(self) -> int:
        """About how many bytes it holds until all is read."""
        listed = self.carriers.survivors if isinstance(self.carriers, Listed) else 0
        return 8 * (self.carriers.pools + listed)

    def take(self, name: str, at: int, values: Values) -> None:
        """Add what it needs of a piece of a tensor, which begins at `at`."""
        if self.lost:
            return
        self.lost = True
        with self.looks.guarding(self.number):
            for start in self.starts.get(name, ()):
                low = start + at
                first, places = self.carriers.between(low, low + len(values))
                self.carriers.sum_into(self.sums, first, values.take(places))
            self.lost = False


Look = tuple[Key, Attempt]


def streamed(checkpoint: Checkpoint, looks: Sequence[Look], marks: MarkCache) -> QuickLooks:
    """How many bits match for each look: every tensor is read once for all of them.

    Twice where rows are levelled, and once more if it is turned; again where the means of all looks
    would take too much memory.
    """
    found = QuickLooks.nothing(len(looks))
    waiting: list[_Stream] = []
    size = 0
    for number, (key, attempt) in enumerate(looks):
        with found.guarding(number):
            carriers = marks.get(key, attempt.placement, attempt.anchor).carriers
            if carriers.per_pool:
                waiting.append(_Stream.of(number, attempt, carriers, found))
                size += waiting[-1].size
        if size >= SUMS:
            _read(checkpoint, looks, waiting, marks)
            waiting, size = [], 0
    _read(checkpoint, looks, waiting, marks)
    return found


def _read(
    checkpoint: Checkpoint, looks: Sequence[Look], streams: Sequence[_Stream], marks: MarkCache
) -> None:
    """One pass for these looks, and what matches in each."""
    for name in dict.fromkeys(name for stream in streams for name in stream.starts):
        for transposed in (False, True):
            wanting = [
                s for s in streams if name in s.starts and s.attempt.transposed == transposed
            ]
            if wanting:
                _pass(checkpoint, checkpoint.info(name), transposed, wanting)
    for stream in streams:
        found, number = stream.looks, stream.number
        if stream.lost:
            continue
        key, attempt = looks[number]
        with found.guarding(number):
            mark = marks.get(key, attempt.placement, attempt.anchor).mark
            pooled = stream.sums / stream.carriers.per_pool
            found.counts[number] = counted(mark, pooled[None])[0]


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
