"""`imprint`: write a mark into a live model at once, as `embed` does into a checkpoint."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from neuralmark import schemes
from neuralmark.core.imprint import goal_of
from neuralmark.errors import InfeasibleError, NeuralMarkError
from neuralmark.keys.key import Key
from neuralmark.marking.drafting import (
    DEFAULT_BUDGET,
    choose_strength,
    require_writable,
)
from neuralmark.marking.embedding import Embedding, few_carriers
from neuralmark.marking.hiding import LEAST_STRENGTH
from neuralmark.marking.options import WIDE, Spread, check_effort
from neuralmark.marking.placement import listed
from neuralmark.marking.reading import Attempt
from neuralmark.marking.verification import examine
from neuralmark.training.attach import locate, stored_names
from neuralmark.training.grids import Field, found_fields
from neuralmark.training.handle import LiveMark
from neuralmark.training.layout import add_up
from neuralmark.training.live import LiveSuspect, squared_norm
from neuralmark.training.site import Settings, Site

_BUDGET_TRIES = 12


@torch.no_grad()
def imprint(
    model: torch.nn.Module,
    key: Key,
    *,
    tensors: Sequence[str] | str = "auto",
    strength: float | None = None,
    budget: float | None = None,
    spread: Spread = WIDE,
) -> Embedding:
    """Write the key's mark into a live model, sharded or not, by the smallest change.

    On a sharded model all processes call it.

    Args:
        model: The module to mark.
        key: The key to mark it with.
        tensors: Names of the tensors to mark, or "auto" to let `spread` choose them.
        strength: The margin of every bit in units of the spread of unmarked logits, as in `embed`.
        budget: The change of the marked weights in percent, instead of a strength.
        spread: How many tensors "auto" chooses, `wide`, `quick` or `all`.

    Returns:
        What was done, with the claim, the verdict on the model and what it cost.

    Raises:
        ParameterError: A value is out of range, or the key is raw.
        UsageError: The tensors cannot carry the mark, or not within the budget.

    Examples:
        >>> result = neuralmark.imprint(network, key)
        >>> result.verdict.verified, neuralmark.verify(network, key).verified
        (True, True)
    """
    check_effort(strength, budget)
    require_writable(key)
    site = locate(model, key, tensors, spread=spread)
    return write_mark(site, strength, budget, named=listed(tensors) is not None)


@torch.no_grad()
def write_mark(
    site: Site, strength: float | None, budget: float | None, *, named: bool
) -> Embedding:
    """Write the mark of a site into its weights; if that fails, they are what they were."""
    suspect = LiveSuspect(site.model.module)
    by_name = {tensor.name: tensor for tensor in suspect.tensors()}
    attempt = Attempt(
        site.placement,
        tuple(by_name[name] for name, _ in site.placement),
        "names",
        anchor=site.anchor_digest,
    )
    reading = suspect.read(attempt, site.carriers)
    before = [source.values() for source in site.sources]
    seed = site.key.noise(site.placement, site.anchor_digest)
    fields = found_fields(site.sources, seed, _sizes(site), named=named)
    solver = schemes.of(site.mark).solver(site.mark, _effort(site, fields, before))
    chosen = choose_strength(solver, reading, strength, budget)
    for _ in range(_BUDGET_TRIES):
        live = LiveMark(site, Settings("projection", chosen), fields)
        with _restoring(site, before):
            live.project(goal_of(reading.pooled, chosen))
        norm, largest = _changes(site, before)
        weaker = _weaker(chosen, norm / reading.norm, strength, budget)
        if weaker is None:
            break
        chosen = weaker
        _restore(site, before)
    else:
        raise InfeasibleError(
            f"a budget of {budget} % cannot write these bits into so coarse a dtype; raise it"
        )
    claim = live.claim()
    return Embedding(
        output=None,
        claim_file=None,
        claim=claim,
        verdict=examine(LiveSuspect(site.model.module), site.key, claim=claim),
        tensors=tuple(name for name, _ in site.placement),
        strength=chosen,
        change_relative=norm / reading.norm,
        change_largest=largest,
        carriers=site.carriers.size,
        weights_per_pool=site.carriers.per_pool,
        warnings=few_carriers(site.mark, site.carriers) + _kept(site, fields),
    )


@contextmanager
def _restoring(site: Site, before: Sequence[torch.Tensor]) -> Iterator[None]:
    """Put the weights back if the block fails."""
    try:
        yield
    except NeuralMarkError:
        _restore(site, before)
        raise


def _restore(site: Site, before: Sequence[torch.Tensor]) -> None:
    for source, values in zip(site.sources, before, strict=True):
        source.write(values)


def _effort(site: Site, fields: Sequence[Field], values: Sequence[torch.Tensor]) -> float:
    """Norm of the change of the weights that a shift of one pool's mean by 1 takes, on average."""
    square = 0.0
    for source, field, some in zip(site.sources, fields, values, strict=True):
        part = torch.tensor(field.effort(source, some), dtype=torch.float64)
        add_up(part, source.layout.reduce)
        square += float(part)
    return math.sqrt(square / site.carriers.pools)


def _changes(site: Site, before: Sequence[torch.Tensor]) -> tuple[float, float]:
    """Norm of the change of the weights, and the largest change of one."""
    square = largest = 0.0
    for source, old in zip(site.sources, before, strict=True):
        change = (source.values() - old).double()
        part = change.square().sum()
        add_up(part, source.layout.reduce)
        square += float(part)
        most = torch.cat([change.abs(), change.new_zeros(1)]).max()
        add_up(most, source.layout.reduce, "MAX")
        largest = max(largest, float(most))
    return math.sqrt(square), largest


def _weaker(
    chosen: float, share: float, strength: float | None, budget: float | None
) -> float | None:
    """The next strength to try where rounding made a mark dearer than its budget; else None."""
    limit = (DEFAULT_BUDGET if budget is None else budget) / 100
    least = LEAST_STRENGTH if budget is None else 0.0
    if strength is not None or share <= 1.002 * limit or chosen <= least:
        return None
    return max(chosen * 0.99 * limit / share, least)


def _kept(site: Site, fields: Sequence[Field]) -> tuple[str, ...]:
    """A warning where tensors stay as they are because a mark would show in them."""
    kept = [
        (name, field.why)
        for (name, _), field in zip(site.placement, fields, strict=True)
        if field.factor == 0
    ]
    if not kept:
        return ()
    name, why = kept[0]
    return (f"{len(kept)} of {len(fields)} tensors stay as they are ({name}: {why})",)


def _sizes(site: Site) -> list[float]:
    """Root mean square of each marked tensor, over all its shards."""
    return [
        math.sqrt(squared_norm(site.model, name, source.layout) / source.layout.size)
        for name, source in zip(stored_names(site), site.sources, strict=True)
    ]


__test__ = {"imprint": imprint}
"""Doctest passes over what torch.no_grad() wraps, unless told."""
