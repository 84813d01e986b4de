"""`imprint`: write a mark into a live model at once, as `embed` does into a checkpoint."""

import math
from collections.abc import Sequence

import torch

from neuralmark.core.imprint import LeastChange, goal_of
from neuralmark.drafting import check_effort, choose_strength, require_writable
from neuralmark.embedding import Embedding, few_carriers
from neuralmark.keyfile import Key
from neuralmark.placement import WIDE
from neuralmark.training.attach import locate, stored_names
from neuralmark.training.grids import found_fields
from neuralmark.training.handle import LiveMark
from neuralmark.training.layout import add_up
from neuralmark.training.live import LiveSuspect, squared_norm
from neuralmark.training.site import Settings, Site
from neuralmark.verification import examine


@torch.no_grad()
def imprint(
    model: torch.nn.Module,
    key: Key,
    *,
    tensors: Sequence[str] | str = "auto",
    strength: float | None = None,
    budget: float | None = None,
    spread: str = WIDE,
) -> Embedding:
    """Write the key's mark into a live model, sharded or not, by the smallest change.

    Strength, budget and spread mean what they mean to `embed`. On a sharded model all processes
    call it.
    """
    check_effort(strength, budget)
    require_writable(key)
    site = locate(model, key, tensors, spread=spread)
    suspect = LiveSuspect(model)
    by_name = {tensor.name: tensor for tensor in suspect.tensors()}
    reading = suspect.read([by_name[name] for name, _ in site.placement], site.carriers)
    chosen = choose_strength(LeastChange(site.mark), reading, strength, budget)
    before = [source.values() for source in site.sources]
    fields = found_fields(site.sources, key.noise(site.placement), _sizes(site))
    live = LiveMark(site, Settings("projection", chosen), fields)
    live.project(goal_of(reading.pooled, chosen))

    square = largest = 0.0
    for source, old in zip(site.sources, before, strict=True):
        change = (source.values() - old).double()
        part = change.square().sum()
        add_up(part, source.layout.reduce)
        square += float(part)
        most = torch.cat([change.abs(), change.new_zeros(1)]).max()
        add_up(most, source.layout.reduce, "MAX")
        largest = max(largest, float(most))
    claim = live.claim()
    return Embedding(
        output=None,
        claim_file=None,
        claim=claim,
        verdict=examine(LiveSuspect(model), key, claim=claim),
        tensors=tuple(name for name, _ in site.placement),
        strength=chosen,
        change_relative=math.sqrt(square) / reading.norm,
        change_largest=largest,
        carriers=site.carriers.size,
        weights_per_pool=site.carriers.per_pool,
        warnings=few_carriers(site.carriers),
    )


def _sizes(site: Site) -> list[float]:
    """Root mean square of each marked tensor, over all its shards."""
    return [
        math.sqrt(squared_norm(site.model, name, source.layout) / source.layout.size)
        for name, source in zip(stored_names(site), site.sources, strict=True)
    ]
