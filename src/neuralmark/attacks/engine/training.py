"""Training as an attacker does it: a plain loop, a fresh classifier for a new task."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from neuralmark.attacks.contract import Data, Scene
from neuralmark.attacks.engine.subject import taking
from neuralmark.errors import AttackError, MissingExtraError
from neuralmark.storage.bookmark import Stage

if TYPE_CHECKING:
    import torch

TuningScope = Literal["marked", "all", "lora"]
SCOPES: tuple[TuningScope, ...] = get_args(TuningScope)
Classifier = Literal["new", "keep"]
CLASSIFIERS: tuple[Classifier, ...] = get_args(Classifier)


@dataclass(frozen=True)
class AttackCourse:
    """How to train: SGD with the paper's momentum and weight decay."""

    rate: float = 0.001
    epochs: int = 2
    batch: int = 64
    momentum: float = 0.9
    decay: float = 5e-4
    limit: int = 0
    """The most steps of a training that goes on after its epochs until it has had enough."""


def ready(scene: Scene, classifier: Classifier) -> "tuple[torch.nn.Module, Data]":
    """A copy of the attacker's model, with a fresh classifier if he has another task."""
    assert scene.model is not None
    assert scene.data is not None
    model = copy.deepcopy(scene.model)
    if classifier == "new":
        renew_classifier(model, scene.data.classes)
    return model, scene.data


def renew_classifier(model: "torch.nn.Module", classes: int) -> str:
    """Put a fresh linear layer in the place of the last one; give its name."""
    from torch import nn

    linear = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise AttackError('the model has no linear layer to replace: use classifier="keep"')
    name: str = linear[-1][0]
    old = linear[-1][1]
    fresh = nn.Linear(old.in_features, classes, bias=old.bias is not None)
    _put(model, name, fresh.to(old.weight))
    return name


def classifier_name(model: "torch.nn.Module") -> str:
    """The name of the last linear layer."""
    from torch import nn

    names = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    return names[-1] if names else ""


def fit(
    model: "torch.nn.Module",
    data: Data,
    course: AttackCourse,
    parameters: "Iterable[torch.nn.Parameter]",
    scene: Scene,
    attached: Callable[[Any], Sequence[Any]] = lambda optimizer: (),
    enough: Callable[[], bool] = lambda: True,
) -> int:
    """Train these parameters on the task; give the number of steps.

    `attached` attaches marks to the optimizer and gives them. With a limit on its steps, the
    training goes on after its epochs, one at a time, until there is `enough`. Where the scene has a
    bookmark, an interrupted training goes on from its last whole epoch.
    """
    import torch

    chosen = list(parameters)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in chosen:
        parameter.requires_grad_(True)
    optimizer = torch.optim.SGD(
        chosen, lr=course.rate, momentum=course.momentum, weight_decay=course.decay
    )
    stage = Stage(model, optimizer, attached(optimizer), scene.rng)
    epoch, steps = _resumed(stage, scene, course, data)
    model.train()
    total = max(course.limit, course.epochs * -(-len(data.inputs) // course.batch))
    while epoch < course.epochs or (steps < course.limit and not enough()):
        order = torch.from_numpy(scene.rng.permutation(len(data.inputs)))
        generator = torch.Generator()
        if data.augmented is not None:
            generator.manual_seed(int(scene.rng.integers(1 << 62)))
        for some in order.split(course.batch)[: total - steps]:
            loss = _loss(model, data, some, generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            scene.tell("training", steps, total)
        epoch += 1
        if scene.bookmark is not None:
            scene.bookmark.put({"epochs": epoch, "steps": steps, "stage": stage.state()})
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return steps


def _resumed(stage: Stage, scene: Scene, course: AttackCourse, data: Data) -> tuple[int, int]:
    """Epochs and steps that an interrupted training had done."""
    if scene.bookmark is None:
        return 0, 0
    kept = scene.bookmark.open(stage.origin(course, data.inputs, data.labels))
    if kept is None:
        return 0, 0
    stage.restore(kept["stage"])
    return kept["epochs"], kept["steps"]


def _loss(
    model: Any, data: Data, some: "torch.Tensor", generator: "torch.Generator"
) -> "torch.Tensor":
    from torch.nn.functional import cross_entropy

    with taking(data.inputs, data):
        given = data.augmented
        outputs = model(data.inputs[some] if given is None else given(some, generator))
        outputs = getattr(outputs, "logits", outputs)
        return cross_entropy(outputs, data.labels[some])


def with_lora(model: "torch.nn.Module", rank: int, head: str) -> Any:
    """The model under LoRA adapters on every linear and convolution layer but its head."""
    import neuralmark.torchvision_loading  # noqa: F401 - peft imports torchvision where it is installed

    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise MissingExtraError(
            "LoRA fine-tuning needs peft: pip install 'neuralmark[peft]'"
        ) from None
    from torch import nn

    kinds = (nn.Linear, nn.Conv2d)
    layers = (name for name, part in model.named_modules() if isinstance(part, kinds))
    targets = [name for name in layers if name != head]
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=targets,
        modules_to_save=[head] if head else None,
    )
    return get_peft_model(model, config)


def _put(model: "torch.nn.Module", name: str, part: "torch.nn.Module") -> None:
    path, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(path), leaf, part)
