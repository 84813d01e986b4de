"""How much of a model can be read: which of its tensors hold weights, and in what form."""

import math
import re
from collections.abc import Collection, Iterable, Sequence

from neuralmark.errors import UnreadableError
from neuralmark.marking.placement import Tensor, is_companion
from neuralmark.records import Coverage, Gap

FROM = 0.05
"""From this share of weights that cannot be read, a mark that is not found says nothing."""

_PACKED = ("I8", "U8", "I16", "U16", "I32", "U32")
_IN_ONE = {"U8": 2, "I16": 4, "U16": 4, "I32": 8, "U32": 8}
"""Weights in one packed number: four bits each, as is usual."""
_NO_WEIGHTS = ("I64", "U64", "BOOL")
_LEAST_PACKED = 64
_INDICES = re.compile(r"(bias|mask|masks|ids|index|indices|idx|count|counter|steps?|shape)$")


def holds_weights(tensor: Tensor) -> bool:
    """Whether a tensor holds weights, in whatever form: no scales, indices, masks or counters."""
    info = tensor.info
    if info.size == 0 or is_companion(info.name) or info.dtype in _NO_WEIGHTS:
        return False
    if info.dtype in _PACKED:
        return info.size > _LEAST_PACKED and not _INDICES.search(info.name)
    return True


def unreadable(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Those that hold weights in a form that cannot be read."""
    return [each for each in tensors if each.obstacle is not None and holds_weights(each)]


def weights_of(tensors: Iterable[Tensor]) -> int:
    """How many weights these tensors hold, as far as their headers tell; tied ones count once."""
    return sum(
        each.info.size * (_IN_ONE.get(each.info.dtype, 1) if each.obstacle else 1)
        for each in tensors
        if holds_weights(each) and not (each.tied and each.obstacle is None)
    )


def of_search(known: Sequence[Tensor], read: Iterable[Tensor], broken: set[str]) -> Coverage:
    """Of a look at the whole model; `broken` are stored names of tensors with NaN or infinity."""
    unread = unreadable(known)
    spoilt = [each for each in known if each.info.name in broken]
    lost = weights_of(unread) + weights_of(spoilt)
    why = reasons(unread, spoilt)
    whole = weights_of(known)
    return Coverage(whole, _distinct(read, broken), whole, lost, why)


def of_claim(
    known: Sequence[Tensor], read: Iterable[Tensor], wanted: int, gaps: Sequence[Gap]
) -> Coverage:
    """Of a look at named tensors only; `gaps` are those of them that were not read."""
    there = [gap for gap in gaps if gap.stored]
    why = _counted([(gap.name, gap.why) for gap in there])
    return Coverage(
        weights_of(known), _distinct(read, set()), wanted, sum(gap.weights for gap in there), why
    )


def reasons(unread: Sequence[Tensor], spoilt: Collection[Tensor]) -> str:
    """Why tensors cannot be read: their form, or what is no number in them."""
    why = described(unread)
    return "; ".join(filter(None, (why, f"{len(spoilt)} with NaN or infinity" if spoilt else "")))


def _distinct(read: Iterable[Tensor], broken: set[str]) -> int:
    sizes = {
        each.storage or each.info.name: math.prod(each.info.shape)
        for each in read
        if each.info.name not in broken
    }
    return sum(sizes.values())


def described(tensors: Sequence[Tensor]) -> str:
    """How many they are, and in what form the first is stored."""
    return _counted([(each.info.name, each.obstacle or "") for each in tensors])


def _counted(reasons: Sequence[tuple[str, str]]) -> str:
    if not reasons:
        return ""
    name, why = reasons[0]
    return f"{len(reasons)} tensor{'s' * (len(reasons) > 1)}; of {name[:80]!r}: {why}"


def require_readable(tensors: Sequence[Tensor], where: str) -> None:
    """Refuse a model of which a good part cannot be read: the rest would be marked alone."""
    unread = unreadable(tensors)
    lost, whole = weights_of(unread), weights_of(tensors)
    if whole and lost >= FROM * whole:
        raise UnreadableError(
            f"{where}: {100 * lost / whole:.0f} % of its weights cannot be read"
            f" ({described(unread)}): dequantise the model first, or name the tensors to mark"
        )
