"""LoRA adapters: what adapter_config.json says, and W + scale·B·A in blocks of rows.

The product is computed in whole numbers of so few bits that sums are exact: every machine reads the
same values, whatever its linear algebra.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from neuralmark.checkpoints.contract import Checkpoint
from neuralmark.checkpoints.readers.blocks import (
    BLOCK_ELEMENTS,
    ComputedBlocks,
    Kept,
    Numbers,
    Values,
)
from neuralmark.checkpoints.readers.dtypes import decode
from neuralmark.errors import MalformedError, UnreadableError
from neuralmark.storage import places
from neuralmark.storage.places import Place

MAX_CONFIG = 1 << 20
MAX_PATTERNS = 10_000
_MERGED_FIRST = "merge it with PEFT (merge_and_unload), save that, and give it"
_INITS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Ways to begin an adapter that leave the base as it was."""
_REFUSED = (
    *("layer_replication", "alora_invocation_tokens", "arrow_config", "target_parameters"),
    *("use_qalora", "use_bdlora", "kasa_config", "monteclora_config"),
)
"""Kinds of LoRA whose merge is another."""
_PIECES = re.compile(r"\\d\+|\[0-9\]\+|\.\*|\.\+|\\\.|\.|\((?:[\w|.]|\\\.)+\)|[\w-]+")
_MOST_DIGITS = 20


@dataclass(frozen=True)
class LoraConfig:
    """What an adapter's configuration says of its merge."""

    alpha: float
    rooted: bool = False
    """Whether the scale is alpha/√rank (rslora), not alpha/rank."""
    turned: bool = False
    """Whether square weights are stored [in, out] (fan_in_fan_out)."""
    patterns: Mapping[str, float] = field(default_factory=dict)
    """Other alphas for some modules."""
    base: str = ""
    """What it was trained on, as the file says."""

    def scale(self, module: str, rank: int) -> float:
        """What B·A is multiplied with."""
        alpha = next(
            (value for pattern, value in self.patterns.items() if names(pattern, module)),
            self.alpha,
        )
        return alpha / (math.sqrt(rank) if self.rooted else rank)


def base_name(path: Place) -> str:
    """What an adapter was trained on, as its configuration says; nothing where it says nothing."""
    told = _read(path).get("base_model_name_or_path")
    return told[:200] if isinstance(told, str) and told.isprintable() else ""


def config_of(path: Place) -> LoraConfig:
    """What adapter_config.json says; raises where no merge follows from it."""
    told = _read(path)
    kind = told.get("peft_type")
    if kind != "LORA":
        raise UnreadableError(
            f"{path}: adapters of the kind {kind!r:.40} are not merged here: {_MERGED_FIRST}"
        )
    for name in _REFUSED:
        if told.get(name):
            raise UnreadableError(f"{path}: {name} is not merged here: {_MERGED_FIRST}")
    if told.get("init_lora_weights") not in _INITS:
        raise UnreadableError(
            f"{path}: the adapter was begun by changing its base"
            f" ({told.get('init_lora_weights')!r:.40}): {_MERGED_FIRST}"
        )
    patterns = told.get("alpha_pattern") or {}
    if not isinstance(patterns, dict) or len(patterns) > MAX_PATTERNS:
        raise MalformedError(f"{path}: its alpha_pattern is not a table")
    return LoraConfig(
        _number(path, "lora_alpha", told.get("lora_alpha")),
        bool(told.get("use_rslora")),
        bool(told.get("fan_in_fan_out")),
        {_pattern(path, key): _number(path, key, value) for key, value in patterns.items()},
        base_name(path),
    )


def _read(path: Place) -> dict[str, Any]:
    data = places.read_small(path, MAX_CONFIG)
    try:
        if len(data) > MAX_CONFIG:
            raise ValueError("too long")
        told = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise MalformedError(f"{path}: is not valid JSON") from None
    if not isinstance(told, dict):
        raise MalformedError(f"{path}: is not a configuration")
    return told


def _number(path: Place, name: str, value: Any) -> float:
    sound = isinstance(value, int | float) and not isinstance(value, bool)
    if not sound or not abs(value) < 1e9:
        raise MalformedError(f"{path}: {name[:80]!r} is not a number in the range of an alpha")
    return float(value)


def _pattern(path: Place, pattern: str) -> str:
    if _PIECES.sub("", pattern.removeprefix("^").removesuffix("$")):
        raise UnreadableError(
            f"{path}: the alpha_pattern {pattern[:80]!r} is too involved: {_MERGED_FIRST}"
        )
    return pattern


def names(pattern: str, module: str) -> bool:
    r"""Whether a pattern names a module, or its last parts, as PEFT matches them.

    Never slow, whatever the pattern: the places it may have reached are followed, not tried.

    >>> names("q_proj", "model.layers.3.q_proj"), names(r"layers\.\d+\.k_proj", "layers.12.k_proj")
    (True, True)
    >>> names("proj", "model.layers.3.q_proj")
    False
    """
    starts = {0} | {i + 1 for i, letter in enumerate(module) if letter == "."}
    at = {0} if pattern.startswith("^") else starts
    for piece in _PIECES.findall(pattern.removeprefix("^").removesuffix("$")):
        at = _after(piece, module, at)
    return len(module) in at


def _after(piece: str, text: str, at: set[int]) -> set[int]:
    """Where a piece of a pattern may end that begins at one of these places."""
    if piece in (r"\d+", "[0-9]+"):
        return {
            end
            for start in at
            for end in range(start + 1, min(start + _MOST_DIGITS, len(text)) + 1)
            if text[start:end].isdigit()
        }
    if piece in (".*", ".+"):
        return (
            set(range(min(at) + len(piece) - len(piece.rstrip("+")), len(text) + 1)) if at else at
        )
    if piece == ".":
        return {start + 1 for start in at if start < len(text)}
    words = piece.replace("\\", "").strip("()").split("|")
    return {start + len(w) for start in at for w in words if text.startswith(w, start)}


@dataclass(frozen=True)
class Factors:
    """The tensors of an adapter for one of the base's."""

    adapter: Checkpoint
    down: str
    """A, [rank, in]."""
    up: str
    """B, [out, rank]."""
    scale: float
    turned: bool
    """Whether the base's tensor is the product's transpose."""
    magnitude: str | None = None
    """DoRA: how long each output's row is to be."""


class MergedBlocks(ComputedBlocks):
    """A tensor of the base, and what an adapter adds to it."""

    def __init__(self, base: Checkpoint, name: str, factors: Factors, kept: Kept) -> None:
        """The base's first axis counts as rows."""
        shape = base.info(name).shape
        super().__init__(shape[0], math.prod(shape[1:]), base.span(name).nbytes)
        self._base, self._name, self._factors, self._kept = base, name, factors, kept
        rank = factors.adapter.info(factors.down).shape[0]
        self._bits = (52 - max(1, math.ceil(math.log2(rank + 1)))) // 2

    def block(self, top: int, below: int, left: int, right: int) -> Values:
        """In float64, rounded once."""
        if self._factors.magnitude is None:
            return self._sum(top, below, left, right).astype(np.float32)
        if self._factors.turned:
            values = self._sum(top, below, left, right) * self._lengths()[left:right]
        else:
            rows = self._sum(top, below, 0, self.length)
            factor = self._magnitudes()[top:below] / _norms(rows, 1)
            values = rows[:, left:right] * factor.astype(np.float32)[:, np.newaxis]
        return values.astype(np.float32)

    def _sum(self, top: int, below: int, left: int, right: int) -> npt.NDArray[np.float64]:
        product = self._product(top, below, left, right)
        product *= self._factors.scale
        product += self._rows(top, below, left, right)
        return product

    def _product(self, top: int, below: int, left: int, right: int) -> npt.NDArray[np.float64]:
        adapter, down, up = self._factors.adapter, self._factors.down, self._factors.up
        rank = adapter.info(down).shape[0]
        a = whole(adapter, down, self._kept).reshape(rank, -1)
        b = whole(adapter, up, self._kept).reshape(-1, rank)
        if self._factors.turned:
            a, b = b.T, a.T
        one, steps = _fixed(b[top:below], self._bits, 1)
        two, others = _fixed(a[:, left:right], self._bits, 0)
        found: npt.NDArray[np.float64] = one @ two
        found *= steps
        found *= others
        return found

    def _rows(self, top: int, below: int, left: int, right: int) -> Numbers:
        base, name, length = self._base, self._name, self.length
        if not base.in_order(name):
            return whole(base, name, self._kept).reshape(-1, length)[top:below, left:right]
        dtype = base.info(name).dtype
        if below - top == 1:
            run = base.read_run(name, top * length + left, top * length + right)
            return decode(run, dtype).reshape(1, -1)
        run = base.read_run(name, top * length, below * length)
        return decode(run, dtype).reshape(-1, length)[:, left:right]

    def _magnitudes(self) -> Numbers:
        assert self._factors.magnitude is not None
        return whole(self._factors.adapter, self._factors.magnitude, self._kept)

    def _lengths(self) -> Numbers:
        """What each column is multiplied with, of weights that are stored turned."""
        return self._kept.get((self._name, "lengths"), self._measured)

    def _measured(self) -> Numbers:
        squares = np.zeros(self.length)
        many = max(1, BLOCK_ELEMENTS // self.length)
        for top in range(0, self.rows, many):
            rows = self._sum(top, min(top + many, self.rows), 0, self.length)
            squares += np.square(rows).sum(0)
        return (self._magnitudes() / np.sqrt(squares)).astype(np.float32)


def whole(checkpoint: Checkpoint, name: str, kept: Kept) -> Values:
    """All values of a tensor, kept for the next who asks."""
    dtype = checkpoint.info(name).dtype

    def read() -> Numbers:
        pieces = [decode(piece, dtype).astype(np.float32) for piece in checkpoint.read(name)]
        return np.concatenate(pieces) if pieces else np.empty(0, np.float32)

    return kept.get((str(checkpoint.path), name), read)


def _fixed(
    values: Numbers, bits: int, axis: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Whole numbers of so many bits, and the step of each row or column: a power of two."""
    wide = values.astype(np.float64)
    largest = np.abs(wide).max(axis, keepdims=True)
    steps = np.ldexp(1.0, np.frexp(largest)[1] - bits)
    return np.rint(wide / steps), steps


def _norms(rows: npt.NDArray[np.float64], axis: int) -> npt.NDArray[np.float64]:
    lengths: npt.NDArray[np.float64] = np.sqrt(np.square(rows).sum(axis))
    return lengths
