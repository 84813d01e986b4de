"""Training a fresh network of the same architecture to answer as the marked one does.

The student never sees the weights, only the answers: no mark in weights can pass. It costs the
attacker queries, data, and some of the accuracy.
"""

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from neuralmark.attacks.contract import Attack, Data, Need, Outcome, Scene, option
from neuralmark.attacks.engine.subject import taking

if TYPE_CHECKING:
    import torch

_EXAMPLES = 512


@dataclass(frozen=True)
class Distill(Attack):
    """Train a student from fresh weights on the teacher's answers."""

    summary: ClassVar[str] = "train a fresh network on the answers of the marked one"
    expects: ClassVar[str] = "the mark is gone: white-box marks do not survive distillation"
    needs: ClassVar[frozenset[Need]] = frozenset({"model", "data"})
    dial: ClassVar[str] = "steps"

    steps: int = option(300, "steps of training", low=1)
    lr: float = option(1e-3, "learning rate of Adam", low=0)
    temperature: float = option(2.0, "temperature of the teacher's answers", low=0.01, high=100)
    batch: int = option(128, "examples per step", low=2)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """One run: the mark is gone after any number of steps."""
        return (cls(),)

    def run(self, scene: Scene) -> Outcome:
        """Make a student, teach it, say how often it agrees with the teacher."""
        import torch

        assert scene.model is not None
        assert scene.data is not None
        teacher = copy.deepcopy(scene.model).eval()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(scene.rng.integers(2**31)))
            student = fresh(teacher)
            seen = self._teach(teacher, student, scene)
        figures = {"agreement": _agreement(teacher, student, scene.data)}
        return Outcome(model=student.eval(), steps=self.steps, queries=seen, figures=figures)

    def _teach(self, teacher: "torch.nn.Module", student: "torch.nn.Module", scene: Scene) -> int:
        """Train; the number of answers that the teacher gave."""
        import torch

        assert scene.data is not None
        data = scene.data
        optimizer = torch.optim.Adam(student.parameters(), lr=self.lr)
        student.train()
        seen = 0
        for step in range(self.steps):
            chosen = torch.randint(0, len(data.inputs), (self.batch,))
            given = data.inputs[chosen]
            with torch.no_grad():
                wanted = _answers(teacher, given)
            optimizer.zero_grad()
            divergence(_answers(student, given), wanted, self.temperature).backward()
            optimizer.step()
            seen += len(given)
            scene.tell("distilling", step + 1, self.steps)
        return seen


def fresh(model: "torch.nn.Module") -> "torch.nn.Module":
    """The same architecture with weights that owe nothing to the model's.

    Modules draw their own (`reset_parameters`); what others hold is drawn anew at the same scale,
    gains become one, biases zero.
    """
    import torch

    made = copy.deepcopy(model)
    with torch.no_grad():
        for module in made.modules():
            reset: Any = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
                continue
            for name, value in module.named_parameters(recurse=False):
                _redraw(name, value)
    for value in made.parameters():
        value.requires_grad_(True)
    return made


def _redraw(name: str, value: "torch.Tensor") -> None:
    if value.ndim >= 2:
        value.normal_(0, float(value.std()) if value.numel() > 1 else 1.0)
    else:
        value.fill_(0.0 if "bias" in name else 1.0)


def divergence(
    answers: "torch.Tensor", wanted: "torch.Tensor", temperature: float
) -> "torch.Tensor":
    """Kullback-Leibler divergence of the softened answers, at the scale of plain ones."""
    import torch

    width = answers.shape[-1]
    return (
        torch.nn.functional.kl_div(
            torch.log_softmax(answers.reshape(-1, width) / temperature, -1),
            torch.log_softmax(wanted.reshape(-1, width) / temperature, -1),
            reduction="batchmean",
            log_target=True,
        )
        * temperature**2
    )


def _answers(model: "torch.nn.Module", inputs: "torch.Tensor") -> "torch.Tensor":
    with taking(inputs):
        made: Any = model(inputs)
    answers: torch.Tensor = getattr(made, "logits", made)
    return answers


def _agreement(teacher: "torch.nn.Module", student: "torch.nn.Module", data: Data) -> float:
    """Share of test examples on which both answer the same."""
    import torch

    given = data.test_inputs[:_EXAMPLES]
    student.eval()
    with torch.no_grad():
        one, two = (_answers(model, given).argmax(-1) for model in (teacher, student))
    return float((one == two).double().mean())
