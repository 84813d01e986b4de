"""Whether a model is like an anchor at all: cheap, before anything is aligned.

A tensor that lies as the anchor's does shows by its cosine. Whatever the order, signs and scales of
channels, levelled tensors keep their singular values: copies with noise of 30 % were within 0.16 of
their anchors (in logarithms), random numbers of their shape 0.06 to 0.6 away, networks that were
trained alike in between. So this rules out only what is clearly something else.
"""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from neuralmark.anchors.anchor import MARKED, Anchor, AnchorEntry
from neuralmark.anchors.locating.likeness import likeness
from neuralmark.anchors.locating.profiles import levelled
from neuralmark.anchors.locating.suspect import SuspectWeights
from neuralmark.core.names import canonical_name
from neuralmark.structures.structure import Array

Spectrum = npt.NDArray[np.float64]

FAR = 0.25
"""Spectra further apart than this are not of one tensor and its copy."""
TENSORS = 6
"""Of the anchor, those that are looked at."""
CANDIDATES = 4
"""Of the suspect, those that each of them is held against."""
LARGEST = 1 << 23
"""Tensors with more weights are not looked at, unless there are no others."""
_POINTS = 32
_FLOOR = 1e-3
_NEAR = 2


class AnchorSketch:
    """What is remembered of an anchor, to hold many models against it."""

    def __init__(self, anchor: Anchor) -> None:
        """The spectra of a few of its marked tensors, of all depths."""
        self._anchor = anchor
        marked = [
            entry for entry in anchor.entries if entry.role == MARKED and len(entry.shape) > 1
        ]
        small = [entry for entry in marked if math.prod(entry.kept_shape) <= LARGEST]
        chosen = small or sorted(marked, key=lambda entry: math.prod(entry.kept_shape))[:1]
        places = {i * len(chosen) // TENSORS for i in range(TENSORS)} if chosen else set()
        self._entries = [chosen[i] for i in sorted(places)]
        self._spectra = {each.name: spectrum(anchor[each.name]) for each in self._entries}

    def distance(self, suspect: SuspectWeights) -> float:
        """How far a model is from it, at least: 0 where a tensor lies as the anchor's does.

        Infinite where no tensor has a shape like any of the anchor's.
        """
        found = []
        for entry in self._entries:
            near = [self._apart(entry, suspect[name]) for name in _candidates(entry, suspect)]
            if 0.0 in near:
                return 0.0
            found += [min(near)] if near else []
        return float(np.median(found)) if found else math.inf

    def _apart(self, entry: AnchorEntry, values: Array) -> float:
        if not np.isfinite(values).all():
            return math.inf
        if values.shape == entry.kept_shape and likeness(values, self._anchor[entry.name]).direct:
            return 0.0
        difference = spectrum(values) - self._spectra[entry.name]
        return max(1e-9, float(np.sqrt(np.mean(difference**2))))


def spectrum(values: Array) -> Spectrum:
    """Logarithms of the larger half of a tensor's singular values, rows and columns levelled."""
    cube = values.reshape(values.shape[0], values.shape[1], -1)
    top = float(np.abs(cube).max(initial=0.0))
    if not top:
        return np.full(_POINTS, math.log(_FLOOR))
    even = levelled((cube / np.float32(top)).astype(np.float32)).reshape(len(cube), -1)
    short = np.asarray(even if len(even) <= even.shape[1] else even.T, np.float64)
    squares = np.linalg.eigvalsh(short @ short.T)[::-1]
    sizes = np.sqrt(np.maximum(squares, 0.0)) / math.sqrt(max(float(squares.sum()), 1e-300))
    half = sizes[: max(4, len(sizes) // 2)] * math.sqrt(len(sizes))
    places, held = np.linspace(0, 1, _POINTS), np.linspace(0, 1, len(half))
    return np.asarray(np.interp(places, held, np.log(half + _FLOOR)))


def _candidates(entry: AnchorEntry, suspect: SuspectWeights) -> Iterator[str]:
    """Tensors that may be this one: of its name, then of nearly its shape, evenly spaced."""
    shape = entry.kept_shape
    alike = [
        name
        for name, other in suspect.shapes.items()
        if len(other) > 1 and _similar(other, shape) and math.prod(other) <= 4 * LARGEST
    ]
    own = [name for name in alike if canonical_name(name) == entry.name][:1]
    exact = [name for name in alike if suspect.shapes[name] == shape and name not in own]
    rest = exact or [name for name in alike if name not in own]
    places = range(CANDIDATES if rest else 0)
    yield from own
    yield from dict.fromkeys(rest[i * len(rest) // CANDIDATES] for i in places)


def _similar(one: tuple[int, ...], two: tuple[int, ...]) -> bool:
    """Whether two shapes are about the same, as matrices, whichever way they are stored."""
    mine, other = (sorted((shape[0], math.prod(shape[1:]))) for shape in (one, two))
    return all(a <= _NEAR * b and b <= _NEAR * a for a, b in zip(mine, other, strict=True))
