"""Fitting a key matrix to a model that carries no mark (docs/method.md, section 2).

The proof of the published scheme takes K as random. A claimant may choose it: regress a K for which
the read-out of nearly every watermark b gives b itself, whatever carriers b selects; then the hash
of K, whatever it is, matches. Low bits of K are drawn anew until the hash is one that fits. The
verification of raw matrices is fooled at few rounds and many pools; a key that is derived from a
secret leaves no K to choose.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from neuralmark.attacks.contract import KEY, Attack, AttackKind, Outcome, Scene, option
from neuralmark.attacks.tools.forging import (
    AGAINST,
    Facing,
    Ground,
    balanced,
    best_drawn,
    ground_of,
    share_of_ones,
    summary,
)
from neuralmark.core.bound import boundary
from neuralmark.core.carriers import Carriers, Tiled
from neuralmark.core.key import POOLINGS, TILED, Float, Parameters, Pooling, watermark
from neuralmark.errors import AttackError
from neuralmark.keys.key import Key


@dataclass(frozen=True)
class ForgeFit(Attack):
    """Regress K on watermarks, then look for a hash that fits."""

    summary: ClassVar[str] = "fit a key matrix to the weights by regression"
    expects: ClassVar[str] = "passes the published check at R=1; native keys leave nothing to fit"
    kind: ClassVar[AttackKind] = KEY
    dial: ClassVar[str] = "pools"

    pools: int = option(512, "pools of the forged key", low=2, high=16384)
    rounds: int = option(1, "rounds of the filter", low=1, high=64)
    pooling: Pooling = option("contiguous", "how carriers are pooled", choices=POOLINGS)
    samples: int = option(0, "watermarks to regress on (0: as many as it takes)", low=0, high=10**6)
    tries: int = option(2000, "hashes of balanced weight to look at", low=1, high=10**7)
    against: Facing = option("published", "what the forger faces", choices=AGAINST)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """The quick case, and native keys."""
        return (cls(), cls(against="native", tries=200))

    @property
    def variant(self) -> str:
        """What the forger faces, and the parameters that he picked."""
        if self.against == "native":
            return "native"
        return f"{self.against}, R={self.rounds}, {self.pooling}"

    def run(self, scene: Scene) -> Outcome:
        """Fit and search; or draw as many honest keys, where there is nothing to fit."""
        ground = ground_of(scene)
        bits = ground.parameters.bits
        if self.against == "native":
            fitting = replace(ground, parameters=Parameters(bits, self.pools, self.rounds))
            key, counts = best_drawn(scene, fitting, self.tries)
            found = summary(counts, bits)
            return Outcome(key=key, queries=len(counts), figures=found, placement=ground.placement)
        matrix, mean = self._fitted(scene, ground, bits)
        key, best, queries = self._hashed(scene.rng, ground, matrix)
        return Outcome(
            key=key,
            queries=queries,
            steps=1,
            figures={"best_rate": best / bits, "mean_rate": mean},
            placement=ground.placement,
        )

    def _carriers(self, b: npt.NDArray[np.uint8], total: int) -> Carriers:
        carriers = Tiled.under(b, self.rounds, total, self.pools, self.pooling)
        if not carriers.per_pool:
            raise AttackError("too few weights for this many pools and rounds: use fewer of them")
        return carriers

    def _fitted(
        self, scene: Scene, ground: Ground, bits: int
    ) -> tuple[npt.NDArray[np.float32], float]:
        """Ridge regression of ±b on what is pooled under b; and how well it does on new ones."""
        count = self.samples or max(4 * self.pools, 5000 * self.rounds)
        marks = balanced(scene.rng, bits, count + 200)
        features = np.empty((len(marks), self.pools), np.float32)
        for i, b in enumerate(marks):
            features[i] = ground.pooled(self._carriers(b, len(ground.weights)))
            scene.tell("reading watermarks", i + 1, len(marks))
        scale = float(features.std()) or 1.0
        features /= scale
        signs = marks.astype(np.float32) * 2 - 1
        seen, new = slice(0, count), slice(count, None)
        gram = features[seen].T @ features[seen]
        gram[np.diag_indices(self.pools)] += 1e-3 * float(np.trace(gram)) / self.pools
        matrix = np.linalg.solve(gram, features[seen].T @ signs[seen]).astype(np.float32)
        right = np.sign(features[new] @ matrix) == signs[new]
        return matrix, float(right.mean())

    def _hashed(
        self, rng: np.random.Generator, ground: Ground, matrix: npt.NDArray[np.float32]
    ) -> tuple[Key, int, int]:
        """Draw low bits of K anew until its hash is balanced and passes."""
        bits = matrix.shape[1]
        parameters = Parameters(bits, self.pools, self.rounds, self.pooling, filter=TILED)
        needed, best, found, looked, queries = boundary(bits) or bits, -1, matrix, 0, 0
        while looked < self.tries and best < needed:
            queries += 1
            varied = matrix.copy()
            varied[0] *= np.asarray(1 + 1e-6 * rng.standard_normal(bits), np.float32)
            b = watermark(varied, b"")
            if int(b.sum()) != share_of_ones(bits):
                continue
            looked += 1
            pooled: Float = ground.pooled(self._carriers(b, len(ground.weights)))
            matched = int((((pooled @ varied) > 0) == b).sum())
            if matched > best:
                best, found = matched, varied
        return Key.chosen(parameters, found), best, queries
