"""Writing other marks over the owner's at once, without data or training.

The attacker uses the owner's own tool: the smallest change that writes a key of his, at a margin as
large as he likes, into the same tensors. Adaptive: many keys, one round of the filter (which
touches the most weights), or another scheme.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from neuralmark import schemes
from neuralmark.attacks.contract import Array, Attack, Outcome, Scene, option
from neuralmark.attacks.overwrite import own_parameters
from neuralmark.attacks.tools.forging import Ground, drawn, ground_of
from neuralmark.core.key import Float
from neuralmark.core.names import canonical_name
from neuralmark.errors import AttackError
from neuralmark.keys.key import Key
from neuralmark.marking.reading import require_carriers


@dataclass(frozen=True)
class Rewrite(Attack):
    """Write own keys post hoc, at a chosen margin."""

    summary: ClassVar[str] = "write marks of one's own over the owner's, without data"
    expects: ClassVar[str] = "both marks are there: the owner's goes only with a ruinous change"
    dial: ClassVar[str] = "margin"

    margin: float = option(4.0, "margin of the attacker's marks, in σz", low=0.0, high=1e6)
    keys: int = option(1, "keys written one after the other", low=1, high=256)
    scheme: str = option("", "the attacker's scheme (empty: the owner's)")
    rounds: int = option(0, "rounds of the attacker's filter (0: the owner's)", low=0, high=64)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """One key; one round of the filter; eight keys."""
        forms = (cls(), cls(rounds=1), cls(keys=8))
        margins = (1.0, 4.0, 16.0, 64.0)
        return tuple(replace(form, margin=margin) for form in forms for margin in margins)

    @property
    def variant(self) -> str:
        """What is unusual about it."""
        words = [f"{self.keys} keys"] if self.keys > 1 else []
        words += [self.scheme] if self.scheme else []
        words += [f"R={self.rounds}"] if self.rounds else []
        return ", ".join(words)

    def run(self, scene: Scene) -> Outcome:
        """Write one key after the other."""
        ground = ground_of(scene)
        parameters = own_parameters(scene, self)
        if not schemes.get(parameters.scheme).writes:
            raise AttackError(
                f"{parameters.scheme} cannot be written post hoc: choose another scheme, or the"
                " attack 'overwrite'"
            )
        keys = [drawn(parameters, scene.rng) for _ in range(self.keys)]
        weights = ground.weights
        for key in keys:
            weights = _written(Ground(ground.placement, parameters, weights), key, self.margin)
        final = Ground(ground.placement, parameters, weights)
        rate = float(np.mean([final.matched(key) for key in keys])) / parameters.bits
        return Outcome(
            _as_tensors(scene, ground, weights),
            key=keys[0],
            placement=ground.placement,
            queries=self.keys,
            figures={"attacker_rate": rate},
        )


def _written(ground: Ground, key: Key, margin: float) -> Float:
    mark = key.at(ground.placement)
    carriers = require_carriers(mark, ground.placement)
    at = carriers.positions()
    chosen = ground.weights[at]
    unit = float(chosen.std()) * float(np.sqrt(carriers.pools / carriers.per_pool))
    shift = schemes.of(mark).solver(mark).change(ground.pooled(carriers), margin * unit)
    weights = ground.weights.copy()
    weights[at] += shift[carriers.pool_of(0, carriers.size)]
    return weights


def _as_tensors(scene: Scene, ground: Ground, weights: Float) -> dict[str, Array]:
    stored = {canonical_name(name): name for name in scene.weights}
    tensors, start = {}, 0
    for name, shape in ground.placement:
        size = int(np.prod(shape))
        part = weights[start : start + size].astype(np.float32)
        tensors[stored.get(name, name)] = part.reshape(shape)
        start += size
    return tensors
