"""Names and shapes of a model's tensors, and what a live module adds to them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neuralmark.core.names import canonical_name
from neuralmark.errors import UnknownFamilyError
from neuralmark.structures.structure import Norm, Side, Structure

if TYPE_CHECKING:
    import torch

STATISTICS = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True)
class Hints:
    """What only a live module (or the caller) knows: counts of heads, eps and gains of norms."""

    heads: int = 0
    eps: Mapping[str, float] = field(default_factory=dict)
    plus: float = 0.0
    """What is added to the stored gain of a norm (1 in Gemma)."""

    @classmethod
    def of(cls, module: "torch.nn.Module | None", heads: int) -> "Hints":
        """From a module, where there is one; a count that was given comes first."""
        if module is None:
            return cls(heads)
        config: Any = getattr(module, "config", None)
        found = heads or getattr(config, "num_attention_heads", 0) or 0
        eps = {
            canonical_name(f"{name}.eps"): float(part.eps)
            for name, part in module.named_modules()
            if isinstance(getattr(part, "eps", None), float)
        }
        gemma = str(getattr(config, "model_type", "")).startswith("gemma")
        return cls(int(found), eps, float(gemma))


@dataclass(frozen=True)
class Book:
    """Shapes by canonical name, and the stored name of each."""

    shapes: Mapping[str, tuple[int, ...]]
    stored: Mapping[str, str]
    same: Callable[[str, str], bool]
    """Whether two tensors (stored names) hold the same values."""

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]], same: Callable[[str, str], bool]) -> "Book":
        """From shapes by stored name; names that would collide keep their stored form."""
        counts = Counter(canonical_name(name) for name in shapes)
        stored = {}
        for name in shapes:
            plain = canonical_name(name)
            stored[plain if counts[plain] == 1 else name] = name
        return cls({n: shapes[s] for n, s in stored.items()}, stored, same)

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this canonical name."""
        return name in self.shapes

    def side(self, name: str, axis: int, block: int = 1, offset: int = 0) -> Side:
        """A side under the stored name."""
        return Side(self.stored[name], axis, block, offset)

    def equal(self, one: str, other: str) -> bool:
        """Whether two tensors hold the same values."""
        alike = self.shapes[one] == self.shapes[other]
        return alike and self.same(self.stored[one], self.stored[other])

    def norm(self, prefix: str, size: int, hints: Hints, *, direct: bool = True) -> Norm:
        """The batch norm of this prefix; an error if it has another size."""
        names = [f"{prefix}.{part}" for part in STATISTICS]
        if any(self.shapes.get(name) != (size,) for name in names):
            raise UnknownFamilyError(
                f"{prefix!r} is not a batch norm of {size} channels: the order of its layers is"
                " not the usual one, so the model cannot be rebuilt with the same function"
            )
        eps = hints.eps.get(f"{prefix}.eps", 1e-5)
        gamma, beta, mean, var = (self.stored[name] for name in names)
        return Norm(gamma, beta, mean, var, eps, direct)

    def maker(self, prefix: str, axis: int = 0, block: int = 1, offset: int = 0) -> list[Side]:
        """Weight and, where there is one, bias of a layer, by its outputs."""
        sides = [self.side(f"{prefix}.weight", axis, block, offset)]
        if self.has(f"{prefix}.bias"):
            sides.append(self.side(f"{prefix}.bias", 0, block, offset))
        return sides

    def require_all(self, structure: Structure, also: Iterable[str] = ()) -> Structure:
        """The structure, if it explains every tensor; `also` are those that never move."""
        known = {self.stored[name] for name in also if self.has(name)}
        for group in structure.groups:
            known |= group.tensors()
        left = [name for name, stored in self.stored.items() if stored not in known]
        if left:
            raise UnknownFamilyError(
                f"the names are those of {structure.family}, but {left[0]!r}"
                f"{f' and {len(left) - 1} more' if len(left) > 1 else ''} have no place in it, so"
                " the model cannot be rebuilt with the same function"
            )
        return structure

    def sample(self) -> str:
        """The first few names, for messages."""
        names = list(self.shapes)
        return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
