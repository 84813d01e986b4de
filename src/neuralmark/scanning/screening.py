"""Which marks may be in which models of one header: counts of bits, not yet verdicts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from neuralmark.checkpoints import Checkpoint
from neuralmark.core.bound import boundary
from neuralmark.marking.reading import Attempt
from neuralmark.scanning import pooling
from neuralmark.scanning.contract import ScanFailure
from neuralmark.scanning.keyring import Keyring
from neuralmark.scanning.planning import HELD, HeaderPlan
from neuralmark.scanning.pooling import NONE, Counts, MarkCache

SLACK = 1
"""Bits short of the boundary that are looked at again: sums of another order may round another
way."""

Beat = Callable[[], None]
"""Called now and then, to show that the work goes on."""


@dataclass(frozen=True)
class Screened:
    """What was seen of a batch of models with one header."""

    plan: HeaderPlan
    best: Counts
    """The most bits that match in any way: marks x models; NONE where nothing could be read."""
    needed: tuple[int | None, ...]
    """How many must match, for each mark."""
    broken: tuple[tuple[str, ...], ...]
    """For each model, which of its tensors (stored names) hold NaN or infinity."""
    failures: dict[tuple[int, int], ScanFailure] = field(default_factory=dict)
    """Why a look went wrong, by mark and model."""

    def failure(self, mark: int, model: int) -> ScanFailure | None:
        """Why a mark could not be looked for, if it is for an error of its own."""
        return self.plan.ways[mark].failure or self.failures.get((mark, model))

    def promising(self, mark: int, model: int) -> bool:
        """Whether a verdict is worth its time."""
        needed = self.needed[mark]
        return needed is not None and bool(self.best[mark, model] >= needed - SLACK)

    def closest(self, model: int) -> int | None:
        """The mark that comes closest to its boundary; None where nothing was read."""
        seen = [
            (int(self.best[mark, model]) - needed, -mark)
            for mark, needed in enumerate(self.needed)
            if needed is not None and self.best[mark, model] != NONE
        ]
        return -max(seen)[1] if seen else None


def screen(
    models: Sequence[Checkpoint],
    plan: HeaderPlan,
    keyring: Keyring,
    marks: MarkCache,
    among: int,
    beat: Beat = lambda: None,
) -> Screened:
    """Count the bits of every mark in every model, in all ways."""
    needed = tuple(
        boundary(keyring.sought[way.sought].key.parameters.bits, max(1, way.trials) * among)
        for way in plan.ways
    )
    if len(models) == 1 and plan.size > HELD:
        return _streamed(models[0], plan, keyring, marks, needed)
    loaded = []
    for model in models:
        loaded.append(pooling.load(model, plan.names))
        beat()
    best = np.full((len(plan.ways), len(models)), NONE)
    failures: dict[tuple[int, int], ScanFailure] = {}
    for attempts in _readings(plan):
        rows = [pooling.laid_out(attempts[0][1], each) for each in loaded]
        for place, attempt in attempts:
            key = keyring.sought[plan.ways[place].sought].key
            found = pooling.looked(key, attempt, rows, marks)
            np.maximum(best[place], found.counts, out=best[place])
            failures |= {(place, model): why for model, why in found.failures.items()}
        beat()
    broken = tuple(
        tuple(name for name, values in each.items() if not np.isfinite(values).all())
        for each in loaded
    )
    return Screened(plan, best, needed, broken, failures)


def _readings(plan: HeaderPlan) -> list[list[tuple[int, Attempt]]]:
    """Attempts that read the same weights in the same way, together: they are laid out once."""
    alike: dict[object, list[tuple[int, Attempt]]] = {}
    for place, way in enumerate(plan.ways):
        for attempt in way.attempts:
            read = tuple(
                shape if tensor is None else tensor.info.name
                for (_, shape), tensor in zip(attempt.placement, attempt.tensors, strict=True)
            )
            name = read, attempt.transposed, attempt.by_rows
            alike.setdefault(name, []).append((place, attempt))
    return list(alike.values())


def _streamed(
    model: Checkpoint,
    plan: HeaderPlan,
    keyring: Keyring,
    marks: MarkCache,
    needed: tuple[int | None, ...],
) -> Screened:
    """A model that is too large to be held: all looks in one pass."""
    looks = [
        (place, keyring.sought[way.sought].key, attempt)
        for place, way in enumerate(plan.ways)
        for attempt in way.attempts
    ]
    found = pooling.streamed(model, [(key, attempt) for _, key, attempt in looks], marks)
    best = np.full((len(plan.ways), 1), NONE)
    for (place, _, _), count in zip(looks, found.counts, strict=True):
        best[place, 0] = max(best[place, 0], count)
    failures = {(looks[number][0], 0): why for number, why in found.failures.items()}
    return Screened(plan, best, needed, ((),), failures)
