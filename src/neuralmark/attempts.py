"""The ways of reading a suspect for a key, fixed before anything is read: each is one trial."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from neuralmark import schemes
from neuralmark.core.key import Placement
from neuralmark.errors import ClaimMismatchError, TooFewCarriersError, UnknownTensorError
from neuralmark.keyfile import Key
from neuralmark.placement import (
    ALL,
    QUICK,
    WIDE,
    Tensor,
    auto,
    natural,
    placement_of,
    require_usable,
    select,
    suggestion,
)
from neuralmark.records import Claim


@dataclass(frozen=True)
class Attempt:
    """One way of reading the suspect: the placement of the key, and the tensors read for it."""

    placement: Placement
    tensors: tuple[Tensor, ...]
    mapping: str
    transposed: bool = False

    @property
    def reading_of(self) -> tuple[tuple[str, ...], bool]:
        """What is read, and which way round: the same twice is one trial."""
        return tuple(tensor.info.name for tensor in self.tensors), self.transposed


def attempts_for(
    known: Sequence[Tensor], key: Key, claim: Claim | None, names: Sequence[str] | None
) -> list[Attempt]:
    """By claim or by names, only there; else the `auto` lists and every tensor large enough."""
    if claim is not None:
        check_claim(claim, key)
        return claimed(known, claim.placement)
    if names:
        chosen = select(known, names)
        return [Attempt(placement_of(chosen), chosen, "names")]
    return searched(known, key)


def check_claim(claim: Claim, key: Key) -> None:
    """Refuse a claim of another key, or one whose parameters disagree with the key's."""
    if claim.fingerprint == key.fingerprint and claim.commitment != key.commitment:
        raise ClaimMismatchError(
            "the claim's commitment is not this key's; it was edited: rebuild it with"
            " 'neuralmark claim MODEL --key KEY'"
        )
    if claim.fingerprint != key.fingerprint:
        raise ClaimMismatchError(
            f"the claim is of the key {claim.fingerprint[:60]}, not of this one"
            f" ({key.fingerprint}); give the key that made the claim, or leave the claim out"
        )
    if claim.parameters != key.parameters:
        raise ClaimMismatchError(
            "the claim's parameters disagree with the key's; it was edited: rebuild it with"
            " 'neuralmark claim MODEL --key KEY'"
        )


def claimed(known: Sequence[Tensor], placement: Placement) -> list[Attempt]:
    """Map the claim's tensors to the suspect's: by name, else by order among equal shapes.

    The order is that of appearance, and that of the names (2 before 10) where it differs.
    """
    by_name = {tensor.name: tensor for tensor in known}
    if all(name in by_name for name, _ in placement):
        chosen = tuple(by_name[name] for name, _ in placement)
        for tensor in chosen:
            require_usable(tensor)
        for transposed in (False, True):
            if _fits(chosen, placement, transposed):
                return [Attempt(placement, chosen, "names", transposed)]
    orders = (list(known), sorted(known, key=lambda tensor: natural(tensor.name)))
    ways = [_by_shape(order, placement, turned) for turned in (False, True) for order in orders]
    attempts = list({way.reading_of: way for way in ways if way is not None}.values())
    if not attempts:
        name, shape = next(((n, s) for n, s in placement if n not in by_name), placement[0])
        found = f" (here it has the shape {by_name[name].info.shape})" if name in by_name else ""
        raise UnknownTensorError(
            f"the claim's tensor {name!r} of shape {shape} is not in this model{found},"
            f" nor are tensors of the same shapes{suggestion(name, by_name)}"
        )
    return attempts


def searched(known: Sequence[Tensor], key: Key) -> list[Attempt]:
    """The lists that `auto` chooses, and every single tensor that is large enough."""
    parameters = key.parameters
    scheme = schemes.get(parameters.scheme)
    lists = [auto(known, parameters, spread).tensors for spread in (WIDE, QUICK)]
    lists += [(tensor,) for tensor in known if tensor.obstacle is None]
    lists.append(auto(known, parameters, ALL).tensors)  # the most to read comes last
    attempts: dict[Placement, Attempt] = {}
    for chosen in lists:
        placement = placement_of(chosen)
        if placement and scheme.room(parameters, placement) >= 1:
            attempts.setdefault(placement, Attempt(placement, chosen, "search"))
    if not attempts:
        least = parameters.pools * 2**parameters.rounds
        least_words = f"{least:,} weights at least; " if least else ""
        usable = sum(tensor.obstacle is None for tensor in known)
        raise TooFewCarriersError(
            f"no tensor of this model is large enough for this key"
            f" ({least_words}{usable} of {len(known)} tensors are usable): give --claim or --tensor"
        )
    return list(attempts.values())


def _fits(chosen: Sequence[Tensor], placement: Placement, transposed: bool) -> bool:
    shapes = [tensor.info.shape for tensor in chosen]
    if transposed:
        return all(
            len(shape) == 2 and shape[::-1] == wanted
            for shape, (_, wanted) in zip(shapes, placement, strict=True)
        )
    return all(shape == wanted for shape, (_, wanted) in zip(shapes, placement, strict=True))


def _by_shape(known: Sequence[Tensor], placement: Placement, transposed: bool) -> Attempt | None:
    """The fixed rule: the i-th tensor of a shape in the claim is the i-th one in the suspect."""
    if transposed and any(len(shape) != 2 for _, shape in placement):
        return None
    usable = sorted(
        (tensor for tensor in known if tensor.obstacle is None), key=lambda t: t.info.shape
    )
    stock = {shape: iter(list(group)) for shape, group in groupby(usable, lambda t: t.info.shape)}
    chosen = []
    for _, shape in placement:
        tensor = next(stock.get(shape[::-1] if transposed else shape, iter(())), None)
        if tensor is None:
            return None
        chosen.append(tensor)
    return Attempt(placement, tuple(chosen), "shapes", transposed)
