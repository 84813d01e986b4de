"""What a mark in training computes: reading it, its gradient, and the projection of the weights."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from neuralmark import schemes
from neuralmark.core import imprint, readout
from neuralmark.core.key import Float
from neuralmark.errors import InfeasibleError, UnsuitableTensorError
from neuralmark.training.grids import Field, fields_of
from neuralmark.training.layout import Peers, agreed
from neuralmark.training.live import Pools, pool, reading_of, shifted
from neuralmark.training.quick import Quick
from neuralmark.training.site import Settings, Site, State
from neuralmark.training.sources import WeightSource

_Place = tuple[torch.device, torch.dtype]


class MarkWork:
    """The computations of one mark; matrices are kept for each device and precision."""

    def __init__(self, site: Site, settings: Settings, fields: Sequence[Field] = ()) -> None:
        """`fields`: how carriers may move, if known."""
        self.site, self.settings = site, settings
        self.scheme = schemes.of(site.mark)
        self._matrices: dict[_Place, readout.Known] = {}
        self._sharpened: dict[_Place, readout.Known] = {}
        self._quick: dict[_Place, Quick | None] = {}
        self._solver: imprint.LeastChange | None = None
        self._fields: Sequence[Field] = fields
        self._learner: torch.optim.Optimizer | None = None

    # Reading.

    @property
    def sharded(self) -> bool:
        """Whether a process holds only parts of the marked weights."""
        return any(source.layout.sharded for source in self.site.sources)

    def pools(self) -> Pools:
        """The pooled carriers as they are now."""
        return self.pools_of([source.values() for source in self.site.sources])

    def pools_of(self, values: Sequence[torch.Tensor]) -> Pools:
        """The pools of these values of the carriers."""
        return pool(self.site.sources, self.site.carriers, values)

    @torch.no_grad()
    def state(self, found: Pools, step: int) -> State:
        """Share of matching bits, embedding loss and smallest margin."""
        known = self._known(found.pooled)
        margins = readout.margins(self.scheme.logits(known, found.pooled), known.signs)
        unit = reading_of(found, self.site.carriers).sigma_z if self.scheme.linear else 0.0
        rate = float((margins > 0).double().mean())
        loss = float(self.loss(found, step))
        return State(rate, loss, float(margins.min()) / (unit or 1.0))

    def loss(self, found: Pools, step: int) -> torch.Tensor:
        """The embedding loss, without the strength."""
        known = self._sharp(found.pooled)
        loss: torch.Tensor = self.scheme.loss(known, self._seen(found), step)
        return loss

    def learn(self, found: Pools, step: int) -> None:
        """One step of what the scheme learns along with the weights, such as centres of classes."""
        if not self.scheme.learnt:
            return
        known = self._sharp(found.pooled)
        if self._learner is None:
            self._learner = torch.optim.Adam(
                {"params": [known.extra[name].requires_grad_()], "lr": rate}
                for name, rate in self.scheme.learnt.items()
            )
        with torch.enable_grad():
            loss = self.scheme.loss(known, self._seen(found).detach(), step)
        if loss.requires_grad:  # not every form of a scheme uses what others learn
            self._learner.zero_grad()
            loss.backward()
            self._learner.step()

    def _seen(self, found: Pools) -> torch.Tensor:
        """What the scheme's loss looks at: the means of the pools, or every carrier in them."""
        if not self.scheme.whole:
            return found.pooled
        assert found.values is not None
        return found.values.reshape(-1, self.site.carriers.pools)

    def exactly(self) -> Any:
        """No autocast: the read-out is computed in full precision."""
        device = self.site.sources[0].parameters()[0].device
        if not torch.is_autocast_enabled(device.type):
            return nullcontext()
        return torch.autocast(device.type, enabled=False)

    def require_same_parameters(self) -> None:
        """The module must still hold the tensors that were attached to (shards come and go)."""
        if self.sharded:
            return
        for owner, name, tensor in self.site.owners:
            if owner._parameters.get(name) is not tensor:
                raise UnsuitableTensorError(
                    f"the parameter {name!r} of {type(owner).__name__} was replaced since the mark"
                    " was attached: detach the mark and attach it again"
                )

    # The gradient.

    @torch.no_grad()
    def add_gradient(
        self, step: int, scale: torch.Tensor | None, frozen: Callable[[], Sequence[WeightSource]]
    ) -> Pools:
        """Push λ·∂L_e/∂w to all sources that are not frozen; give what was read for it."""
        self.require_same_parameters()
        with self.exactly():
            factor = self.settings.strength if scale is None else self.settings.strength * scale
            return self._quickly(factor) or self._by_shares(factor, step, frozen())

    def _quickly(self, factor: float | torch.Tensor) -> Pools | None:
        """The way for one plain tensor; None where it does not apply."""
        site = self.site
        if len(site.sources) != 1 or not self.scheme.plain:
            return None
        weight = site.sources[0].parameters()[0]
        place = (weight.device, weight.dtype)
        if place not in self._quick:
            known = self._sharp(weight.detach())
            pair = (known.matrix, known.signs)
            self._quick[place] = Quick.of(site.sources[0], site.carriers, pair)
        quick = self._quick[place]
        return None if quick is None else quick.add(factor)

    def _by_shares(
        self, factor: float | torch.Tensor, step: int, frozen: Sequence[WeightSource]
    ) -> Pools:
        """The general way: each source takes its share."""
        site, found = self.site, self.pools()
        if self.scheme.whole:
            self.learn(found, step)
            (source,) = site.sources
            source.push(self._slope(found, step) * factor)
            return found
        share = self._share(found.pooled, step) * factor
        for source in site.sources:
            if source not in frozen:
                source.push(self._spread(share, source))
        return found

    def _slope(self, found: Pools, step: int) -> torch.Tensor:
        """∂L_e/∂w at every carrier."""
        with torch.enable_grad():
            given = self._seen(found).detach().requires_grad_()
            loss = self.scheme.loss(self._sharp(found.pooled), given, step)
            return torch.autograd.grad(loss, given)[0].reshape(-1)

    def _share(self, pooled: torch.Tensor, step: int) -> torch.Tensor:
        """∂L_e/∂w at a carrier of each pool: in closed form, or by autograd."""
        known, per_pool = self._sharp(pooled), self.site.carriers.per_pool
        if self.scheme.plain:
            z = readout.logits(pooled, known.matrix)
            share: torch.Tensor = readout.loss_gradient(z, known.signs, known.matrix, per_pool)
            return share
        with torch.enable_grad():
            given = pooled.detach().requires_grad_()
            loss = self.scheme.loss(known, given, step)
            return torch.autograd.grad(loss, given)[0] / per_pool

    # The projection.

    @torch.no_grad()
    def project(self, step: int, goal: float | None = None) -> Pools:
        """The smallest change after which every bit has its margin; give what is read then.

        The margin is `goal`, or strength · σz of the weights as they are.
        """
        site = self.site
        self.require_same_parameters()
        with self.exactly():
            before = [source.values() for source in site.sources]
            last = found = self.pools_of(before)
            reading = reading_of(found, site.carriers)
            if self._solver is None:
                self._solver = self.scheme.solver(site.mark)
            fields = self._fields_now()
            exact = all(field.exact for field in fields)
            if goal is None:
                self._require_steady()
                goal = self.settings.strength * reading.sigma_z

            def realise(shift: Float) -> Float:
                nonlocal last
                for source, field, values in zip(site.sources, fields, before, strict=True):
                    change = self._spread(torch.from_numpy(shift).to(values), source)
                    source.write(field.moved(source, values, change, step))
                if exact:
                    last = shifted(found, shift, site.carriers.per_pool)
                    return reading.pooled + shift
                last = self.pools()
                return reading_of(last, site.carriers).pooled

            decide = agreed(imprint.lacking(self._solver, goal), self._deciders())
            steady = self._solver.steady
            imprint.settle(reading.pooled, decide, realise, exact=exact, steady=steady)
            return last

    def _require_steady(self) -> None:
        """Refuse a strength at which every projection makes the weights larger than the last."""
        most = self.scheme.strongest(self.site.key.parameters)
        if self.settings.strength >= most:
            raise InfeasibleError(
                f"strength {self.settings.strength:g} is too large for this key of"
                f" {self.scheme.name}: the marked weights would grow with every step; stay below"
                f" {most:.3g}"
            )

    # Machinery.

    def _fields_now(self) -> Sequence[Field]:
        """How the carriers may move; looked at when they are first projected."""
        if not self._fields:
            seed = self.site.key.noise(self.site.placement, self.site.anchor_digest)
            self._fields = fields_of(self.site.sources, seed)
        return self._fields

    def _deciders(self) -> tuple[Peers, ...]:
        peers = [each for source in self.site.sources for each in source.layout.agree]
        return tuple(dict.fromkeys(peers))

    def _known(self, like: torch.Tensor) -> readout.Known:
        """K, b and ±1 on the device and in the precision of the pooled values."""
        place = (like.device, like.dtype)
        if place not in self._matrices:
            self._matrices[place] = readout.Known.of(self.site.mark, like)
        return self._matrices[place]

    def _sharp(self, like: torch.Tensor) -> readout.Known:
        """The same as the loss sees it."""
        place = (like.device, like.dtype)
        if place not in self._sharpened:
            known = self._known(like)
            matrix = known.matrix * self.site.sharpness
            self._sharpened[place] = replace(known, matrix=matrix)
        return self._sharpened[place]

    def _spread(self, per_pool: torch.Tensor, source: WeightSource) -> torch.Tensor:
        """A number for each pool, as one for each carrier of the source."""
        carriers = self.site.carriers
        if len(source.order) == carriers.size and carriers.pooling == "strided":
            return per_pool.expand(carriers.per_pool, -1).reshape(-1)
        return per_pool.index_select(0, self._owner(source))

    def _owner(self, source: WeightSource) -> torch.Tensor:
        carriers = self.site.carriers
        return source.pools(carriers.pools, carriers.per_pool, carriers.pooling)
