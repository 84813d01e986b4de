"""Rounding weights to fewer bits, and back: what serving a stolen model begins with.

Everything is rounded to nearest. Integers are symmetric with one scale for each output channel
(the first dimension) or for each group of consecutive inputs. nf4 is the code book of QLoRA
(arXiv 2305.14314) with a scale for each block of 64. The GGUF types are those that the `gguf`
package can quantise; it cannot make K-quants. Their blocks run through the whole tensor, so that
kernels whose rows are not a whole number of blocks are quantised too (files keep those in fp16).
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar, NamedTuple

import numpy as np

from neuralmark.attacks.contract import Array, Attack, Outcome, Scene, option
from neuralmark.checkpoints.readers.dtypes import rounded
from neuralmark.errors import MissingExtraError, NeuralMarkWarning, ParameterError

FLOATS = {"fp16": "F16", "bf16": "BF16", "fp8-e4m3": "F8_E4M3", "fp8-e5m2": "F8_E5M2"}
INTEGERS = {"int8": 8, "int4": 4, "int3": 3, "int2": 2}


class Blocks(NamedTuple):
    """A GGUF type: weights in a block, and bytes that it takes."""

    block: int
    size: int


GGUF = {
    "q8_0": Blocks(32, 34),
    "q5_1": Blocks(32, 24),
    "q5_0": Blocks(32, 22),
    "q4_1": Blocks(32, 20),
    "q4_0": Blocks(32, 18),
    "mxfp4": Blocks(32, 17),
    "tq2_0": Blocks(256, 66),
    "tq1_0": Blocks(256, 54),
}
INSTALL = "need the gguf package: pip install 'neuralmark[gguf]'"
BITS = {
    **{"fp16": 16.0, "bf16": 16.0, "fp8-e4m3": 8.0, "fp8-e5m2": 8.0},
    **{name: float(bits) for name, bits in INTEGERS.items()},
    "nf4": 4.5,
    **{name: 8 * each.size / each.block for name, each in GGUF.items()},
}
"""Bits per weight, with the scales of blocks (those of integers' groups come on top)."""

NF4_BLOCK = 64
NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
"""Quantiles of the normal distribution, scaled to ±1, with an exact zero."""


@dataclass(frozen=True)
class Quantize(Attack):
    """Round every weight to a type of fewer bits."""

    summary: ClassVar[str] = "round the weights to fewer bits"
    expects: ClassVar[str] = "survives down to three bits; two break both mark and network"
    dial: ClassVar[str] = "to"

    to: str = option("int8", "type to round to", choices=tuple(BITS))
    group: int = option(
        128, "inputs that share a scale, for the int types (0: a whole output channel)", low=0
    )

    def __post_init__(self) -> None:
        """A group is a whole number of weights."""
        super().__post_init__()
        if not isinstance(self.group, int) or isinstance(self.group, bool):
            raise ParameterError(f"group must be a whole number of weights, not {self.group!r}")

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """Every type from 16 bits down, integers per channel and per group; GGUF if installed."""
        types = [cls(to) for to in BITS if to not in GGUF]
        types += [cls(to, group=0) for to in INTEGERS]
        if find_spec("gguf") is not None:
            types += [cls(to) for to in GGUF]
        else:
            warnings.warn(
                f"left out the GGUF types, which {INSTALL}", NeuralMarkWarning, stacklevel=2
            )
        return tuple(sorted(types, key=lambda each: -each.strength))

    @classmethod
    def unit(cls) -> str:
        """What the strength counts."""
        return "bits per weight"

    @property
    def strength(self) -> float:
        """Bits per weight; a group's scale has 32 bits, that of a whole channel is not counted."""
        grouped = self.to in INTEGERS and self.group > 0
        return BITS[self.to] + (32 / self.group if grouped else 0)

    @property
    def variant(self) -> str:
        """The type; for integers also what shares a scale."""
        if self.to not in INTEGERS:
            return self.to
        return f"{self.to}/{self.group or 'channel'}"

    def run(self, scene: Scene) -> Outcome:
        """Round tensor by tensor."""
        if self.to in GGUF and find_spec("gguf") is None:
            raise MissingExtraError(f"the GGUF types {INSTALL}")
        return Outcome({name: self._rounded(w) for name, w in scene.targets() if w.size})

    def _rounded(self, w: Array) -> Array:
        line, rows = w.reshape(1, -1), _rows(w)
        if self.to in FLOATS:
            done = _to_float(line, FLOATS[self.to])
        elif self.to in INTEGERS:
            bits, width = INTEGERS[self.to], rows.shape[1]
            width = min(self.group or width, width)
            done = _by_block(rows, width, lambda blocks: _to_integer(blocks, bits))
        elif self.to == "nf4":
            done = _by_block(line, NF4_BLOCK, _to_nf4)
        else:
            done = _by_block(line, GGUF[self.to].block, lambda blocks: _to_gguf(blocks, self.to))
        return done.reshape(w.shape)


def _rows(w: Array) -> Array:
    """One row for each output channel; a vector is one row."""
    return w.reshape(w.shape[0], -1) if w.ndim > 1 else w.reshape(1, -1)


def _by_block(rows: Array, width: int, code: Callable[[Array], Array]) -> Array:
    """Code each run of `width` weights of each row; the last one is filled up with zeros."""
    count, length = rows.shape
    padded = np.zeros((count, -(-length // width) * width), np.float32)
    padded[:, :length] = rows
    return code(padded.reshape(-1, width)).reshape(padded.shape)[:, :length]


def _scales(blocks: Array, top: float) -> Array:
    """What takes each block's largest magnitude to `top`; 1 for a block of zeros."""
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(top)
    return np.where(scales == 0, np.float32(1), scales)


def _to_integer(blocks: Array, bits: int) -> Array:
    top = 2 ** (bits - 1) - 1
    scales = _scales(blocks, top)
    levels: Array = np.clip(np.rint(blocks / scales), -top, top)
    return levels * scales


def _to_nf4(blocks: Array) -> Array:
    scales = _scales(blocks, 1)
    nearest: Array = NF4[np.searchsorted((NF4[1:] + NF4[:-1]) / 2, blocks / scales)]
    return nearest * scales


def _to_float(line: Array, dtype: str) -> Array:
    return rounded(line.reshape(-1).astype(np.float64), dtype).astype(np.float32)


def _to_gguf(blocks: Array, to: str) -> Array:
    from gguf import GGMLQuantizationType, quants

    kind = GGMLQuantizationType[to.upper()]
    return quants.dequantize(quants.quantize(blocks, kind), kind)
