"""A part of a suspect as a function that answers to probes, or fails with a reason.

It is somebody else's code: it may raise, never end, answer with NaN or with something else each
time. Whatever it does, it ends in an answer or in a `ProbeError`.
"""

import copy
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

SECONDS = 120.0
"""How long one module may take to answer all of its probes."""

Shape = tuple[int, ...]


class ProbeError(Exception):
    """A module that could not be probed; its text says why."""


@dataclass(frozen=True)
class Seen:
    """What a module took and gave when the example went through it."""

    shape: Shape
    dtype: torch.dtype
    device: torch.device
    out: Shape
    scale: float
    """Root mean square of what came in."""
    positive: bool
    """Whether nothing that came in was below zero, as behind a ReLU."""

    @classmethod
    def of(cls, given: Tensor, out: Tensor) -> "Seen":
        """Of one call."""
        size = float(given.detach().double().square().mean().sqrt()) if given.numel() else 0.0
        scale = size if 0 < size < math.inf else 1.0
        positive = bool((given >= 0).all()) and bool((given > 0).any())
        shape, made = tuple(given.shape), tuple(out.shape)
        return cls(shape, given.dtype, given.device, made, scale, positive)


@dataclass(frozen=True)
class ProbedFunction:
    """A function of one tensor, what it was seen to take, and until when it may answer."""

    function: Callable[[Tensor], Any]
    seen: Seen
    until: float

    def __call__(self, given: Tensor) -> Tensor:
        """The answer to float64 on the CPU, in the same."""
        if time.monotonic() > self.until:
            raise ProbeError(f"it took more than {SECONDS:.0f} seconds")
        try:
            answer = self.function(given.to(self.seen.device, self.seen.dtype))
        except TimeoutError:
            raise ProbeError(f"it took more than {SECONDS:.0f} seconds") from None
        except (Exception, SystemExit) as error:
            raise ProbeError(f"it raised {type(error).__name__}") from None
        if not isinstance(answer, Tensor) or not answer.is_floating_point():
            raise ProbeError("it does not answer with a tensor of numbers")
        found = answer.detach().to("cpu", torch.float64)
        if not bool(torch.isfinite(found).all()):
            raise ProbeError("it answers with NaN or infinity")
        return found

    def zeros(self, shape: Shape) -> Tensor:
        """Nothing, in a shape."""
        return torch.zeros(shape, dtype=torch.float64)

    def random(self, shape: Shape, seed: int) -> Tensor:
        """Fixed pseudo-random numbers, as large as what came in, and of no other signs."""
        made = torch.randn(
            shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )
        return self.seen.scale * (made.abs() if self.seen.positive else made)

    def widened(self, rows: int) -> "ProbedFunction":
        """For more rows at once, if it takes them; as it is otherwise."""
        if rows <= self.seen.shape[0]:
            return self
        shape = rows, *self.seen.shape[1:]
        try:
            if self(self.zeros(shape)).shape != (rows, *self.seen.out[1:]):
                return self
        except ProbeError:
            return self
        seen = replace(self.seen, shape=shape, out=(rows, *self.seen.out[1:]))
        return replace(self, seen=seen)


def in_double(module: torch.nn.Module, probe: ProbedFunction) -> ProbedFunction:
    """The same in float64, where a copy of the module computes so; as it is otherwise."""
    if probe.seen.dtype == torch.float64:
        return probe
    try:
        made = copy.deepcopy(module).double()
    except Exception:  # whatever the suspect's own code raises
        return probe
    fine = replace(probe, function=made, seen=replace(probe.seen, dtype=torch.float64))
    try:
        fine(fine.zeros(fine.seen.shape))
    except ProbeError:
        return probe
    return fine


@contextmanager
def limited() -> Iterator[float]:
    """Until when one module may answer; in the main thread, what never ends is interrupted."""
    until = time.monotonic() + SECONDS
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield until
        return

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS + 1)
    try:
        yield until
    except TimeoutError:
        raise ProbeError(f"it took more than {SECONDS:.0f} seconds") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def apart(one: Tensor, two: Tensor) -> float:
    """How far two answers are apart, in parts of the first; the same for two of nothing."""
    size = float(one.norm())
    gap = float((one - two).norm())
    return gap / size if size else math.inf if gap else 0.0
