"""Learning a secret for a mark of one's own, the weights untouched.

Against VanillaMark, VoteMark, ST-DM and Feng's scheme this succeeds as it should: any bits, any
model, because whoever verifies must take the matrix he is shown. NeuralMark's bits are the hash of
the matrix, so every step of learning throws them again. A key that is derived from a secret leaves
nothing to learn.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from neuralmark import schemes
from neuralmark.attacks.contract import KEY, Attack, AttackKind, Outcome, Scene, option
from neuralmark.attacks.tools.forging import AGAINST, Facing, Ground, best_drawn, ground_of, summary
from neuralmark.core.key import NONE, PRIVATE, Float, Mark, Terms, watermark
from neuralmark.keys.key import Key


@dataclass(frozen=True)
class ForgeLearn(Attack):
    """Choose bits, then fit the matrix by gradient descent."""

    summary: ClassVar[str] = "learn a secret matrix for freely chosen bits"
    expects: ClassVar[str] = "a matrix of free choice: reaches 100 %; NeuralMark: stays near 50 %"
    kind: ClassVar[AttackKind] = KEY
    dial: ClassVar[str] = "steps"

    steps: int = option(200, "steps of gradient descent at most", low=1, high=1_000_000)
    margin: float = option(3.0, "logit that every bit is to reach", low=0.0, high=1000.0)
    against: Facing = option("published", "what the forger faces", choices=AGAINST)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """Against what is published, and against native keys."""
        return tuple(cls(against=against) for against in AGAINST)

    @property
    def variant(self) -> str:
        """What the forger faces."""
        return self.against

    def run(self, scene: Scene) -> Outcome:
        """Learn; or draw as many honest keys, where nothing can be learnt."""
        ground = ground_of(scene)
        if self.against == "native":
            key, counts = best_drawn(scene, ground, min(self.steps, 200))
            found = summary(counts, ground.parameters.bits)
            return Outcome(key=key, queries=len(counts), figures=found, placement=ground.placement)
        key, steps = self._learn(scene, ground)
        rate = ground.matched(key) / ground.parameters.bits
        return Outcome(
            key=key,
            steps=steps,
            queries=steps,
            figures={"best_rate": rate},
            placement=ground.placement,
        )

    def _learn(self, scene: Scene, ground: Ground) -> tuple[Key, int]:
        parameters = ground.parameters
        scheme = schemes.get(parameters.scheme)
        start = scheme.derive(scene.rng.bytes(32), Terms(parameters, ground.placement))
        bits = scene.rng.integers(0, 2, parameters.bits, np.uint8)
        if not len(start.matrix):  # no matrix at all: nothing to learn, only bits to choose
            return Key.chosen(parameters, start.matrix, bits=bits), 0
        aimed = Mark(parameters, start.matrix, bits, start.extra)
        pooled = ground.pooled(scheme.carriers(aimed, ground.placement))
        margin = min(self.margin, scheme.widest(parameters) / 4)
        begun = _in_reach(start.matrix, pooled, margin, scheme.widest(parameters))
        largest = min(4.0, scheme.widest(parameters) / 2)
        matrix, steps = _descend(begun, pooled, aimed.signs, (self.steps, margin, largest))
        if parameters.scheme == "neuralmark":
            return Key.chosen(parameters, matrix), steps
        positions = None
        if parameters.filter == PRIVATE or "filter" in aimed.extra:
            positions = scheme.carriers(aimed, ground.placement).positions()
        elif parameters.filter != NONE:
            bits = watermark(matrix, b"")  # a hashed filter makes the bits follow the matrix
        return Key.chosen(parameters, matrix, bits=bits, positions=positions), steps


def _in_reach(matrix: np.ndarray, pooled: Float, margin: float, widest: float) -> np.ndarray:
    """A matrix to begin with, whose numbers lie in the cells next to zero where there are cells."""
    if math.isinf(widest):
        return matrix
    largest = float(np.abs(pooled @ matrix).max())
    return matrix * np.float32(min(1.0, margin / max(largest, 1e-30)))


def _descend(
    matrix: np.ndarray, pooled: Float, signs: Float, course: tuple[int, float, float]
) -> tuple[np.ndarray, int]:
    """Gradient descent on the cross-entropy until every logit is right by the margin.

    `course` is the number of steps, the margin, and how far one step moves a logit at most.
    """
    steps, margin, largest = course
    learnt = matrix.astype(np.float64)
    rate = largest / max(float(pooled @ pooled), 1e-30)
    for step in range(steps):
        z = pooled @ learnt
        short = z * signs < margin
        if not short.any():
            return learnt.astype(np.float32), step
        learnt -= rate * np.outer(pooled, (np.tanh(0.5 * z) - signs) * 0.5 * short)
    return learnt.astype(np.float32), steps
