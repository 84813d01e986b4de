"""Learning a secret for a mark of one's own, the weights untouched.

Against VanillaMark, VoteMark, ST-DM, Feng's scheme and passports this succeeds as it should: any
bits, any model, because whoever verifies must take the matrix he is shown. NeuralMark's bits are
the hash of the matrix, and trapdoor normalisation's that of the passports, so every step of
learning throws them again. A key that is derived from a secret leaves nothing to learn.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from neuralmark import schemes
from neuralmark.attacks.contract import KEY, Attack, AttackKind, Outcome, Scene, option
from neuralmark.attacks.tools.forging import AGAINST, Facing, Ground, best_drawn, ground_of, summary
from neuralmark.core.key import NONE, PRIVATE, Float, Mark, Terms, watermark
from neuralmark.core.readout import Known
from neuralmark.keys.key import Key

_PACE = 0.1
"""Of a step, in deviations of the secret."""


@dataclass(frozen=True)
class ForgeLearn(Attack):
    """Choose bits, then fit the matrix by gradient descent."""

    summary: ClassVar[str] = "learn a secret matrix for freely chosen bits"
    expects: ClassVar[str] = "a secret of free choice: 100 %; where bits are its hash: near 50 %"
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
        if len(start.matrix) != len(pooled):  # passports: the secret is no projection of the pools
            matrix, steps = _by_loss(scheme, aimed, pooled, self.steps)
            return Key.chosen(parameters, matrix, bits=bits), steps
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


def _by_loss(
    scheme: schemes.Scheme, aimed: Mark, pooled: Float, steps: int
) -> tuple[np.ndarray, int]:
    """Gradient descent on the scheme's own loss until every bit matches."""
    import torch

    given = torch.from_numpy(pooled).float()
    known = Known.of(aimed, given)
    learnt = known.matrix.clone().requires_grad_()
    optimizer = torch.optim.Adam([learnt], _PACE * float(learnt.detach().std()))
    for step in range(steps):
        tried = replace(known, matrix=learnt)
        with torch.no_grad():
            if (scheme.logits(tried, given) * known.signs > 0).all():
                return learnt.detach().numpy(), step
        optimizer.zero_grad()
        scheme.loss(tried, given).backward()
        optimizer.step()
    return learnt.detach().numpy(), steps


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
