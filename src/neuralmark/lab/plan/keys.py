"""The keys of runs: one owner for each seed and data set, so that a resumed run has the same."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from neuralmark import schemes
from neuralmark.core.key import Parameters, Placement
from neuralmark.errors import TooFewCarriersError
from neuralmark.keys.key import Key
from neuralmark.lab.plan.spec import ImprintSpec, MarkingSpec, Training, TuningSpec
from neuralmark.marking.reading import require_carriers

Used = TypeVar("Used")
Marked = Training | TuningSpec | ImprintSpec
"""Runs that have an owner."""

DRAWS = 16
"""Keys that are tried before a layer counts as too small."""


def key_for(spec: Marked, use: Callable[[Key], Used]) -> Used:
    """Use the run's key, drawn from its seed and data, so that a resumed run has the same.

    Some keys leave a small layer too few carriers: then the next is drawn.
    """
    for draw in range(DRAWS - 1):
        with suppress(TooFewCarriersError):
            return use(_drawn(spec, draw))
    return use(_drawn(spec, DRAWS - 1))


def _drawn(spec: Marked, draw: int) -> Key:
    marking = spec.mark or MarkingSpec("clean")
    data = "e2e" if isinstance(spec, TuningSpec) else spec.data
    which = f"neuralmark lab key {spec.seed} {data} {marking.number}"
    which += f" {draw}" if draw else ""
    digest = hashlib.sha256(which.encode()).digest()
    chosen = _parameters(spec, marking)
    return Key(chosen, b"", salt=hashlib.sha256(digest).digest(), secret=digest)


def fitting(placement: Placement, key: Key) -> Key:
    """The key, if it has carriers in the placement."""
    require_carriers(key.at(placement), placement)
    return key


def _parameters(spec: Marked, marking: MarkingSpec) -> Parameters:
    from neuralmark import zoo

    bits, pools, rounds, chosen = marking.bits, marking.pools, marking.rounds, marking.filter
    default = zoo.architecture(spec.architecture).parameters
    if marking.scheme in ("neuralmark", "clean"):
        bits = default.bits if bits is None else bits
        chosen = chosen or default.filter
        if rounds is None and chosen == default.filter:
            rounds = default.rounds
        if pools is None and bits == default.bits:
            pools = default.pools
    return schemes.parameters(
        marking.scheme,
        bits=bits or default.bits,
        pools=pools,
        rounds=rounds,
        filter=chosen,
        own=dict(marking.own),
    )
