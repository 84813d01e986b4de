"""Which tensor of a suspect stands for which name: by canonical name, or under one common prefix.

Never by order of appearance: whoever supplies a file chooses the order, and can fit it to a key.
Several stored names may stand for one (`X` beside `module.X`); all of them are tried, up to a cap.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from neuralmark.core.key import Placement
from neuralmark.core.names import canonical_name
from neuralmark.marking.placement import Tensor
from neuralmark.records.parts import TensorMapping

MOST_PREFIXES = 64
"""How many common prefixes are tried at most, those that cover most weights first."""

MOST_TWINS = 12
"""How many choices among tensors of one canonical name are tried at most."""

ADDED = ("model.", "transformer.", "backbone.", "language_model.")
"""Prefixes that a model may have had before its inner part was saved alone."""

_DEEPEST = 3
_LEAST_PART = 1 / MOST_PREFIXES

Table = Mapping[str, Sequence[Tensor]]


@dataclass(frozen=True)
class Renaming:
    """One common prefix: what a suspect's names have more than the key's, or less."""

    added: str = ""
    removed: str = ""

    def suspects(self, name: str) -> str | None:
        """The suspect's name for a name of the key; None where it can have none."""
        if not name.startswith(self.removed):
            return None
        return self.added + name[len(self.removed) :]

    @property
    def mapping(self) -> TensorMapping:
        """What a verdict calls it."""
        return "prefix" if self.added or self.removed else "names"


def by_canonical(known: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """All tensors of each canonical name; in an order that the file does not decide."""
    table: dict[str, list[Tensor]] = defaultdict(list)
    for tensor in sorted(known, key=lambda t: (len(t.info.name), t.info.name)):
        table[tensor.canonical].append(tensor)
    return dict(table)


def renamings(table: Table, placement: Placement) -> list[Renaming]:
    """The names as they are, then the prefixes under which most of the weights are found."""
    wanted = dict(placement)
    found: Counter[Renaming] = Counter()
    for suspect, tensors in table.items():
        shapes = {tensor.info.shape for tensor in tensors}
        for prefix, rest in _splits(suspect):
            if rest in wanted and _alike(wanted[rest], shapes):
                found[Renaming(added=prefix)] += math.prod(wanted[rest])
    for name, shape in placement:
        for prefix, rest in _splits(name):
            if rest in table and _alike(shape, {tensor.info.shape for tensor in table[rest]}):
                found[Renaming(removed=prefix)] += math.prod(shape)
    ranked = sorted(found, key=lambda r: (-found[r], r.added, r.removed))
    return [Renaming(), *ranked[:MOST_PREFIXES]]


def _alike(wanted: tuple[int, ...], shapes: set[tuple[int, ...]]) -> bool:
    return wanted in shapes or (len(wanted) == 2 and wanted[::-1] in shapes)


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """Every way to cut a name in two behind a dot."""
    at = name.find(".") + 1
    while at:
        yield name[:at], name[at:]
        at = name.find(".", at) + 1


def choices(candidates: Sequence[Sequence[Tensor]]) -> Iterator[tuple[Tensor | None, ...]]:
    """Ways to take one candidate for each entry: by the wrapper they are stored under, then any.

    Where no entry has several candidates, there is one way.
    """
    twins = {_wrapper(t) for several in candidates if len(several) > 1 for t in several}
    wrappers = Counter(_wrapper(t) for several in candidates for t in several if twins)
    wrappers = Counter({name: count for name, count in wrappers.items() if name in twins})
    seen: set[tuple[str | None, ...]] = set()
    for chosen in islice(_all_choices(candidates, wrappers), 4 * MOST_TWINS):
        names = tuple(None if tensor is None else tensor.info.name for tensor in chosen)
        if names not in seen:
            seen.add(names)
            yield chosen
        if len(seen) == MOST_TWINS:
            return


def _all_choices(
    candidates: Sequence[Sequence[Tensor]], wrappers: Counter[str]
) -> Iterator[tuple[Tensor | None, ...]]:
    for wrapper, _ in sorted(wrappers.items(), key=lambda pair: (-pair[1], pair[0])):
        yield tuple(_preferred(several, wrapper) for several in candidates)
    yield from product(*(several or (None,) for several in candidates))


def _preferred(several: Sequence[Tensor], wrapper: str) -> Tensor | None:
    of_wrapper = (tensor for tensor in several if _wrapper(tensor) == wrapper)
    return next(of_wrapper, several[0] if several else None)


def _wrapper(tensor: Tensor) -> str:
    """What a stored name has beyond the canonical one."""
    stored = Counter(tensor.info.name.split("."))
    return ".".join(sorted((stored - Counter(tensor.canonical.split("."))).elements()))


def views(known: Sequence[Tensor]) -> list[list[Tensor]]:
    """The suspect with one tensor for each canonical name, in as many ways as are tried."""
    table = by_canonical(known)
    kept: list[list[Tensor]] = []
    for chosen in choices(list(table.values())):
        picked = {tensor.info.name for tensor in chosen if tensor is not None}
        kept.append(
            [
                replace(tensor, name=canonical_name(tensor.info.name))
                for tensor in known
                if tensor.info.name in picked
            ]
        )
    return kept


def without_prefixes(view: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The larger parts of a model as models of their own, their common prefix removed."""
    whole = sum(tensor.info.size for tensor in view)
    parts: Counter[str] = Counter()
    members: Counter[str] = Counter()
    for tensor in view:
        for prefix, _ in islice(_splits(tensor.name), _DEEPEST):
            parts[prefix] += tensor.info.size
            members[prefix] += 1
    large = [
        prefix
        for prefix, size in parts.items()
        if size >= _LEAST_PART * whole and members[prefix] > 1 and not _numbered(prefix)
    ]
    for prefix in sorted(large, key=lambda prefix: (-parts[prefix], prefix))[:MOST_PREFIXES]:
        yield [
            replace(tensor, name=tensor.name.removeprefix(prefix))
            for tensor in view
            if tensor.name.startswith(prefix)
        ]


def _numbered(prefix: str) -> bool:
    """Whether it is one layer of many rather than a model in a model."""
    return any(part.isdigit() for part in prefix.split("."))


def with_prefixes(view: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The model as the inner part of a larger one."""
    for prefix in ADDED:
        if not any(tensor.name.startswith(prefix) for tensor in view):
            yield [replace(tensor, name=prefix + tensor.name) for tensor in view]
