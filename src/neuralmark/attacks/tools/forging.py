"""What forgers share: where they look, how a published verification reads, and honest draws."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from neuralmark import schemes
from neuralmark.attacks.contract import Scene, Weights
from neuralmark.checkpoints.readers.memory import MemoryCheckpoint
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import SECRET_BYTES, Float, Mark, Parameters, Placement
from neuralmark.core.names import canonical_name
from neuralmark.core.readout import Known, pool
from neuralmark.errors import AttackError
from neuralmark.keys.key import Key
from neuralmark.marking.placement import auto, catalogue, placement_of

Facing = Literal["published", "native"]
AGAINST: tuple[Facing, ...] = get_args(Facing)
"""What the forger faces: a verification that takes any matrix, or keys derived from a secret."""


@dataclass(frozen=True, eq=False)
class Ground:
    """The weights that a forger works on: those of the owner's mark, or where one would lie."""

    placement: Placement
    parameters: Parameters
    weights: Float

    def read(self, mark: Mark) -> npt.NDArray[np.bool_]:
        """Which bits of a mark match here."""
        scheme = schemes.of(mark)
        pooled = self.pooled(scheme.carriers(mark, self.placement))
        known = Known.of(mark)
        matching: npt.NDArray[np.bool_] = scheme.logits(known, pooled) * known.signs > 0
        return matching

    def pooled(self, carriers: Carriers) -> Float:
        """Means of the carriers, pool by pool."""
        chosen = self.weights[carriers.positions()]
        return np.asarray(pool(chosen, carriers.pools, carriers.pooling))

    def matched(self, key: Key) -> int:
        """Bits of a key that match here."""
        return int(self.read(key.at(self.placement)).sum())


def ground_of(scene: Scene) -> Ground:
    """The marked tensors as the paper's attacker knows them; else those that `auto` takes."""
    parameters = scene.parameters or Parameters()
    placement = scene.placement
    if not placement:
        known = catalogue(MemoryCheckpoint(chosen_weights(scene)))
        placement = placement_of(auto(known, parameters).tensors)
    if not placement:
        raise AttackError("no tensor of this model could carry a mark: nothing to forge on")
    return ground_at(scene, placement, parameters)


def chosen_weights(scene: Scene) -> Weights:
    """The tensors that were named to be attacked, or all that could be."""
    return {name: scene.weights[name] for name in scene.target} or scene.weights


def ground_at(scene: Scene, placement: Placement, parameters: Parameters) -> Ground:
    """These tensors, laid end to end."""
    stored = {canonical_name(name): value for name, value in scene.weights.items()}
    stored.update(scene.weights)
    parts = [stored[name].reshape(-1) for name, _ in placement]
    return Ground(placement, parameters, np.concatenate(parts).astype(np.float64))


def drawn(parameters: Parameters, rng: np.random.Generator, content: bytes = b"") -> Key:
    """A native key from the attack's own randomness alone, so that runs can be repeated."""
    secret = rng.bytes(SECRET_BYTES)
    return Key(parameters, content, salt=hashlib.sha256(secret).digest(), secret=secret)


def best_drawn(scene: Scene, ground: Ground, tries: int) -> tuple[Key, npt.NDArray[np.int64]]:
    """The best of this many honest keys, and how many bits each of them matched."""
    best, most, counts = None, -1, np.zeros(tries, np.int64)
    for i in range(tries):
        key = drawn(ground.parameters, scene.rng)
        counts[i] = ground.matched(key)
        if counts[i] > most:
            best, most = key, int(counts[i])
        scene.tell("trying keys", i + 1, tries)
    assert best is not None
    return best, counts


def expected_best(bits: int, tries: int) -> float:
    """The mean of the best of this many keys, when every bit is a fair coin.

    >>> round(expected_best(256, 1)), round(expected_best(256, 10))
    (128, 140)
    """
    below, total = 0, 0.0
    for matched in range(bits):
        below += math.comb(bits, matched)
        share = below / (1 << bits)  # P(a key matches at most this many)
        total += 1.0 - share**tries
    return total


def share_of_ones(bits: int) -> int:
    """The most likely weight of a hashed watermark."""
    return bits // 2


def balanced(rng: np.random.Generator, bits: int, count: int) -> npt.NDArray[np.uint8]:
    """Random watermarks with exactly half of their bits set."""
    rows = np.zeros((count, bits), np.uint8)
    rows[:, : share_of_ones(bits)] = 1
    permuted: npt.NDArray[np.uint8] = rng.permuted(rows, axis=1)
    return permuted


def summary(counts: Sequence[int] | npt.NDArray[np.int64], bits: int) -> dict[str, float]:
    """Best and mean rate of many tries, and the best to expect of as many fair draws."""
    counts = np.asarray(counts)
    return {
        "best_rate": float(counts.max() / bits),
        "mean_rate": float(counts.mean() / bits),
        "expected_best_rate": expected_best(bits, len(counts)) / bits,
    }
