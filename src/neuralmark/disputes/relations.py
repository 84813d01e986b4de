"""Whether two models descend from one another: the correlation of their weights.

Models trained apart do not correlate weight by weight, however alike they work; a copy does, even
after fine-tuning, pruning or quantising (docs/disputes.md has what was measured). The figure
is a mean over tensors, weighted by size; what only one of the two models has counts as 0. Where
weights do not correlate as they lie, the second model is put into the order of the first, and what
is then alike counts (`anchors.lineage`): reordering a stolen model hides nothing.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from neuralmark.anchors.choosing import skeleton_of
from neuralmark.anchors.heads import heads_of
from neuralmark.anchors.lineage import kinships
from neuralmark.anchors.locating.suspect import CheckpointWeights
from neuralmark.anchors.originals import OriginalCheckpoint
from neuralmark.checkpoints import Checkpoint
from neuralmark.checkpoints.readers.dtypes import decode
from neuralmark.marking.placement import Tensor, catalogue
from neuralmark.marking.reading import Progress
from neuralmark.records import RELATED_SCORE, Fields, Lineage

LEAST_SIZE = 1000
"""Smaller tensors are not compared, nor are vectors: a norm's weights are alike in all models."""

LEAST_UNMARKED = 10_000
"""How many unmarked weights are needed for a figure without the marked ones."""

RELATED = 0.2
"""Models that correlate less are taken for unrelated: far above what models trained apart reach,
below what copies keep that still work."""

_REACH = 4.0  # deviations beyond this are cut off: one huge weight must not hide a copy
_HALF = 0.6745  # the median of |x| for a normal x of deviation 1

Values = npt.NDArray[np.floating]
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Relation:
    """How much two models correlate, in the tensors without a mark and in all of them.

    Attributes:
        one: What the first model is called.
        two: What the second model is called.
        unmarked: Over the tensors that no party's mark touches; None where there are too few.
        overall: Over all tensors; None where nothing can be compared.
        tensors: How many tensors were compared.
        weights: How many weights they have.
        shared: Share of the larger model's weights that the other has in tensors of equal shapes.
        limit: The correlation from which on models count as related.
        aligned: Score of the likeness after alignment (0 to 1); None where it was not needed.

    Examples:
        >>> relation = Relation("the exhibit of Acme", "the disputed model", 0.97, 0.95)
        >>> relation.correlation, relation.related
        (0.97, True)
    """

    one: str
    two: str
    unmarked: float | None
    overall: float | None
    tensors: int = 0
    weights: int = 0
    shared: float = 0.0
    limit: float = RELATED
    aligned: float | None = None

    @property
    def correlation(self) -> float | None:
        """The larger figure: whoever chooses what to mark must not choose what is compared."""
        return max((x for x in (self.unmarked, self.overall) if x is not None), default=None)

    @property
    def related(self) -> bool:
        """Whether they are more alike than models trained apart can be."""
        if self.aligned is not None and self.aligned >= RELATED_SCORE:
            return True
        return self.correlation is not None and self.correlation >= self.limit

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a ruling.

        Returns:
            Plain values, by name.

        Examples:
            >>> Relation("one", "two", None, 0.5).to_dict()["related"]
            True
        """
        told = asdict(self) | {"correlation": self.correlation, "related": self.related}
        del told["limit"]  # the same for all: the ruling has it
        return told

    @classmethod
    def read(cls, given: Fields, limit: float) -> Self:
        """From a parsed ruling.

        Args:
            given: The table of the relation.
            limit: The correlation from which on models counted as related.

        Returns:
            The relation.

        Raises:
            TypeError: A part has the wrong form.
            ValueError: A part is missing.

        Examples:
            >>> told = Relation("one", "two", None, 0.5).to_dict()
            >>> Relation.read(Fields(told), RELATED).overall
            0.5
        """
        return cls(
            one=given.text("one"),
            two=given.text("two"),
            unmarked=given.number_or_none("unmarked"),
            overall=given.number_or_none("overall"),
            tensors=given.count("tensors"),
            weights=given.count("weights"),
            shared=given.number("shared"),
            limit=limit,
            aligned=given.number_or_none("aligned"),
        )


@dataclass(frozen=True)
class Compared:
    """A model to compare: its label, its file, and the stored names of tensors with a mark."""

    label: str
    checkpoint: Checkpoint
    marked: AbstractSet[str] = frozenset()

    def comparable(self) -> list[Tensor]:
        """The weight matrices that are large enough, each once."""
        return [
            tensor
            for tensor in catalogue(self.checkpoint)
            if tensor.obstacle is None
            and not tensor.tied
            and len(tensor.info.shape) >= 2
            and tensor.info.size >= LEAST_SIZE
        ]


def relate(one: Compared, two: Compared, progress: Progress | None = None) -> Relation:
    """Compare two checkpoints tensor by tensor, in one streaming pass over both."""
    ours, theirs = one.comparable(), two.comparable()
    pairs = pair(ours, theirs)
    total = sum(tensor.info.size for tensor, _ in pairs)
    figures, done = [], 0
    for a, b in pairs:
        figures.append(correlation(_values(one.checkpoint, a), _values(two.checkpoint, b)))
        done += a.info.size
        if progress:
            progress(f"comparing {one.label} with {two.label}", done, total)
    clean = [a.info.name not in one.marked and b.info.name not in two.marked for a, b in pairs]
    touched = [pair for pair, untouched in zip(pairs, clean, strict=True) if not untouched]
    rest_ours = _size(_without(ours, one.marked | {a.info.name for a, _ in touched}))
    rest_theirs = _size(_without(theirs, two.marked | {b.info.name for _, b in touched}))
    sizes = [a.info.size for a, _ in pairs]
    unmarked = [f if untouched else 0.0 for f, untouched in zip(figures, clean, strict=True)]
    least = min(rest_ours, rest_theirs)
    found = Relation(
        one=one.label,
        two=two.label,
        unmarked=_mean(unmarked, sizes, least) if least >= LEAST_UNMARKED else None,
        overall=_mean(figures, sizes, min(_size(ours), _size(theirs))),
        tensors=len(pairs),
        weights=total,
        shared=total / max(_size(ours), _size(theirs), 1),
    )
    return found if found.related else replace(found, aligned=_aligned_score(one, two, progress))


def _aligned_score(one: Compared, two: Compared, progress: Progress | None) -> float | None:
    """How alike the models are once the second is in the order of the first."""
    original = OriginalCheckpoint(one.checkpoint)
    known = {tensor.name: tensor for tensor in original.tensors()}
    skeleton = skeleton_of(original, known, heads_of(one.checkpoint))
    ours, theirs = (CheckpointWeights(each.checkpoint) for each in (one, two))
    told, _ = kinships(ours, skeleton, theirs, None, progress)
    return Lineage(one.label, two.label, told).least_score if told else None


def pair(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> list[Pair]:
    """By name and shape; what is left, by order of appearance among equal shapes.

    A wrong pair does not correlate, and so counts no more than one that was not found.
    """
    by_name = {tensor.entry: tensor for tensor in theirs}
    pairs = [(tensor, by_name[tensor.entry]) for tensor in ours if tensor.entry in by_name]
    taken = {tensor.entry for tensor, _ in pairs}
    stock: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
    for tensor in reversed(theirs):
        if tensor.entry not in taken:
            stock[tensor.info.shape].append(tensor)
    for tensor in ours:
        if tensor.entry not in taken and stock[tensor.info.shape]:
            pairs.append((tensor, stock[tensor.info.shape].pop()))
    return pairs


def correlation(ours: Iterator[Values], theirs: Iterator[Values]) -> float:
    """Pearson's correlation of two streams of equal length, outliers cut off; 0 for constants.

    Middle and spread are taken from the first piece of each.
    """
    scales: list[tuple[float, float]] = []
    count, sums, products = 0, np.zeros(2), np.zeros((2, 2))
    for x, y in _aligned(ours, theirs):
        finite = np.isfinite(x) & np.isfinite(y)
        both = [x[finite].astype(np.float64), y[finite].astype(np.float64)]
        if not len(both[0]):
            continue
        scales = scales or [_scale(values) for values in both]
        cut = np.stack(
            [
                np.clip((values - middle) / spread, -_REACH, _REACH)
                for values, (middle, spread) in zip(both, scales, strict=True)
            ]
        )
        count += cut.shape[1]
        sums += cut.sum(axis=1)
        products += cut @ cut.T
    if not count:
        return 0.0
    covariance = products / count - np.outer(sums, sums) / count**2
    if min(covariance[0, 0], covariance[1, 1]) <= 1e-12:
        return 0.0
    return float(covariance[0, 1] / math.sqrt(covariance[0, 0] * covariance[1, 1]))


def _scale(values: Values) -> tuple[float, float]:
    """A middle and a spread that outliers and zeros (pruning) hardly move."""
    middle = float(np.median(values))
    away = np.abs(values - middle)
    away = away[away > 0]
    return middle, (float(np.median(away)) / _HALF if len(away) else 1.0)


def _aligned(ours: Iterator[Values], theirs: Iterator[Values]) -> Iterator[tuple[Values, Values]]:
    """Pieces of equal length; a piece is used up before the next of its stream is asked for."""
    x: Values = np.empty(0)
    y: Values = np.empty(0)
    while True:
        x = x if len(x) else next(ours, x)
        y = y if len(y) else next(theirs, y)
        length = min(len(x), len(y))
        if not length:
            return
        yield x[:length], y[:length]
        x, y = x[length:], y[length:]


def _values(checkpoint: Checkpoint, tensor: Tensor) -> Iterator[Values]:
    for raw in checkpoint.read(tensor.info.name):
        yield decode(raw, tensor.info.dtype)


def _mean(figures: Sequence[float], sizes: Sequence[int], total: int) -> float | None:
    if not total:
        return None
    return float(sum(f * size for f, size in zip(figures, sizes, strict=True)) / total)


def _size(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.info.size for tensor in tensors)


def _without(tensors: Sequence[Tensor], stored: AbstractSet[str]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.info.name not in stored]
