"""Training another mark over the owner's: the paper's attack, and what it leaves out.

The attacker knows the scheme, its parameters and the layer, not the key. He trains his task and
λ times the embedding loss of a key of his own. Adaptive: many keys at once, another scheme, or a
single round of the filter, which touches the most weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast, get_args

from neuralmark import schemes
from neuralmark.attacks.contract import Attack, Need, Outcome, Scene, option
from neuralmark.attacks.engine.training import CLASSIFIERS, AttackCourse, Classifier, fit, ready
from neuralmark.attacks.tools.forging import drawn
from neuralmark.core.key import Parameters
from neuralmark.errors import AttackError, NonFiniteError
from neuralmark.marking.options import Mode

WritingMode = Literal["gradient", "projection"]
MODES: tuple[WritingMode, ...] = get_args(WritingMode)


@dataclass(frozen=True)
class Overwrite(Attack):
    """Train one's own mark into the owner's layer."""

    summary: ClassVar[str] = "train marks of one's own over the owner's"
    expects: ClassVar[str] = "NeuralMark stays at 100 % up to λ=1000 at η=0.001; others fall"
    needs: ClassVar[frozenset[Need]] = frozenset({"model", "data"})
    dial: ClassVar[str] = "weight"

    weight: float = option(1.0, "λ: weight of the attacker's mark (σz when projected)", low=0.0)
    rate: float = option(0.001, "η: learning rate", low=0.0, high=100.0)
    epochs: int = option(2, "passes over the data", low=1, high=10_000)
    batch: int = option(64, "examples per step", low=1, high=65536)
    keys: int = option(1, "keys written at once", low=1, high=256)
    scheme: str = option("", "the attacker's scheme (empty: the owner's)")
    rounds: int = option(0, "rounds of the attacker's filter (0: the owner's)", low=0, high=64)
    mode: WritingMode = option("gradient", "how the marks are written", choices=MODES)
    classifier: Classifier = option(
        "new", "a fresh classifier, or the model's own", choices=CLASSIFIERS
    )
    limit: int = option(
        0,
        "go on after the passes until the attacker's marks are whole, up to this many steps in all"
        " (0: only the passes)",
        low=0,
        high=100_000_000,
    )

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """The paper's λ and η; then many keys, one round, another scheme, projection."""
        weights = tuple(cls(weight) for weight in (1.0, 10.0, 50.0, 100.0, 1000.0))
        rates = tuple(cls(rate=rate) for rate in (0.005, 0.01, 0.1, 1.0))
        other = cls(100.0, scheme="vanillamark")
        return (*weights, *rates, cls(100.0, keys=8), other, cls(16.0, mode="projection"))

    @property
    def variant(self) -> str:
        """What is unusual about it."""
        words = [f"η={self.rate:g}"] if self.rate != 0.001 else []
        words += [self.mode] if self.mode != "gradient" else []
        words += [f"{self.keys} keys"] if self.keys > 1 else []
        words += [self.scheme] if self.scheme else []
        words += [f"R={self.rounds}"] if self.rounds else []
        return ", ".join(words)

    @property
    def keeps_task(self) -> bool:
        """Whether the old classifier still means something."""
        return self.classifier == "keep"

    def run(self, scene: Scene) -> Outcome:
        """Train the task and the attacker's own marks."""
        from neuralmark.marking.options import AttachOptions
        from neuralmark.training.attach import attach

        model, data = ready(scene, self.classifier)
        keys = [drawn(own_parameters(scene, self), scene.rng) for _ in range(self.keys)]
        tensors: Any = [name for name, _ in scene.placement] or "auto"
        marks: list[Any] = []

        def begin(optimizer: Any) -> list[Any]:
            for key in keys:
                strength = max(self.weight, 1e-30)
                given = attach(
                    model,
                    optimizer,
                    key,
                    options=AttachOptions(
                        tensors=tensors, mode=cast(Mode, self.mode), strength=strength
                    ),
                )
                marks.append(given)
            return marks

        course = AttackCourse(self.rate, self.epochs, self.batch, limit=self.limit)
        steps = fit(model, data, course, model.parameters(), scene, begin, lambda: _whole(marks))
        rates = _rates(marks)
        for mark in marks:
            mark.detach()
        return Outcome(
            model=model,
            key=keys[0],
            placement=marks[0].placement,
            steps=steps,
            figures={"attacker_rate": sum(rates) / len(rates)} if rates else {},
        )


def _whole(marks: Sequence[Any]) -> bool:
    """Whether all of the attacker's bits are written, or never will be (the model broke)."""
    return all(rate == 1 for rate in _rates(marks))


def _rates(marks: Sequence[Any]) -> list[float]:
    """How well the attacker's own marks are read; nothing where he drove the model to NaN."""
    try:
        return [mark.rate for mark in marks]
    except NonFiniteError:
        return []


def own_parameters(scene: Scene, attack: Any) -> Parameters:
    """The parameters of the attacker's keys: the owner's, but for what he wants otherwise."""
    owners = scene.parameters or Parameters()
    name = attack.scheme or owners.scheme
    if not schemes.get(name).marks:
        raise AttackError(f"{name} writes no mark: choose another scheme to overwrite with")
    if name != owners.scheme:
        return schemes.parameters(name, bits=owners.bits, rounds=attack.rounds or None)
    if not attack.rounds:
        return owners
    if not owners.rounds:
        raise AttackError(f"{name} has no filter whose rounds could be chosen: leave rounds at 0")
    return replace(owners, rounds=attack.rounds)
