"""Which functions are affine: f(ax + by) - f(0) = a(f(x) - f(0)) + b(f(y) - f(0))."""

from neuralmark.training.probing.calling import ProbedFunction, ProbeError, apart

TOLERANCE = 0.03
"""So far may an answer be from what an affine function gives, in parts of its size: an 8-bit
rounding of what comes in stays below it, a ReLU, a norm or a GELU is beyond it by far."""

_SIGNED = ((0.7, -1.3), (-0.4, 0.9))
_POSITIVE = ((0.7, 1.3), (0.4, 0.9))


def is_affine(probe: ProbedFunction) -> bool:
    """Whether it answers as an affine function to a few inputs, and each time the same.

    Where nothing below zero came in, nothing below zero is tried: what it does there does not
    matter.
    """
    shape = probe.seen.shape
    nothing = probe(probe.zeros(shape))
    if nothing.shape != probe.seen.out:
        return False
    pairs = _POSITIVE if probe.seen.positive else _SIGNED
    for number, (a, b) in enumerate(pairs):
        one, two = (probe.random(shape, 2 * number + each) for each in (0, 1))
        left = [probe(each) for each in (one, two, a * one + b * two)]
        if any(each.shape != nothing.shape for each in left):
            return False
        first, second, both = (each - nothing for each in left)
        if not float(both.norm()) or apart(both, a * first + b * second) > TOLERANCE:
            return False
    if apart(probe(probe.zeros(shape)), nothing) > TOLERANCE:
        raise ProbeError("it answers something else each time")
    return True
