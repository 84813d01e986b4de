"""Directions of the stream in which a suspect's layers are far too loud, left out (pure).

Whoever adds noise in directions that a layer's inputs never take hides which of its channels is
which. Along a stream that is in order, such directions show without any order of the channels: the
suspect has many times the anchor's energy there, and in all others about as much. They are left out
of both, so that channels and heads are compared by the rest. Each run of rows loses the directions
that the other rows show: told by the very rows that lose it, it takes more than noise from them.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from neuralmark.anchors.aligning.sides import Floats, Two
from neuralmark.structures.structure import Array

LOUD = 12.0
"""Directions with so many times the energy of the quiet ones are left out."""
QUIET = 0.25
"""The share of directions that are surely quiet."""
FAR = 8.0
"""What is left out must be so many times as much of the suspect, beside the rest, as of the
anchor."""
RUNS = 8
"""So many runs of rows are looked at without themselves, at most."""
WIDEST = 2048
"""Streams that are wider are not looked at: it would take minutes for a layer."""
_FLOOR = 0.1
"""Of the anchor's mean energy: what a direction has at least."""
_TINY = 1e-12


def quieted(layers: Sequence[Two], run: int = 1) -> list[Two]:
    """Layers that read (or write) one stream, rows along it, without what is far too loud.

    Rows that belong together, as those of a head, come in runs of this length. The same layers
    where nothing is too loud.
    """
    width = layers[0][0].shape[1] if layers else 0
    fits = all(len(rows) > 1 and rows.shape[1] == width for two in layers for rows in two)
    if not fits or not 1 < width <= WIDEST:
        return list(layers)
    sizes = [max(float(np.square(one, dtype=np.float64).sum()), _TINY) for one, _ in layers]
    pairs = list(zip(layers, sizes, strict=True))
    loud = _Loudness(np.sum([_energy(one) / size for (one, _), size in pairs], axis=0))
    heard = np.sum([_energy(two) / size for (_, two), size in pairs], axis=0)
    whole = loud.directions(heard)
    if whole is None:
        return list(layers)
    made = []
    for (one, two), size in pairs:
        quiet = two.astype(np.float64)
        for part in _runs(len(two), run):
            own = loud.directions(heard - _energy(two[part]) / size)
            quiet[part] = _without(quiet[part], whole if own is None else own)
        made.append((_single(_without(one.astype(np.float64), whole)), _single(quiet)))
    return made


class _Loudness:
    """Which directions are too loud, beside the anchor's energies."""

    def __init__(self, mine: Floats) -> None:
        width = len(mine)
        floor = _FLOOR * float(np.trace(mine)) / width
        sizes, axes = np.linalg.eigh(mine + max(floor, _TINY) * np.eye(width))
        roots = np.sqrt(np.maximum(sizes, _TINY))
        self._mine, self._level, self._back = mine, (axes / roots) @ axes.T, (axes * roots) @ axes.T

    def directions(self, theirs: Floats) -> Floats | None:
        """A basis of them; None where there is nothing that stands out."""
        ratios, turned = np.linalg.eigh(self._level @ theirs @ self._level)
        loud = ratios > LOUD * max(float(np.quantile(ratios, QUIET)), _TINY)
        basis = np.linalg.qr(self._back @ turned[:, loud])[0]
        held, heard = _odds(self._mine, basis), _odds(theirs, basis)
        return basis if heard >= max(1.0, FAR * held) else None


def _runs(rows: int, run: int) -> list[slice]:
    """A few runs of rows, none of which is cut."""
    count = max(1, rows // max(run, 1))
    ends = [run * (count * part // min(count, RUNS)) for part in range(min(count, RUNS))] + [rows]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def _odds(energy: Floats, basis: Floats) -> float:
    """What lies in these directions, for each that lies in others."""
    inside = float(np.trace(basis.T @ energy @ basis))
    return inside / max(float(np.trace(energy)) - inside, _TINY)


def _energy(rows: Array) -> Floats:
    """Of each pair of directions, over all rows."""
    held = rows.astype(np.float64)
    return np.asarray(held.T @ held)


def _without(rows: Floats, basis: Floats) -> Floats:
    return np.asarray(rows - (rows @ basis) @ basis.T)


def _single(rows: Floats) -> Array:
    return np.asarray(rows, np.float32)
