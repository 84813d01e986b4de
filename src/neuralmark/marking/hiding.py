"""What somebody with the public base of a fine-tuned model finds of a mark; how to limit it.

The difference to the base is fine-tuning and mark. A mark is hidden in it where each weight moves
less than fine-tuning moved it; how well that holds is measured, not assumed.
"""

import numpy as np

from neuralmark.core.imprint import LeastChange, goal_of
from neuralmark.core.key import Float
from neuralmark.core.update import auc
from neuralmark.errors import InfeasibleError
from neuralmark.marking.surveying import Survey

LEAST_STRENGTH = 1.0
"""Weaker marks do not survive much; none is written unless the owner asks for it."""
WELL_HIDDEN, HIDDEN = 0.58, 0.6
"""How well somebody with the public base may find moved weights: the aim, and the limit."""
MERGED = 0.5
"""An update with more of its energy in a part of low rank than this is a merged adapter."""
_HALVINGS = 6


def exposed(found: Survey, shifts: Float, seed: int) -> float | None:
    """How well the moved weights are told from the others by what fine-tuning does not explain.

    An AUC over a sample of all weights (0.5: not at all); None without a base.
    """
    moved, still = [], []
    carriers, rng = found.reading.carriers, np.random.default_rng([seed, 1])
    for sample in found.samples:
        part = found.parts[sample.part]
        assert part.grid is not None
        index, old = sample.carrier, sample.values
        ours = sample.movable & (index >= 0) & (index < carriers.size)
        shift = np.where(ours, part.reach * shifts[index % carriers.pools], 0.0)
        new = part.grid.moved(old, shift, rng.random(len(index), np.float32), sample.places)
        score = np.abs(sample.residual + (new - old)) / part.reach
        moved.append(score[new != old])
        still.append(score[new == old])
    if not any(map(len, moved)) or not any(map(len, still)):
        return None
    seen = auc(np.concatenate(moved), np.concatenate(still))
    return max(seen, 1.0 - seen)


def exposure_at(found: Survey, solver: LeastChange, strength: float, seed: int) -> float:
    """The same for a mark of a strength that is not written yet."""
    pooled = found.reading.pooled
    change = solver.change(pooled, goal_of(pooled, strength))
    return exposed(found, found.shifts(change), seed) or 0.5


def hidden_strength(found: Survey, solver: LeastChange, most: float, seed: int) -> float:
    """The largest strength, up to `most`, at which somebody with the base finds next to nothing."""
    if exposure_at(found, solver, most, seed) <= WELL_HIDDEN:
        return most
    low, high = min(LEAST_STRENGTH, most), most
    at_least = exposure_at(found, solver, low, seed)
    if at_least > HIDDEN:
        raise InfeasibleError(_not_hidden(found, at_least))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        hidden = exposure_at(found, solver, middle, seed) <= WELL_HIDDEN
        low, high = (middle, high) if hidden else (low, middle)
    return low


def explained(found: Survey) -> float:
    """Share of the difference to the base that is of low rank: near 1 for a merged adapter.

    Tensors that are the base's own do not count: an adapter is often merged into some only.
    """
    updates = [part.update for part in found.parts if part.update is not None]
    shares = [update.explained for update in updates if update.size]
    return float(np.mean(shares)) if shares else 0.0


def _not_hidden(found: Survey, seen: float) -> str:
    """Why a mark cannot hide from somebody who has the base, and what to do."""
    share, merged = explained(found), ""
    if share > MERGED:
        merged = (
            f"; {100 * share:.0f} % of the difference to the base are of low rank, as of a merged"
            " adapter: mark inside the adapter's span (in_span=True)"
        )
    return (
        f"whoever has the base would find the mark: even at strength {LEAST_STRENGTH:g} moved"
        f" weights stand out (AUC {seen:.2f}; {HIDDEN} at most is hidden){merged}; else mark more"
        " tensors (spread='all'), or insist with strength=..."
    )
