"""Fine-tuning on a task of the thief's own: the commonest thing that happens to a stolen model."""

from dataclasses import dataclass
from typing import ClassVar

from neuralmark.attacks.contract import Attack, Need, Outcome, Scene, option
from neuralmark.attacks.engine.training import (
    CLASSIFIERS,
    SCOPES,
    AttackCourse,
    Classifier,
    TuningScope,
    classifier_name,
    fit,
    ready,
    with_lora,
)
from neuralmark.core.names import canonical_name


@dataclass(frozen=True)
class Finetune(Attack):
    """Train on: the marked layers and the classifier, everything, or LoRA adapters."""

    summary: ClassVar[str] = "fine-tune on new data: marked layers, all, or merged LoRA"
    expects: ClassVar[str] = "100 % at the paper's learning rate of 0.001"
    needs: ClassVar[frozenset[Need]] = frozenset({"model", "data"})
    dial: ClassVar[str] = "rate"

    rate: float = option(0.001, "learning rate", low=0.0, high=100.0)
    epochs: int = option(2, "passes over the data", low=1, high=10_000)
    batch: int = option(64, "examples per step", low=1, high=65536)
    scope: TuningScope = option("all", "what is trained", choices=SCOPES)
    classifier: Classifier = option(
        "new", "a fresh classifier, or the model's own", choices=CLASSIFIERS
    )
    rank: int = option(8, "rank of the LoRA adapters", low=1, high=4096)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """The paper's: marked layers; all layers at three rates; and LoRA."""
        return (cls(scope="marked"), *(cls(rate) for rate in (0.001, 0.01, 0.1)), cls(scope="lora"))

    @property
    def variant(self) -> str:
        """What is trained."""
        return self.scope

    @property
    def keeps_task(self) -> bool:
        """Whether the old classifier still means something."""
        return self.classifier == "keep"

    def run(self, scene: Scene) -> Outcome:
        """Train a copy; adapters are merged afterwards."""
        model, data = ready(scene, self.classifier)
        course = AttackCourse(self.rate, self.epochs, self.batch)
        head = classifier_name(model)
        if self.scope == "lora":
            adapted = with_lora(model, self.rank, head)
            trained = [p for p in adapted.parameters() if p.requires_grad]
            steps = fit(adapted, data, course, trained, scene)
            return Outcome(model=adapted.merge_and_unload(), steps=steps)
        marked = {name for name, _ in scene.placement}
        marked = marked or {canonical_name(name) for name in scene.target}  # no key: as told
        parameters = [
            parameter
            for name, parameter in model.named_parameters()
            if self.scope == "all"
            or canonical_name(name) in marked
            or name.rpartition(".")[0] == head
        ]
        return Outcome(model=model, steps=fit(model, data, course, parameters, scene))
