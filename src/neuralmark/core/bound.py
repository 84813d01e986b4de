"""Exact chances: how many fair coins agree with n bits by luck (docs/method.md, section 1)."""

import math
from functools import cache

SECURITY_BITS = 128
"""Verdicts are sound to 2^-128. No option lowers it."""


@cache
def tail(bits: int, matched: int) -> int:
    """Number of n-bit strings that agree in at least `matched` places: Σ_{i≥t} C(n, i).

    >>> tail(4, 3)
    5
    """
    if matched <= 0:
        return 1 << bits
    total, term = 0, 1  # term = C(n, i), from i = n downwards
    for i in range(bits, matched - 1, -1):
        total += term
        term = term * i // (bits - i + 1)
    return total


@cache
def boundary(bits: int, trials: int = 1) -> int | None:
    """Smallest t with trials · P(at least t of n fair coins agree) < 2^-128; None if there is none.

    >>> boundary(256), boundary(128)
    (227, None)
    """
    if bits < SECURITY_BITS:
        return None
    limit = 1 << (bits - SECURITY_BITS)
    total, term, least = 0, 1, None
    for i in range(bits, -1, -1):
        total += term
        if trials * total >= limit:
            return least
        least = i
        term = term * i // (bits - i + 1)
    return least  # pragma: no cover - the full sum 2^n is never below the limit


def bound_log2(bits: int, matched: int, trials: int = 1) -> float:
    """log2 of trials · P(at least `matched` of n fair coins agree), at most 0.

    >>> round(bound_log2(256, 227), 2)
    -128.99
    """
    return min(0.0, math.log2(trials * tail(bits, matched)) - bits)
