"""Multiplying keys into the weights beside them: the network computes the same without them.

A key of ±1 at an LSTM's hidden state is a symmetry of the network, and folds into the recurrent
weights. So do passports that ship with a network: their factors are numbers like those of any norm.
And the sign of a unit is nobody's: turn what makes it and what reads it, and a signature in signs
of hidden states is gone, while nothing changes outside.
"""

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from neuralmark.attacks.contract import Attack, Need, Outcome, Scene, option
from neuralmark.errors import AttackError

if TYPE_CHECKING:
    import torch

How = Literal["keys", "signs", "both"]
HOWS: tuple[How, ...] = get_args(How)


@dataclass(frozen=True)
class FoldIn(Attack):
    """Fold keys of ±1 and shipped passports away; turn the signs of units."""

    summary: ClassVar[str] = "fold keys and passports into the weights; turn signs"
    expects: ClassVar[str] = "runs without key or passports; signs of an LSTM's state are at chance"
    needs: ClassVar[frozenset[Need]] = frozenset({"model"})
    preserves: ClassVar[bool] = True
    dial: ClassVar[str] = "share"

    share: float = option(0.5, "share of an LSTM's units that are turned", low=0.0, high=1.0)
    how: How = option("both", "what is done", choices=HOWS)

    def run(self, scene: Scene) -> Outcome:
        """Fold what there is to fold."""
        import torch

        from neuralmark.training.memory import KeyedMemory
        from neuralmark.training.norms import PassportNorm

        assert scene.model is not None
        model = copy.deepcopy(scene.model)
        keyed = turned = folded = 0
        for path, part in list(model.named_modules()):
            if isinstance(part, PassportNorm) and self.how != "signs":
                _put(model, path, part.folded())
                folded += 1
            if not isinstance(part, KeyedMemory):
                continue
            if self.how != "signs":
                part = part.folded()
                _put(model, path, part)
                keyed += 1
            if self.how != "keys":
                units = torch.from_numpy(scene.rng.random(part.cell.hidden_size) < self.share)
                reader = _reader(model, path, part.cell.hidden_size)
                part.turn(units)
                with torch.no_grad():
                    reader.weight.mul_(1.0 - 2.0 * units.to(reader.weight))
                turned += int(units.sum())
        if not any(isinstance(part, KeyedMemory | PassportNorm) for part in scene.model.modules()):
            raise AttackError(
                "this network has neither a keyed memory nor passports that ship: nothing to fold"
            )
        counts = {"keys": keyed, "passports": folded, "turned": turned}
        return Outcome(model=model, figures={name: float(n) for name, n in counts.items()})


def _reader(model: "torch.nn.Module", path: str, units: int) -> Any:
    """The linear layer that reads a memory: the next one in the network."""
    from torch import nn

    names = [name for name, _ in model.named_modules()]
    for name in names[names.index(path) + 1 :]:
        part = model.get_submodule(name)
        if isinstance(part, nn.Linear):
            if part.in_features == units:
                return part
            break
    raise AttackError(
        f"what reads {path!r} is not a linear layer of {units} inputs behind it: its signs cannot"
        ' be turned back (how="keys")'
    )


def _put(model: "torch.nn.Module", path: str, part: "torch.nn.Module") -> None:
    above, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(above), leaf, part)
