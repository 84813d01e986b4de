"""Changing weights in directions that the network's inputs never take.

The inputs of a layer, over a few batches, often lie in a part of their space only. A change of the
weights in the rest is as large as one wants, and the function hardly notices. It cannot be undone
by aligning; how much room a layer leaves is what `figures` tells.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from neuralmark.attacks.contract import Array, Attack, Data, Need, Outcome, Scene, option
from neuralmark.attacks.engine.subject import require_finite, taking
from neuralmark.core.names import canonical_name
from neuralmark.errors import AttackError, NonFiniteError

if TYPE_CHECKING:
    import torch

Moments = npt.NDArray[np.float64]

_BATCH = 64


@dataclass(frozen=True)
class Nullspace(Attack):
    """Add noise to the marked layers where their inputs have (hardly) any component."""

    summary: ClassVar[str] = "change weights in directions that inputs never take"
    expects: ClassVar[str] = "a layer that leaves room loses the mark; mark layers that leave none"
    needs: ClassVar[frozenset[Need]] = frozenset({"model", "data"})
    dial: ClassVar[str] = "amount"

    amount: float = option(1.0, "norm of the change, in norms of the weights", low=0, high=1000)
    threshold: float = option(
        1e-3, "a direction is free below this share of the mean energy of all", low=0, high=1
    )
    examples: int = option(512, "examples whose activations are recorded", low=1)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """From what noise of this size would survive to what it would not."""
        return tuple(cls(amount) for amount in (0.25, 1.0, 4.0))

    def run(self, scene: Scene) -> Outcome:
        """Record, find what is free, change it."""
        assert scene.model is not None
        assert scene.data is not None
        names = _chosen(scene)
        require_finite(scene.weights, names, "the model")
        moments = record(scene.model, names, _some(scene.data, scene.rng, self.examples))
        changed: dict[str, Array] = {}
        free: list[float] = []
        felt: list[float] = []
        for name in names:
            by_input = _by_input(scene.model, name, scene.weights[name])
            basis, share = free_directions(moments[name], self.threshold)
            free.append(share)
            if not share:
                continue
            change = drawn(scene.rng, basis, len(by_input))
            change *= self.amount * np.linalg.norm(by_input) / np.linalg.norm(change)
            felt.append(_felt(by_input, change, moments[name]))
            shape = scene.weights[name].shape
            made = by_input + change
            value = made.T if _transposed(scene.model, name) else made.reshape(shape)
            changed[name] = np.ascontiguousarray(value, np.float32)
        full = sum(1 for share in free if not share)
        figures = {
            "free_share": float(np.mean(free)),
            "felt": float(np.max(felt)) if felt else 0.0,
            "layers": float(len(changed)),
        }
        note = f"{full} of {len(names)} layers leave no room" if full else ""
        return Outcome(changed, queries=self.examples, note=note, figures=figures)


def free_directions(moments: Moments, threshold: float) -> tuple[Moments, float]:
    """Directions with less than this share of the mean energy (columns), and their share.

    >>> basis, share = free_directions(np.diag([4.0, 0.0, 2.0, 2.0]), 1e-6)
    >>> share, np.abs(basis.T).round(3).tolist()
    (0.25, [[0.0, 1.0, 0.0, 0.0]])
    """
    energy, directions = np.linalg.eigh(moments)
    free = energy <= threshold * max(float(energy.mean()), 0.0)
    return np.asarray(directions[:, free], np.float64), float(free.mean())


def drawn(rng: np.random.Generator, basis: Moments, rows: int) -> Moments:
    """A random change of this many rows within the span of the basis."""
    change: Moments = rng.standard_normal((rows, basis.shape[1])) @ basis.T
    return change


def record(
    model: "torch.nn.Module", names: Sequence[str], inputs: "torch.Tensor"
) -> dict[str, Moments]:
    """Second moments of the inputs of each layer: patches of convolutions, rows of linear ones."""
    import torch

    sums: dict[str, Any] = {}
    hooks = []
    for name in names:
        layer = _layer(model, name)

        def listen(module: Any, given: Any, name: str = name) -> None:
            rows = _rows(module, given[0].detach()).double()
            sums[name] = sums.get(name, 0) + rows.T @ rows

        hooks.append(layer.register_forward_pre_hook(listen))
    was = model.training
    model.eval()
    try:
        with taking(inputs), torch.no_grad():
            for start in range(0, len(inputs), _BATCH):
                model(inputs[start : start + _BATCH])
    finally:
        model.train(was)
        for hook in hooks:
            hook.remove()
    silent = next((name for name in names if name not in sums), None)
    if silent is not None:
        raise AttackError(f"{silent!r} saw no input when the model ran: attack another tensor")
    found = {name: np.asarray(total.cpu().numpy(), np.float64) for name, total in sums.items()}
    wild = next((name for name, value in found.items() if not np.isfinite(value).all()), None)
    if wild is not None:
        raise NonFiniteError(
            f"the inputs of {wild!r} hold NaN or infinity: look at the data and the layers before"
        )
    return found


def _chosen(scene: Scene) -> list[str]:
    """The marked tensors among the targets, where they are known; else all that can be heard."""
    assert scene.model is not None
    marked = {name for name, _ in scene.placement}
    wanted = [name for name in scene.target if canonical_name(name) in marked]
    if wanted:
        for name in wanted:
            _layer(scene.model, name)
        return wanted
    found = [name for name in scene.target if _fits(scene.model, name)]
    if not found:
        raise AttackError(_NO_LAYER.format(scene.target[0] if scene.target else "the model"))
    return found


_NO_LAYER = (
    "{} is not a weight of a plain convolution or linear layer: the inputs that it sees cannot be"
    " recorded; attack another tensor"
)


def _fits(model: "torch.nn.Module", name: str) -> bool:
    import torch

    prefix, _, leaf = name.rpartition(".")
    try:
        layer: Any = model.get_submodule(prefix)
    except AttributeError:
        return False
    if leaf != "weight":
        return False
    if isinstance(layer, torch.nn.Conv2d):
        plain = layer.groups == 1 and layer.padding_mode == "zeros"
        return plain and not isinstance(layer.padding, str)
    return isinstance(layer, torch.nn.Linear) or type(layer).__name__ == "Conv1D"


def _layer(model: "torch.nn.Module", name: str) -> "torch.nn.Module":
    if not _fits(model, name):
        raise AttackError(_NO_LAYER.format(repr(name)))
    return model.get_submodule(name.rpartition(".")[0])


def _transposed(model: "torch.nn.Module", name: str) -> bool:
    """Whether the weight is stored [in, out], as transformers' Conv1D does."""
    return type(model.get_submodule(name.rpartition(".")[0])).__name__ == "Conv1D"


def _by_input(model: "torch.nn.Module", name: str, value: Array) -> Moments:
    """The weight as a matrix of outputs by inputs."""
    turned = value.T if _transposed(model, name) else value.reshape(len(value), -1)
    return turned.astype(np.float64)


def _rows(layer: Any, given: "torch.Tensor") -> "torch.Tensor":
    """What a layer's weight is multiplied with, one row each."""
    import torch

    if not isinstance(layer, torch.nn.Conv2d):
        return given.reshape(-1, given.shape[-1])
    assert not isinstance(layer.padding, str)  # see _fits
    patches = torch.nn.functional.unfold(
        given, layer.kernel_size, layer.dilation, layer.padding, layer.stride
    )
    return patches.transpose(1, 2).reshape(-1, patches.shape[1])


def _felt(weight: Moments, change: Moments, moments: Moments) -> float:
    """Change of the layer's outputs, relative to them, on the inputs recorded."""
    before = float(np.einsum("ij,jk,ik->", weight, moments, weight, optimize=True))
    after = float(np.einsum("ij,jk,ik->", change, moments, change, optimize=True))
    return float(np.sqrt(max(after, 0.0) / before)) if before > 0 else 0.0


def _some(data: Data, rng: np.random.Generator, count: int) -> "torch.Tensor":
    import torch

    chosen = rng.permutation(len(data.inputs))[:count]
    return data.inputs[torch.from_numpy(np.sort(chosen))]
