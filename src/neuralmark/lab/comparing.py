"""Our values beside the paper's: means of seeds, their intervals, and what they contradict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from neuralmark.core.bound import boundary
from neuralmark.lab.plan.spec import Assault, ImprintSpec, Training, TuningSpec

LEVEL = 0.95
"""Of the intervals: Student's, over seeds."""
BIT = 1 / 256
"""No interval of a rate is taken to be narrower: rates go in steps."""

Standing = Literal["", "agrees", "contradicts", "open", "untested"]
"""How a cell stands to the paper's: with 95 % confidence, or not; or nothing could be told."""
AGREES: Final = "agrees"
CONTRADICTS: Final = "contradicts"
OPEN: Final = "open"
UNTESTED: Final = "untested"

Rated = Training | TuningSpec | ImprintSpec | Assault
"""Runs whose rows have a detection rate."""


@dataclass(frozen=True)
class Cell:
    """One value of a table, the paper's beside it, and whether they contradict each other."""

    ours: str
    paper: str = ""
    contradicts: bool = False
    """The mark is proven, by the mean of the seeds, in one and not in the other."""
    standing: Standing = ""
    """The same by the interval of the seeds; empty where the paper has no rate."""


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % interval by Student's t; infinite for one value.

    >>> mean, half = interval([0.9, 1.0, 0.95])
    >>> round(mean, 3), round(half, 3)
    (0.95, 0.124)
    """
    count = len(values)
    mean = sum(values) / count
    if count == 1:
        return mean, math.inf
    from scipy.special import stdtrit

    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    return mean, float(stdtrit(count - 1, (1 + LEVEL) / 2)) * deviation / math.sqrt(count)


def spread(values: Sequence[float], form: str) -> str:
    """The mean of the seeds, with half of their 95 % interval where there are several."""
    if not values:
        return "–"
    mean, half = interval(values)
    if len(values) == 1:
        return form.format(mean)
    return f"{form.format(mean)} ± {form.replace('+', '').format(half)}"


def percent(values: Sequence[float], digits: int = 2) -> str:
    """The same in percent.

    >>> percent([0.9, 1.0, 0.95]), percent([0.5], 1)
    ('95.00 ± 12.42', '50.0')
    """
    return spread([100 * value for value in values], f"{{:.{digits}f}}")


def least(spec: Rated) -> float:
    """The detection rate that proves a run's mark; 1 for 128 bits or fewer, which prove nothing."""
    from neuralmark import zoo

    model = spec.victim if isinstance(spec, Assault) else spec
    bits = None if model.mark is None else model.mark.bits
    bits = zoo.architecture(model.architecture).parameters.bits if bits is None else bits
    needed = boundary(bits)
    return 1.0 if needed is None else needed / bits


def kept(specs: Sequence[Rated], rates: Sequence[float]) -> bool:
    """Whether the mean rate of these runs proves their mark."""
    return sum(rates) / len(rates) >= least(specs[0]) - 1e-9


def beside(
    ours: str, paper: str, specs: Sequence[Rated], rates: Sequence[float], *, theirs: bool = True
) -> Cell:
    """A cell whose rates are held against the paper's mark, which is proven (`theirs`) or not."""
    if not rates:
        return Cell(ours, paper)
    against = kept(specs, rates) != theirs
    mean, half = interval(rates)
    clear = abs(mean - least(specs[0])) > max(half, BIT)
    if mean == 1.0 and half <= BIT:  # nothing lies above it
        clear = True
    return Cell(ours, paper, against, (CONTRADICTS if against else AGREES) if clear else OPEN)
