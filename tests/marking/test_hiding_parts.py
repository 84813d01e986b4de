"""Parts of hiding a mark: guesses where nothing is told apart, and what is said of adapters."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from neuralmark.core.carriers import Carriers
from neuralmark.core.grid import Grid
from neuralmark.marking import hiding
from neuralmark.marking.reading import Reading
from neuralmark.marking.surveying import MarkedPart, Sample, Survey


def test_where_nothing_can_be_told_apart_half_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = SimpleNamespace(
        reading=SimpleNamespace(pooled=np.ones(4)), shifts=lambda change: change
    )
    solver: Any = SimpleNamespace(change=lambda pooled, goal: pooled * goal)
    for seen, told in ((None, 0.5), (0.7, 0.7)):
        monkeypatch.setattr(hiding, "exposed", lambda *_, seen=seen: seen)
        assert hiding.exposure_at(found, solver, 1.0, 0) == told


def sample(part: int, carriers: list[int]) -> Sample:
    count = len(carriers)
    residual, free = np.arange(1.0, count + 1), np.ones(count, np.bool_)
    values = np.ones(count, np.float32)
    return Sample(part, values, residual, np.arange(count), np.array(carriers), free)


def test_weights_of_both_kinds_may_be_of_different_tensors() -> None:
    part = MarkedPart(cast("Any", None), 0, Grid("float32", 23, 100.0), 1.0)
    reading = Reading(Carriers.everything(8, 4), np.zeros(4), 1.0, 1.0, {})

    def seen(*samples: Sample) -> float | None:
        found = Survey(reading, (part, part), np.ones(4), np.ones(4), samples)
        return hiding.exposed(found, np.ones(4), 1)

    moved, still = sample(0, [0, 1]), sample(1, [-1, -1])
    assert seen(moved, still) == 0.875
    assert seen(moved) is None
    assert seen(still) is None


@pytest.mark.parametrize(("share", "told"), [(0.5, False), (0.51, True), (0.9, True)])
def test_an_update_mostly_of_low_rank_is_called_an_adapter(share: float, told: bool) -> None:
    update = SimpleNamespace(size=1.0, explained=share)
    found: Any = SimpleNamespace(parts=(SimpleNamespace(update=update),))
    assert ("merged adapter" in hiding._not_hidden(found, 0.7)) == told
