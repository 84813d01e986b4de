"""The identity matrix against a private filter (the paper's case for hashing the filter).

If the filter may be any secret list of positions, a forger takes the identity as his key, hashes
it, and lists weights whose signs are the bits. Nothing was learnt, no weight was changed, and the
published check passes. Where the filter is the hash itself, there is no list to choose.
"""

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt

from neuralmark import schemes
from neuralmark.attacks.contract import KEY, Attack, AttackKind, Outcome, Scene, option
from neuralmark.attacks.tools.forging import ground_at, ground_of
from neuralmark.core.key import PRIVATE, STREAM, TILED, Filter, Float, Parameters, watermark
from neuralmark.errors import AttackError
from neuralmark.keys.key import Key

FILTERS: tuple[Filter, ...] = (PRIVATE, TILED, STREAM)


@dataclass(frozen=True)
class ForgeIdentity(Attack):
    """K = identity, and a filter that fits its hash."""

    summary: ClassVar[str] = "use the identity as key, with a filter to fit its hash"
    expects: ClassVar[str] = "passes a private filter with 100 %; hashed filters stay near 50 %"
    kind: ClassVar[AttackKind] = KEY
    dial: ClassVar[str] = "bits"

    bits: int = option(256, "length of the forged watermark", low=1, high=4096)
    filter: Filter = option("private", "the filter that is attacked", choices=FILTERS)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """Every filter."""
        return tuple(cls(filter=each) for each in FILTERS)

    @property
    def variant(self) -> str:
        """The filter."""
        return f"{self.filter} filter"

    def run(self, scene: Scene) -> Outcome:
        """List the positions, if there is anything to list."""
        ground = ground_of(scene)
        identity = np.eye(self.bits, dtype=np.float32)
        if self.filter != PRIVATE:
            rounds = ground.parameters.rounds or 1
            hashed = Parameters(self.bits, self.bits, rounds, filter=cast(Filter, self.filter))
            key = Key.chosen(hashed, identity)
        else:
            signs = watermark(identity, b"").astype(np.int8) * 2 - 1
            chosen = schemes.parameters(
                "vanillamark", bits=self.bits, pools=self.bits, rounds=1, filter=PRIVATE
            )
            key = Key.chosen(chosen, identity, positions=_listed(ground.weights, signs))
        forged = ground_at(scene, ground.placement, key.parameters)
        figures = {"best_rate": forged.matched(key) / self.bits}
        return Outcome(key=key, queries=1, figures=figures, placement=ground.placement)


def _listed(weights: Float, signs: npt.NDArray[np.int8]) -> npt.NDArray[np.int64]:
    """Rising positions, one for each bit, whose weights have the wanted signs."""
    positions, at = [], 0
    for sign in signs:
        ahead = np.flatnonzero(weights[at : at + 4096] * sign > 0)
        if not len(ahead):
            raise AttackError("the tensors are too small, or too one-sided, to list a filter from")
        at += int(ahead[0]) + 1
        positions.append(at - 1)
    return np.array(positions, np.int64)
