"""Looking for the mark without the key, by all that is published, and erasing what is found.

The attacker knows source and documents. The published (tiled) filter shows itself in the sizes of
weights by position modulo n, and in means over longer periods; a mark that was written off the grid
of a tensor's values shows every carrier. With the carriers known, pools follow from their order,
and subtracting each pool's mean erases the mark. If nothing stands out he does what he would do if
it did, so that the result says what guessing is worth.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, get_args

import numpy as np

from neuralmark.attacks.contract import Array, Attack, Outcome, Scene, option
from neuralmark.attacks.tools.grids import off_grid, phases, ranks
from neuralmark.attacks.tools.locating import Positions, erase
from neuralmark.attacks.tools.tracing import (
    LENGTHS,
    ROUNDS,
    STANDS_OUT,
    Guess,
    best_period,
    best_split,
    centred,
    levelled,
    positions_under,
    read_residues,
    refined,
    row_scales,
    without_period,
)
from neuralmark.core.key import Parameters
from neuralmark.core.names import canonical_name

Trace = Literal["residues", "period", "grid"]
Search = Literal["all", Trace]
ALL: Final = "all"
RESIDUES: Final = "residues"
PERIOD: Final = "period"
GRID: Final = "grid"
SEARCHES: tuple[Search, ...] = (RESIDUES, PERIOD, GRID, ALL)
TRACES: tuple[Trace, ...] = (GRID, RESIDUES, PERIOD)
"""The surest first."""
_PASSES = 3
_NOISE = 0.02
"""Of the size of a row."""


@dataclass(frozen=True, eq=False)
class _Find:
    """What one trace would leave of the weights, and whether it stands out."""

    weights: Array
    stands_out: bool
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Expose(Attack):
    """Find the carriers by what the filter and the writing leave, and erase the mark."""

    summary: ClassVar[str] = "find the carriers without the key, and erase them"
    expects: ClassVar[str] = "a sound mark shows nothing; the published filter shows trained marks"

    by: Search = option(
        ALL,
        "sizes of weights by position modulo the mark's length, means over the filter's period,"
        " values off the grid of the others; all: whatever stands out",
        choices=get_args(Search),
    )

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """Each trace by itself, then all that stand out."""
        return tuple(cls(by) for by in SEARCHES)

    @property
    def variant(self) -> str:
        """The trace that is followed."""
        return self.by

    def run(self, scene: Scene) -> Outcome:
        """Erase in the believed placement, laid end to end, or in every tensor by itself."""
        guesses = _guesses(scene.parameters)
        made: dict[str, Array] = {}
        figures: dict[str, float] = {}
        notes = []
        groups = _groups(scene)
        for done, names in enumerate(groups):
            scene.tell("looking for carriers", done, len(groups))
            tensors = [scene.weights[name] for name in names]
            flat, told, note = self._exposed(tensors, guesses)
            ends = np.cumsum([tensor.size for tensor in tensors])[:-1]
            for name, tensor, part in zip(names, tensors, np.split(flat, ends), strict=True):
                if name in scene.target:
                    made[name] = part.reshape(tensor.shape)
            figures = {key: max(figures.get(key, value), value) for key, value in told.items()}
            notes.append(note)
        return Outcome(made, note=_summed(notes), figures=figures)

    def _exposed(
        self, tensors: Sequence[Array], guesses: Sequence[Guess]
    ) -> tuple[Array, dict[str, float], str]:
        """The weights without what was found, the figures, and what stood out."""
        flat = np.concatenate([tensor.reshape(-1) for tensor in tensors])
        figures: dict[str, float] = {}
        stood: list[str] = []
        guessed = flat
        for trace in TRACES if self.by == ALL else (self.by,):
            found = _find(trace, _cut(flat, tensors), flat, guesses)
            figures |= found.figures
            if found.stands_out:
                stood.append(trace)
                flat = found.weights
            elif not stood:
                guessed = found.weights if guessed is flat else _both(flat, guessed, found.weights)
        return (flat, figures, ", ".join(stood)) if stood else (guessed, figures, "")


def _both(flat: Array, one: Array, two: Array) -> Array:
    """What two traces would take out, together."""
    return np.asarray(one + (two - flat), np.float32)


def _find(trace: Trace, tensors: Sequence[Array], flat: Array, guesses: Sequence[Guess]) -> _Find:
    """Follow one trace."""
    if trace == GRID:
        return _by_grid(tensors, flat, guesses[0])
    return (_by_residues if trace == RESIDUES else _by_period)(tensors, flat, guesses)


def _by_residues(tensors: Sequence[Array], flat: Array, guesses: Sequence[Guess]) -> _Find:
    """Read b off the sizes of the weights; erase the pools that follow from it."""
    level = np.concatenate([levelled(tensor).reshape(-1) for tensor in tensors])
    tried = [(best_split(flat, level, guess.bits), guess) for guess in guesses]
    found = [(*each, guess) for each, guess in tried if each is not None]
    if not found:
        return _Find(flat, stands_out=False)
    found.sort(key=lambda each: -each[1])
    likely = [each for each in found if each[1] > STANDS_OUT] or found[:1]
    read = [(read_residues(flat, split, z, guess), guess) for split, z, guess in likely]
    reading, guess = max(read, key=lambda each: each[0].pool_z)
    reading = refined(flat, reading, guess)
    at = positions_under(reading.ones, reading.rounds, len(flat), guess.pools)
    figures = {
        "residue_ratio": reading.split.ratio,
        "residue_z": reading.z,
        "pool_z": reading.pool_z,
    }
    # Refining looks for loud pools, and finds some in noise as well: these are not enough.
    stands_out = reading.z > STANDS_OUT or reading.pool_z > 4 * STANDS_OUT
    return _Find(_erased(flat, at, guess.pools, tensors), stands_out, figures)


def _by_period(tensors: Sequence[Array], flat: Array, guesses: Sequence[Guess]) -> _Find:
    """Subtract the mean over the period that stands out most."""
    level = np.concatenate([centred(tensor).reshape(-1) for tensor in tensors])
    period, z = max((best_period(level, guess) for guess in guesses), key=lambda each: each[1])
    if not period:
        return _Find(flat, stands_out=False)
    figures = {"period": float(period), "period_z": z}
    return _Find(without_period(flat, period), z > STANDS_OUT, figures)


def _by_grid(tensors: Sequence[Array], flat: Array, guess: Guess) -> _Find:
    """Take the values off the grid for carriers, in order."""
    parts = [np.flatnonzero(off_grid(tensor)) for tensor in tensors]
    starts = np.cumsum([0, *(tensor.size for tensor in tensors[:-1])])
    at = np.concatenate([part + start for part, start in zip(parts, starts, strict=True)])
    figures = {"off_grid": len(at) / max(1, len(flat))}
    if not len(at):
        return _Find(flat, stands_out=False, figures=figures)
    angles = np.concatenate([phases(t, part) for t, part in zip(tensors, parts, strict=True)])
    made = _erased(flat, at, guess.pools, tensors, ranks(angles, guess.pools))
    return _Find(made, len(at) >= guess.pools, figures)


def _erased(
    flat: Array,
    at: Positions,
    pools: int,
    tensors: Sequence[Array],
    order: Positions | None = None,
) -> Array:
    """The weights without the means of the pools, read as stored and with levelled rows.

    Erasing changes the size of rows, so it is done again; noise drowns the signs of what is left.
    """
    made = flat
    for _ in range(_PASSES):
        rows = [row_scales(part).reshape(-1) for part in _cut(made, tensors)]
        scales = np.concatenate(rows)
        made = erase(made, at, pools, order, scales)
    noise = np.random.default_rng(0).standard_normal(len(at))
    made[at] += np.asarray(_NOISE * noise / scales[at], np.float32)
    return made


def _guesses(known: Parameters | None) -> list[Guess]:
    """Length, pools and rounds of the mark as they are known, else the usual ones."""
    if known is None:
        return [Guess(bits, max(512, 2 * bits), ROUNDS) for bits in LENGTHS]
    rounds = (known.rounds,) if known.rounds else ROUNDS
    return [Guess(known.bits, known.pools or max(512, 2 * known.bits), rounds)]


def _groups(scene: Scene) -> list[list[str]]:
    """The tensors that are laid end to end: those of the placement, in its order; else each."""
    stored = {canonical_name(name): name for name in scene.weights}
    placed = [
        stored[name]
        for name, shape in scene.placement
        if name in stored and scene.weights[stored[name]].shape == shape
    ]
    whole = placed and len(placed) == len(scene.placement)
    if whole and not set(placed).isdisjoint(scene.target):
        return [placed]
    return [[name] for name in scene.target if scene.weights[name].size]


def _cut(flat: Array, like: Sequence[Array]) -> list[Array]:
    """The row of weights as tensors of these shapes."""
    ends = np.cumsum([each.size for each in like])[:-1]
    return [part.reshape(each.shape) for part, each in zip(np.split(flat, ends), like, strict=True)]


def _summed(notes: Sequence[str]) -> str:
    """What stood out, in how many groups of tensors."""
    stood = [note for note in notes if note]
    if not stood:
        return "nothing stood out: what was taken out is a guess"
    words = "; ".join(dict.fromkeys(stood))
    return f"stood out: {words}" + ("" if len(notes) == 1 else f" ({len(stood)} of {len(notes)})")
