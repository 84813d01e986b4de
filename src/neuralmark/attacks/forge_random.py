"""Trying keys: the only thing left to a forger who can choose nothing.

The paper tries 10. Every try matches each bit like a fair coin, so the best of N tries has a known
mean, which is reported beside what was found.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from neuralmark.attacks.contract import KEY, Attack, AttackKind, Outcome, Scene, option
from neuralmark.attacks.tools.forging import best_drawn, ground_of, summary


@dataclass(frozen=True)
class ForgeRandom(Attack):
    """Draw keys and keep the best."""

    summary: ClassVar[str] = "try random keys, and keep the best"
    expects: ClassVar[str] = "the best of N matches as well as the best of N coin-flippers"
    kind: ClassVar[AttackKind] = KEY
    dial: ClassVar[str] = "tries"

    tries: int = option(10, "keys tried", low=1, high=10_000_000)
    pools: int = option(0, "pools of the tried keys (0: those of the owner's)", low=0, high=65536)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """As the paper, and a hundred times as many."""
        return (cls(10), cls(100), cls(1000))

    def run(self, scene: Scene) -> Outcome:
        """Draw, read, compare."""
        ground = ground_of(scene)
        if self.pools and ground.parameters.scheme == "neuralmark":
            ground = replace(ground, parameters=replace(ground.parameters, pools=self.pools))
        key, counts = best_drawn(scene, ground, self.tries)
        figures = summary(counts, ground.parameters.bits)
        return Outcome(key=key, queries=self.tries, figures=figures, placement=ground.placement)
