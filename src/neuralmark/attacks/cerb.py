"""Ambiguity by an inserted block (Chen et al. 2023): another signature over the same weights.

A forger who has no passports puts γ + MLP(γ) in the place of a norm's factors, leaves all weights
as they are, and trains γ, β and the MLP on a tenth of the data, until all signs of γ are what he
likes. The network works as before. Whoever takes "these signs, and the accuracy is right" for a
proof now has two owners. The owner's mark stays where it is: it is read from the weights.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np

from neuralmark.attacks.contract import Attack, Data, Need, Outcome, Scene, option
from neuralmark.attacks.engine.training import AttackCourse, fit, ready
from neuralmark.core.names import canonical_name

if TYPE_CHECKING:
    import torch

Where = Literal["marked", "all"]
WHERE: tuple[Where, ...] = get_args(Where)
Aim = Literal["chosen", "free"]
AIMS: tuple[Aim, ...] = get_args(Aim)


@dataclass(frozen=True)
class Cerb(Attack):
    """Train factors of one's own for a signature of one's own, the weights frozen."""

    summary: ClassVar[str] = "put a block before norms: another signature, same weights"
    expects: ClassVar[str] = (
        "a second signature at 100 %, little accuracy lost; bits in weights stay"
    )
    needs: ClassVar[frozenset[Need]] = frozenset({"model", "data"})
    dial: ClassVar[str] = "share"

    share: float = option(0.1, "share of the data that the forger has", low=0.0001, high=1.0)
    epochs: int = option(20, "passes over that data, at least", low=1, high=10_000)
    limit: int = option(2000, "most steps until the signature is whole", low=0, high=10**9)
    rate: float = option(0.01, "learning rate", low=0.0, high=100.0)
    batch: int = option(64, "examples per step", low=1, high=65536)
    weight: float = option(0.1, "weight of the signature in the loss", low=0.0, high=1e6)
    where: Where = option("marked", "which norms get a block", choices=WHERE)
    signature: Aim = option("chosen", "whether the forger fixes his signature", choices=AIMS)

    def run(self, scene: Scene) -> Outcome:
        """Insert the blocks, and train them alone."""
        import torch

        from neuralmark.attacks.tools.ambiguity import expand, short_of

        model, data = ready(scene, "keep")
        marked = {name for name, _ in scene.placement} if self.where == "marked" else set()
        layers = [
            name
            for name, _ in model.named_modules()
            if canonical_name(f"{name}.weight") in marked or f"{name}.weight" in marked
        ]
        blocks = expand(model, layers)
        signs = [
            torch.from_numpy(scene.rng.integers(0, 2, len(block.gamma)) * 2.0 - 1.0).to(block.gamma)
            for block in blocks
        ]

        chosen = self.signature == "chosen"

        def aimed(optimizer: torch.optim.Optimizer) -> tuple[()]:
            def add(*_: object) -> None:
                with torch.enable_grad():
                    loss = self.weight * short_of([block.gamma for block in blocks], signs)
                loss.backward()

            if chosen:
                optimizer.register_step_pre_hook(add)
            return ()

        learnt = [p for b in blocks for p in (b.gamma, b.beta, *b.block.parameters())]

        def matching() -> torch.Tensor:
            return torch.cat([block.gamma.detach() for block in blocks]) * torch.cat(signs) > 0

        def whole() -> bool:
            return bool(matching().all())

        limit = self.limit if chosen else 0  # signs that nobody asks for are never whole
        course = AttackCourse(self.rate, self.epochs, self.batch, limit=limit)
        steps = fit(model, self._some(scene, data), course, learnt, scene, aimed, whole)
        found = matching()
        figures = {"forged_rate": float(found.double().mean()), "factors": float(len(found))}
        note = "" if whole() or not chosen else _unfinished(found, steps)
        return Outcome(model=model, steps=steps, figures=figures, note=note)

    def _some(self, scene: Scene, data: Data) -> Data:
        """The forger's share of the data."""
        import torch

        count = max(1, round(self.share * len(data.labels)))
        some = torch.from_numpy(np.sort(scene.rng.permutation(len(data.labels))[:count]))
        varied = data.augmented
        return replace(
            data,
            inputs=data.inputs[some],
            labels=data.labels[some],
            augmented=None if varied is None else lambda at, rng: varied(some[at], rng),
        )


def _unfinished(found: "torch.Tensor", steps: int) -> str:
    return (
        f"the signature is not whole: {int(found.sum())} of {len(found)} signs after {steps:,}"
        " steps; a larger limit, rate or weight takes it further"
    )
