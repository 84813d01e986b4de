"""Choosing the order of equal-shaped tensors under an honest key (docs/method.md, section 2).

With K fixed, the logits are a sum over the places of a list, each place adding what the tensor put
there contributes. Which tensor goes where is a linear assignment problem: with a hundred tensors it
matches nearly every bit. Native keys derive K from the order itself, so every order is a new draw.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from neuralmark.attacks.contract import KEY, Attack, AttackKind, Outcome, Scene, option
from neuralmark.attacks.tools.forging import AGAINST, Facing, drawn, ground_at
from neuralmark.core.bound import boundary
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import STREAM, TILED, Filter, Float, Mark, Parameters, Placement
from neuralmark.core.names import canonical_name
from neuralmark.errors import AttackError
from neuralmark.keys.key import Key


@dataclass(frozen=True)
class ForgeOrder(Attack):
    """Put equal-shaped tensors into the order that fits a key."""

    summary: ClassVar[str] = "order equal-shaped tensors so that an honest key fits"
    expects: ClassVar[str] = "128 tensors pass for a raw key; a native key changes with the order"
    kind: ClassVar[AttackKind] = KEY
    dial: ClassVar[str] = "tensors"

    tensors: int = option(128, "equal-shaped tensors used at most", low=2, high=4096)
    rounds: int = option(4, "rounds of the filter", low=1, high=64)
    pools: int = option(512, "pools of the key", low=2, high=65536)
    sweeps: int = option(15, "times the assignment is solved again", low=1, high=10_000)
    keys: int = option(6, "honest keys tried", low=1, high=10_000)
    against: Facing = option("published", "what the forger faces", choices=AGAINST)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """Against a raw key, and against native ones."""
        return tuple(cls(against=against) for against in AGAINST)

    @property
    def variant(self) -> str:
        """What the forger faces."""
        return self.against

    def run(self, scene: Scene) -> Outcome:
        """Solve the assignment; for a native key every order it tries is a new draw."""
        bits = scene.parameters.bits if scene.parameters else 256
        usual: Filter = STREAM if self.against == "native" else TILED
        parameters = Parameters(bits, self.pools, self.rounds, filter=usual)
        placement = _equal_tensors(scene, self.tensors)
        best, found, order, tried = -1, None, placement, 0
        needed = boundary(bits) or bits
        for number in range(self.keys):
            scene.tell("ordering", number, self.keys)
            key = self._key(scene, parameters, placement)
            for candidate in self._orders(scene, key, placement):
                tried += 1
                matched = ground_at(scene, candidate, parameters).matched(key)
                if matched > best:
                    best, found, order = matched, key, candidate
                if best >= needed:
                    break
            if best >= needed:
                break
        figures = {"best_rate": best / bits, "tensors": float(len(placement))}
        note = f"{len(placement)} tensors of shape {placement[0][1]}"
        return Outcome(
            key=found, queries=tried, steps=tried, figures=figures, placement=order, note=note
        )

    def _key(self, scene: Scene, parameters: Parameters, placement: Placement) -> Key:
        """An honest key; as a raw one, its matrix stays when the order changes.

        Some leave no freedom (with half of the bits set every place looks alike), so several are
        tried.
        """
        honest = drawn(parameters, scene.rng)
        if self.against == "native":
            return honest
        return Key.chosen(parameters, honest.at(placement).matrix)

    def _orders(self, scene: Scene, key: Key, placement: Placement) -> Iterator[Placement]:
        """Assignments that fit better and better, bits that still miss weighing more."""
        from scipy.optimize import linear_sum_assignment

        mark = key.at(placement)
        parts = _contributions(scene, mark, placement)  # place x tensor x bit
        weight = np.ones(parts.shape[2])
        for _ in range(self.sweeps):
            gains = parts @ (weight * mark.signs)
            _, chosen = linear_sum_assignment(gains, maximize=True)
            yield tuple(placement[tensor] for tensor in chosen)
            margins = parts[np.arange(len(chosen)), chosen].sum(0) * mark.signs
            unit = float(np.abs(margins).mean()) or 1.0
            weight = weight * np.exp(-0.3 * np.clip(margins / unit, -2, 2))
            weight /= weight.mean()


def _equal_tensors(scene: Scene, most: int) -> Placement:
    """The largest family of tensors of one shape."""
    families: dict[tuple[int, ...], list[str]] = {}
    for name in scene.target:
        families.setdefault(scene.weights[name].shape, []).append(name)
    shape, names = max(families.items(), key=lambda item: (len(item[1]), np.prod(item[0])))
    if len(names) < 2:
        raise AttackError("this model has no two tensors of one shape: there is no order to choose")
    return tuple((canonical_name(name), shape) for name in names[:most])


def _contributions(scene: Scene, mark: Mark, placement: Placement) -> Float:
    """What each tensor would add to each logit at each place of the list."""
    size = int(np.prod(placement[0][1]))
    carriers = Carriers.of(mark, size * len(placement))
    if not carriers.per_pool:
        raise AttackError("too few weights for this key: use fewer rounds or pools")
    matrix = mark.matrix.astype(np.float64) / carriers.per_pool
    table = np.stack([ground_at(scene, (entry,), mark.parameters).weights for entry in placement])
    parts = np.empty((len(placement), len(placement), matrix.shape[1]))
    for place in range(len(placement)):
        first, at = carriers.between(place * size, (place + 1) * size)
        owner = carriers.pool_of(first, first + len(at))
        sums = np.zeros((len(placement), carriers.pools))
        for start in range(0, len(at), carriers.pools):  # within a stride no pool comes twice
            some = slice(start, start + carriers.pools)
            sums[:, owner[some]] += table[:, at[some]]
        parts[place] = sums @ matrix
    return parts
