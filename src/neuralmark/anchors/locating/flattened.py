"""Tensors that lie one behind the other in a vector: a model, or one of its layers, flattened.

Some trainings keep their parameters so, and whoever likes may store a whole model as one tensor. A
vector that is as long as the whole original is cut as the original's tensors lie. Else a piece
of each tensor that is sought is held against every place of the vector; which piece, only
the anchor tells.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from neuralmark.anchors.locating.layouts import orders, size_of
from neuralmark.anchors.locating.likeness import CONVINCING, Scores, finite, rounded, scattered
from neuralmark.anchors.locating.seeking import Candidate, Found, Quest, Wanted
from neuralmark.anchors.locating.suspect import Shape
from neuralmark.anchors.locating.views import Shaped, Stored, Taken, Turned, View
from neuralmark.core.names import natural
from neuralmark.structures.structure import Array

PIECE = 1024
"""Weights of a tensor that are looked for."""
LEAST = 256
"""A tensor of fewer weights is not looked for: its like is found by chance."""
MOST, FEW = 0.75, 3
"""A tensor of several axes that holds this share of a suspect is taken for a vector too, where the
suspect has so few tensors at most."""
MOST_WORK = 1 << 30
"""Places that pieces are held against, at most: half a minute. Of longer vectors, and of more
tensors, only what lies where the original's tensors would lie is found."""
_BLOCK = 1 << 18
"""Places of a vector that are looked at at once."""


@dataclass(frozen=True)
class LongVector:
    """A vector that may hold several tensors."""

    view: View
    length: int

    def part(self, start: int, shape: Shape) -> View:
        """A tensor that begins at this place."""
        return Shaped(Taken(self.view, 0, start, size_of(shape)), shape)


@dataclass(frozen=True, eq=False)
class FlatPiece:
    """A stretch of a wanted tensor as it lies where axes are stored in some order."""

    wanted: Wanted
    axes: tuple[int, ...]
    """Axis k of the anchor's is the stored axis axes[k]."""
    start: int
    values: Array

    @property
    def stored(self) -> Shape:
        """The shape that is stored."""
        return tuple(self.wanted.shape[axis] for axis in np.argsort(self.axes))

    def view(self, vector: LongVector, place: int) -> View | None:
        """The tensor whose piece lies at this place; None where it would not lie in the vector."""
        first = place - self.start
        if first < 0 or first + size_of(self.stored) > vector.length:
            return None
        part = vector.part(first, self.stored)
        return part if self.axes == tuple(range(len(self.axes))) else Turned(part, self.axes)


def by_vectors(quest: Quest, left: Sequence[Wanted], found: Found) -> list[Candidate]:
    """What lies in a vector: where the original's tensors would lie, then anywhere."""
    sought = [each for each in left if _sizeable(each)]
    seen: dict[str, Candidate] = {}
    room = MOST_WORK
    for vector in _vectors(quest, min((size_of(w.shape) for w in sought), default=0)):
        cuts = list(_cuts(quest, vector))
        for wanted in sought:
            starts = [places[wanted.name] for places in cuts if wanted.name in places]
            own = [quest.judged(vector.part(at, wanted.shape), wanted) for at in starts]
            best = max(own, key=lambda each: each.score, default=None)
            if best is not None and best.score >= CONVINCING:
                seen[wanted.name] = best
        for rank in range(max((len(orders(len(w.shape))) for w in sought), default=0)):
            rest = [w for w in sought if w.name not in seen and size_of(w.shape) <= vector.length]
            rest = rest[: room // vector.length]
            room -= len(rest) * vector.length
            pieces = [p for w in rest for p in _pieces(quest, w, rank)]
            seen |= {each.name: each for each in _anywhere(quest, vector, pieces)}
    return list(seen.values())


def _sizeable(wanted: Wanted) -> bool:
    return len(wanted.shape) > 1 and wanted.entry.rows is None and size_of(wanted.shape) >= LEAST


def _vectors(quest: Quest, least: int) -> Iterator[LongVector]:
    """Vectors, and what holds nearly all of a suspect, with room for something sought."""
    shapes = quest.suspect.shapes
    most = MOST * sum(map(size_of, shapes.values()))
    for name, shape in shapes.items():
        size = size_of(shape)
        plain = size == max(shape)
        if size >= max(least, LEAST) and (plain or (size >= most and len(shapes) <= FEW)):
            view: View = Stored(name)
            yield LongVector(view if len(shape) == 1 else Shaped(view, (size,)), size)


def _cuts(quest: Quest, vector: LongVector) -> Iterator[dict[str, int]]:
    """Where tensors begin in a vector as long as all of the original, or all with several axes."""
    shapes = list(quest.anchor.skeleton.shapes)
    for some in (shapes, [each for each in shapes if len(each[1]) > 1]):
        sizes = {name: size_of(shape) for name, shape in some}
        if sum(sizes.values()) == vector.length:
            for order in (list(sizes), sorted(sizes, key=natural)):
                starts = accumulate((sizes[name] for name in order), initial=0)
                yield dict(zip(order, starts, strict=False))


def _pieces(quest: Quest, wanted: Wanted, rank: int) -> Iterator[FlatPiece]:
    """Of a tensor whose axes are stored in the order of this rank; none where there is none."""
    ways = orders(len(wanted.shape))
    if rank >= len(ways):
        return
    axes = ways[rank]
    stored = quest.anchor[wanted.name].transpose(np.argsort(axes)).reshape(-1)
    room = max(1, stored.size - PIECE + 1)
    start = int(scattered(room, 1, quest.anchor.digest + wanted.name.encode())[0])
    yield FlatPiece(wanted, axes, start, stored[start : start + PIECE])


def _anywhere(quest: Quest, vector: LongVector, pieces: list[FlatPiece]) -> Iterator[Candidate]:
    """Each piece where it fits best, if the whole tensor is like the anchor's there."""
    for piece, (place, alike) in zip(pieces, _places(quest, vector, pieces), strict=True):
        view = piece.view(vector, place) if alike >= CONVINCING / 2 else None
        seen = None if view is None else quest.judged(view, piece.wanted)
        if seen is not None and seen.score >= CONVINCING:
            yield seen


def _places(
    quest: Quest, vector: LongVector, pieces: Sequence[FlatPiece]
) -> list[tuple[int, float]]:
    """Where in a vector each piece is most alike, and how alike."""
    best = [(0, 0.0)] * len(pieces)
    if not pieces:
        return best
    size = 1 << min(_BLOCK, vector.length + PIECE).bit_length()
    needles = [np.conj(np.fft.rfft(_unit(piece.values), size)) for piece in pieces]
    for start in range(0, vector.length, size - PIECE + 1):
        stop = min(start + size, vector.length)
        values = finite(vector.view.take(quest.suspect, (np.arange(start, stop),)))
        values = values.astype(np.float64)
        sums = np.concatenate(([0.0], np.cumsum(values * values)))
        heard = np.fft.rfft(values, size)
        for number, (piece, needle) in enumerate(zip(pieces, needles, strict=True)):
            room = len(values) - len(piece.values) + 1
            if room > 0:
                norms = np.sqrt(np.maximum(sums[-room:] - sums[:room], 0.0))
                alike = _cosines(np.fft.irfft(heard * needle, size)[:room], norms)
                place = int(alike.argmax())
                if rounded(float(alike[place])) > best[number][1]:
                    best[number] = start + place, rounded(float(alike[place]))
    return best


def _cosines(dots: Scores, norms: Scores) -> Scores:
    """Of stretches with these lengths; none where there is nearly nothing."""
    least = 1e-6 * norms.max(initial=0.0)
    return np.where(norms > least, np.abs(dots) / np.where(norms > least, norms, 1.0), 0.0)


def _unit(values: Array) -> Scores:
    single = values.astype(np.float64)
    length = float(np.sqrt(np.square(single).sum()))
    return single / length if length else single
