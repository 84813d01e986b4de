"""What headers tell: in which ways each mark is looked for, and which models go together (pure)."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from neuralmark.core.key import Parameters
from neuralmark.errors import TooFewCarriersError
from neuralmark.marking import coverage
from neuralmark.marking.attempts import by_names, claimed, searched
from neuralmark.marking.placement import Tensor
from neuralmark.marking.reading import Attempt
from neuralmark.marking.verification import ANCHORED_TRIALS
from neuralmark.records import LEAST_FOUND
from neuralmark.scanning.contract import ScanFailure, Todo
from neuralmark.scanning.keyring import Keyring, Sought

HELD = 96 << 20
"""Bytes of weights that a batch holds at a time; a larger model is streamed, alone."""
MOST_TOGETHER = 128
"""Models in a batch."""
APART = 4
"""How far the lengths of axes may be apart where weights are to be put back in order: fused
projections are three times as long as their parts."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Ways:
    """How one mark is looked for in all models with one header."""

    sought: int
    """Which of the keyring."""
    attempts: tuple[Attempt, ...]
    trials: int
    aligned: bool = False
    """Whether weights may be put back in order for it, if they are like the anchor."""
    failure: ScanFailure | None = None
    """Why it cannot be looked for at all."""


@dataclass(frozen=True)
class HeaderPlan:
    """What is to be read of models with one header."""

    ways: tuple[Ways, ...]
    names: tuple[str, ...]
    """Stored names of all tensors that are read."""
    size: int
    """Bytes of them as float32."""
    weights: int
    """Of the whole model."""
    unread: int
    """Weights that cannot be read."""
    why: str
    """In what form these are."""

    @property
    def empty(self) -> bool:
        """Whether headers and shapes rule every mark out."""
        return not any(way.attempts or way.aligned for way in self.ways)

    @property
    def hidden(self) -> bool:
        """Whether so much cannot be read that not finding says nothing."""
        return bool(self.weights) and self.unread >= coverage.FROM * self.weights


def signature(known: Sequence[Tensor]) -> str:
    """The same for models whose headers lead to the same ways of looking."""
    places: dict[object, int] = {}
    digest = hashlib.sha256()
    for number, each in enumerate(known):
        shared = places.setdefault(each.storage, number) if each.storage is not None else number
        info = each.info
        line = (info.name, info.dtype, info.shape, info.obstacle, info.stored, each.tied, shared)
        digest.update(repr(line).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def plan_for(known: Sequence[Tensor], keyring: Keyring, *, align: bool = True) -> HeaderPlan:
    """Fix all ways of looking, before anything is read."""
    searches: dict[Parameters, tuple[Attempt, ...]] = {}
    ways = []
    for number, sought in enumerate(keyring.sought):
        try:
            attempts, trials, aligned = _ways(known, sought, searches)
        except MemoryError:
            raise
        except Exception as error:  # of this mark: the others are looked for all the same
            ways.append(Ways(number, (), 0, failure=ScanFailure.of(error)))
        else:
            ways.append(Ways(number, attempts, trials, aligned and align))
    read = {
        tensor.info.name: tensor.info.size
        for way in ways
        for attempt in way.attempts
        for tensor in attempt.read_tensors()
    }
    unread = coverage.unreadable(known)
    return HeaderPlan(
        tuple(ways),
        tuple(read),
        4 * sum(read.values()),
        coverage.weights_of(known),
        coverage.weights_of(unread),
        coverage.described(unread),
    )


def _ways(
    known: Sequence[Tensor], sought: Sought, searches: dict[Parameters, tuple[Attempt, ...]]
) -> tuple[tuple[Attempt, ...], int, bool]:
    """The attempts, how many trials they count as, and whether weights may be put in order."""
    if sought.anchor is not None:
        placed = by_names(known, sought.placement, sought.anchor_digest)
        could = shapes_fit(known, sought.placement)
        return (() if placed is None else (placed,)), ANCHORED_TRIALS, could
    if sought.claim is not None:
        found = tuple(claimed(known, sought.placement, sought.anchor_digest))
        return found, len(found), False
    parameters = sought.key.parameters
    if parameters not in searches:
        try:
            searches[parameters] = tuple(searched(known, sought.key))
        except TooFewCarriersError:
            searches[parameters] = ()
    return searches[parameters], len(searches[parameters]), False


def shapes_fit(known: Sequence[Tensor], placement: Iterable[tuple[str, Shape]]) -> bool:
    """Whether enough of the marked weights could be in tensors of these shapes, however arranged.

    Axes may have grown, shrunk or been fused, up to APART times; matrices may be turned, and
    kernels flat.
    """
    sides = {_sides(t.info.shape) for t in known if t.obstacle is None and t.info.size > 1}
    wanted = [(math.prod(shape), _sides(shape)) for _, shape in placement]
    total = sum(size for size, _ in wanted)
    fitting = sum(size for size, mine in wanted if any(_near(mine, other) for other in sides))
    return total > 0 and fitting >= LEAST_FOUND * total


def _sides(shape: Shape) -> tuple[int, int]:
    """As a matrix, the shorter side first."""
    rows = shape[0] if shape else 1
    rest = math.prod(shape[1:])
    return min(rows, rest), max(rows, rest)


def _near(one: tuple[int, int], two: tuple[int, int]) -> bool:
    return all(a <= APART * b and b <= APART * a for a, b in zip(one, two, strict=True))


@dataclass(frozen=True)
class Head:
    """A model of which something is to be read."""

    todo: Todo
    signature: str
    size: int


def batches(heads: Iterable[Head], workers: int = 1) -> list[tuple[Todo, ...]]:
    """Models with one header together, as many as fit; what is derived of a key serves them all.

    Halves are made only where there are fewer batches than workers.

    >>> one, two = (Head(Todo(i, str(i)), "a", 40 << 20) for i in range(2))
    >>> [[todo.number for todo in batch] for batch in batches([one, two, one])]
    [[0, 1], [0]]
    >>> [[todo.number for todo in batch] for batch in batches([one, two], workers=2)]
    [[0], [1]]
    """
    alike: dict[str, list[Head]] = {}
    for head in heads:
        alike.setdefault(head.signature, []).append(head)
    made = [batch for group in alike.values() for batch in _cut(group)]
    made.sort(key=_size, reverse=True)  # the largest first, so that none is left over at the end
    while made and len(made) < workers and len(made[0]) > 1:
        largest = made.pop(0)
        middle = -(-len(largest) // 2)
        made += [largest[:middle], largest[middle:]]
        made.sort(key=_size, reverse=True)
    return [tuple(head.todo for head in batch) for batch in made]


def _size(batch: Sequence[Head]) -> tuple[int, int]:
    return sum(head.size for head in batch), len(batch)


def _cut(group: Sequence[Head]) -> Iterator[Sequence[Head]]:
    """Models with one header, in batches of bounded size."""
    batch: list[Head] = []
    size = 0
    for head in group:
        if batch and (len(batch) == MOST_TOGETHER or size + head.size > HELD):
            yield batch
            batch, size = [], 0
        batch.append(head)
        size += head.size
    yield batch
