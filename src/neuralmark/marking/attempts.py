"""The ways of reading a suspect for a key, fixed before anything is read: each is one trial."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from neuralmark import schemes
from neuralmark.core.key import Placement
from neuralmark.errors import ClaimMismatchError, TooFewCarriersError
from neuralmark.keys.key import Key
from neuralmark.marking import coverage
from neuralmark.marking.naming import (
    Renaming,
    Table,
    by_canonical,
    choices,
    renamings,
    views,
    with_prefixes,
    without_prefixes,
)
from neuralmark.marking.options import ALL, QUICK, WIDE, Spread
from neuralmark.marking.placement import Tensor, auto, placement_of, select
from neuralmark.marking.reading import Attempt
from neuralmark.records import Claim, Gap

__all__ = ["Attempt", "attempts_for", "check_claim", "claimed", "gaps_of", "searched"]

LEAST_SHARE = 0.125
"""With fewer of the claimed weights than this, no mark could be read: not tried."""


def attempts_for(
    known: Sequence[Tensor], key: Key, claim: Claim | None, names: Sequence[str] | None
) -> list[Attempt]:
    """Where a claim or names point to; else the `auto` lists and every tensor large enough.

    Empty where nothing of it can be read.
    """
    if claim is not None:
        check_claim(claim, key)
        return claimed(known, claim.placement, claim.anchor_digest)
    if names:
        chosen = select(known, names)
        return _and_by_rows([Attempt(placement_of(chosen), chosen, "names")])
    return searched(known, key)


def check_claim(claim: Claim, key: Key) -> None:
    """Refuse a claim of another key, or one whose parameters disagree with the key's."""
    if claim.fingerprint == key.fingerprint and claim.commitment != key.commitment:
        raise ClaimMismatchError(
            "the claim's commitment is not this key's; it was edited: rebuild it with"
            " rebuild_claim(model, key)"
        )
    if claim.fingerprint != key.fingerprint:
        raise ClaimMismatchError(
            f"the claim is of the key {claim.fingerprint[:60]}, not of this one"
            f" ({key.fingerprint}); give the key that made the claim, or leave the claim out"
        )
    if claim.parameters != key.parameters:
        raise ClaimMismatchError(
            "the claim's parameters disagree with the key's; it was edited: rebuild it with"
            " rebuild_claim(model, key)"
        )


def claimed(known: Sequence[Tensor], placement: Placement, anchor: bytes = b"") -> list[Attempt]:
    """The claim's tensors by name, or by name under one common prefix; as stored, or turned.

    What is not there is read as zeros. Then all of it again with every output row divided by its
    root mean square, which undoes the folding of a norm into the layer before it.
    """
    table = by_canonical(known)
    ways: dict[object, Attempt] = {}
    for renaming in renamings(table, placement):
        stored = list(_under(renaming, table, placement, transposed=False))
        turned = list(_under(renaming, table, placement, transposed=True))
        if turned and (not stored or _found(turned[0]) > _found(stored[0])):
            stored += turned
        for way in stored:
            ways.setdefault(way.reading_of, way)
    return _and_by_rows([replace(way, anchor=anchor) for way in ways.values()])


def by_names(known: Sequence[Tensor], placement: Placement, anchor: bytes) -> Attempt | None:
    """The one way to read these tensors where they lie; None where too few are there.

    By their very names, or under the common prefix under which most of the weights are: names and
    shapes alone decide, so it is one look, whatever the prefixes.
    """
    table = by_canonical(known)
    ways = (
        next(_under(renaming, table, placement, transposed=False), None)
        for renaming in renamings(table, placement)
    )
    found = max((way for way in ways if way is not None), key=_found, default=None)
    return None if found is None else replace(found, anchor=anchor)


def _and_by_rows(ways: list[Attempt]) -> list[Attempt]:
    """Every way a second time with levelled rows, where there are matrices or kernels."""
    return ways + [
        replace(way, by_rows=True)
        for way in ways
        if any(len(shape) > 1 for _, shape in way.placement)
    ]


def _under(
    renaming: Renaming, table: Table, placement: Placement, *, transposed: bool
) -> Iterator[Attempt]:
    """The claim's tensors under one renaming, with every choice among tensors of one name."""
    if transposed and any(len(shape) != 2 for _, shape in placement):
        return
    candidates, gaps = [], []
    for name, shape in placement:
        near = table.get(renaming.suspects(name) or "", ())
        wanted = shape[::-1] if transposed else shape
        candidates.append([t for t in near if t.info.shape == wanted and t.obstacle is None])
        if not candidates[-1]:
            gaps.append(_gap(name, wanted, near or _packed(table, name)))
    total = sum(math.prod(shape) for _, shape in placement)
    found = total - sum(gap.weights for gap in gaps)
    if len(gaps) == len(placement) or found < LEAST_SHARE * total:
        return
    for chosen in choices(candidates):
        yield Attempt(placement, chosen, renaming.mapping, transposed, gaps=tuple(gaps))


def _gap(name: str, shape: tuple[int, ...], near: Sequence[Tensor]) -> Gap:
    """Why nothing can be read for an entry."""
    size = math.prod(shape)
    hidden = next((t for t in near if t.obstacle is not None and coverage.holds_weights(t)), None)
    if hidden is not None:
        return Gap(name, size, f"{hidden.info.name[:80]!r}: {hidden.obstacle}", stored=True)
    if any(t.info.shape == shape for t in near):
        return Gap(name, size, "it is there, among too few of the others")
    if near:
        return Gap(name, size, f"it has the shape {near[0].info.shape} instead of {shape}")
    return Gap(name, size, "it is not there")


def _packed(table: Table, name: str) -> list[Tensor]:
    """What may hold a tensor's weights under another name: `qweight` for `weight`, say."""
    stem = name.removesuffix("weight")
    near = (t for other, tensors in table.items() if other.startswith(stem) for t in tensors)
    return [t for t in near if t.obstacle is not None and coverage.holds_weights(t)]


def gaps_of(known: Sequence[Tensor], placement: Placement) -> tuple[Gap, ...]:
    """Why each tensor of a placement cannot be read, where none of them can be."""
    table = by_canonical(known)
    return tuple(
        _gap(name, shape, table.get(name) or _packed(table, name)) for name, shape in placement
    )


def _found(attempt: Attempt) -> int:
    return sum(tensor.info.size for tensor in attempt.read_tensors())


def searched(known: Sequence[Tensor], key: Key) -> list[Attempt]:
    """The lists that `auto` chooses, also under common prefixes, and every tensor large enough."""
    ways: dict[object, Attempt] = {}
    for attempt in _all_places(known, key):
        ways.setdefault(attempt.reading_of, attempt)
    if not ways and not coverage.unreadable(known):
        least = key.parameters.pools * 2**key.parameters.rounds
        least_words = f"{least:,} weights at least; " if least else ""
        usable = sum(tensor.obstacle is None for tensor in known)
        raise TooFewCarriersError(
            f"no tensor of this model is large enough for this key"
            f" ({least_words}{usable} of {len(known)} tensors are usable): give claim=..."
            " or tensors=[...]"
        )
    return list(ways.values())


def _all_places(known: Sequence[Tensor], key: Key) -> Iterator[Attempt]:
    """What is most likely, and quick to read, comes first."""
    several = views(known)
    for view in several:
        yield from _lists(view, key, (WIDE, QUICK))
    for tensor in known:
        if tensor.obstacle is None:
            yield from _places([(replace(tensor, name=tensor.canonical),)], key)
    for view in several:
        for renamed in (*without_prefixes(view), *with_prefixes(view)):
            for attempt in _lists(renamed, key, (WIDE, QUICK)):
                yield replace(attempt, mapping="prefix")
    for view in several:
        for attempt in _lists(view, key, (WIDE, QUICK)):
            yield replace(attempt, by_rows=True)
    for view in several:
        yield from _lists(view, key, (ALL,))


def _lists(view: Sequence[Tensor], key: Key, spreads: Iterable[Spread]) -> Iterator[Attempt]:
    return _places([auto(view, key.parameters, spread).tensors for spread in spreads], key)


def _places(lists: Iterable[tuple[Tensor, ...]], key: Key) -> Iterator[Attempt]:
    """Those of the lists that have room for the key."""
    scheme = schemes.get(key.parameters.scheme)
    for chosen in lists:
        placement = placement_of(chosen)
        if placement and scheme.room(key.parameters, placement) >= 1:
            yield Attempt(placement, chosen, "search")
