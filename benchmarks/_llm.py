"""Checkpoints shaped like small language models: float32 files of bfloat16 values.

Every matrix has a deviation of its own and rows and columns of different sizes, so that its
weights are a little heavy-tailed, as those of trained models are.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks._tensors import bfloat16, write_repeated

Array = npt.NDArray[np.float32]
Change = Callable[[Array, np.random.Generator], Array]

WIDTHS = ((300e6, 1536), (60e6, 1024), (5e6, 512), (0, 256))
"""Width of a model with at least this many weights."""
DEVIATIONS = {"q": 0.03, "k": 0.035, "v": 0.018, "o": 0.02, "gate": 0.022, "up": 0.02, "down": 0.02}
_LOUD, _TIMES = 0.004, 3.0
"""Share of the input columns that are loud, and how loud."""


@dataclass(frozen=True)
class Shape:
    """Width, inner width, layers and vocabulary of a model."""

    width: int
    inner: int
    layers: int
    words: int

    @classmethod
    def of(cls, weights: float) -> "Shape":
        """A model of about this many weights.

        >>> Shape.of(500e6).weights
        490784256
        """
        width = next(width for least, width in WIDTHS if weights >= least)
        inner, words = width * 8 // 3, 16 * width
        layer = 4 * width**2 + 3 * width * inner
        return cls(width, inner, max(1, round((weights - words * width) / layer)), words)

    @property
    def weights(self) -> int:
        """Weights of all tensors."""
        return sum(int(np.prod(shape)) for shape in self.tensors().values())

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name, as Llama has them; the output is tied to the embedding."""
        w, i = self.width, self.inner
        made: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.words, w)}
        for layer in range(self.layers):
            start = f"model.layers.{layer}."
            made |= {f"{start}self_attn.{name}_proj.weight": (w, w) for name in "qkvo"}
            made |= {f"{start}mlp.{name}_proj.weight": (i, w) for name in ("gate", "up")}
            made[f"{start}mlp.down_proj.weight"] = (w, i)
            made |= {f"{start}{name}_layernorm.weight": (w,) for name in ("input", "post")}
        return made | {"model.norm.weight": (w,)}


def upcast(values: Array) -> Array:
    """The nearest bfloat16 values, as float32."""
    bits = bfloat16(np.ascontiguousarray(values, np.float32))
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def steps(values: Array) -> Array:
    """The step of bfloat16 at each value.

    >>> steps(np.array([1.0, 1.5, 0.5], np.float32)).tolist()
    [0.0078125, 0.0078125, 0.00390625]
    """
    made: Array = np.ldexp(np.float32(1), np.frexp(values)[1] - 8).astype(np.float32)
    return made


def write(path: Path, shape: Shape, change: Change | None = None, *, seed: int = 0) -> None:
    """Write the model of this seed; with `change`, what that makes of every matrix.

    A changed model is the public base of the same seed after fine-tuning. One tensor at a time is
    in memory.
    """
    tensors = shape.tensors()
    table = {name: ("F32", each) for name, each in tensors.items()}
    blocks = {
        name: _block(name, each, [seed, number], change)
        for number, (name, each) in enumerate(tensors.items())
    }
    write_repeated(path, table, blocks)


def noise(share: float) -> Change:
    """Fine-tuning by independent steps: so much of the tensor's deviation."""

    def changed(w: Array, rng: np.random.Generator) -> Array:
        moved = rng.standard_normal(w.shape, dtype=np.float32) * np.float32(share * w.std())
        return upcast(w + moved)

    return changed


def adapter(share: float, rank: int = 16) -> Change:
    """A merged adapter of this rank: so much of the tensor's norm."""

    def changed(w: Array, rng: np.random.Generator) -> Array:
        left = rng.standard_normal((len(w), rank), dtype=np.float32)
        product = left @ rng.standard_normal((rank, w.shape[1]), dtype=np.float32)
        return upcast(w + product * np.float32(share * w.std() / np.sqrt(rank)))

    return changed


def _block(
    name: str, shape: tuple[int, ...], seed: list[int], change: Change | None
) -> Iterator[memoryview]:
    w = _values(name, shape, np.random.default_rng(seed))
    if change is not None and len(shape) > 1:
        w = change(w, np.random.default_rng([*seed, 1]))
    yield np.ascontiguousarray(w).data.cast("B")


def _values(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if len(shape) == 1:
        return upcast(1 + 0.1 * rng.standard_normal(shape, dtype=np.float32))
    kind = name.split(".")[-2].removesuffix("_proj")
    size = DEVIATIONS.get(kind, 0.02) * np.exp(0.15 * rng.standard_normal())
    rows = np.exp(0.2 * rng.standard_normal((shape[0], 1)))
    columns = np.exp(0.25 * rng.standard_normal((1, shape[1])))
    columns[rng.random(columns.shape) < _LOUD] *= _TIMES
    w = rng.standard_normal(shape, dtype=np.float32)
    w *= (size * rows).astype(np.float32)
    w *= columns.astype(np.float32)
    return upcast(w)
