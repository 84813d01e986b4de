"""Feng and Zhang 2020: binarised transform coefficients of a few keyed weights. A reconstruction.

Only the outline is published in what we could read: a key selects weights all over the network,
they go through an orthogonal transform, the bits are put into coefficients by binarisation, and
then only the weights without mark are trained on (compensation). What follows is ours. n·L
positions are drawn without replacement over the marked tensors and dealt out to n blocks of L in
random order; each weight gets a sign of a noise sequence; the block is transformed (DCT-II, or a
keyed orthogonal matrix). A bit has r coefficients of its block, each with a chip of ±1; writing
sets them to ±δ, with δ = strength times the root mean square of the coefficients, and leaves all
others. A bit is the sign of the chips' sum.

All of it is one matrix, so the read-out is linear and a radius can be certified. The bits are
hashed last, over everything that shapes the read-out.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from neuralmark.core.carriers import Carriers, Listed, Positions
from neuralmark.core.exact import Aim, ExactChange
from neuralmark.core.imprint import LeastChange
from neuralmark.core.key import (
    MAX_ENTRIES,
    MAX_POOLS,
    NONE,
    Filter,
    Float,
    Mark,
    Parameters,
    Placement,
    Terms,
    bell_matrix,
    check_secret,
    hashed_bits,
)
from neuralmark.errors import ParameterError, TooFewCarriersError
from neuralmark.schemes.contract import Arrays, Facts, Scheme, total_size

TRANSFORMS = ("dct", "haar")
LEAST_SHARE = 8
"""A bit takes at most this part of its block's coefficients, so that a mark stays small in it."""
MAX_BLOCK = 4096


class Feng(Scheme):
    """Coefficients of ±δ in blocks of weights that the key selects (reconstructed)."""

    facts: ClassVar[Facts] = Facts(
        origin="Feng and Zhang 2020",
        bit="the sum of r transform coefficients of a block of selected weights",
        needs="the weights",
        survives="half pruned by size, noise (just), quantisation, fine-tuning, a second mark,"
        " scaling; half pruned at random and rearranged channels with an anchor only; 90"
        " % pruned destroys it, eight second marks may",
        costs="files in seconds; moves few weights by much (bits x block of them); compensation"
        " trains the loss back",
        proves="nothing as published: positions and bits are free; with a derived key the exact"
        " bound, and a certified radius",
        reconstruction=True,
    )
    theory: ClassVar[str] = (
        "none as published: with seed and bits of one's own choice, positions can be picked whose"
        " coefficients have the wanted signs; a key that derives all of them and hashes the bits"
        " last matches a foreign model like fair coins"
    )
    pooled: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, Any]] = {"block": 16, "coefficients": 1, "transform": "dct"}

    def parameters(
        self,
        bits: int | None = None,
        pools: int | None = None,
        rounds: int | None = None,
        filter: Filter | None = None,  # noqa: A002 - the name it has everywhere
        own: Mapping[str, Any] | None = None,
    ) -> Parameters:
        """As every scheme's; every selected weight is a pool of its own.

        Args:
            bits: Length of the watermark.
            pools: Not to be given: it is bits x block.
            rounds: Not to be given: there is no filter.
            filter: `none`, if at all.
            own: `block` (L), `coefficients` (r) and `transform`.

        Returns:
            What `Key.new` takes.

        Raises:
            ParameterError: The scheme cannot work with these values.

        Examples:
            >>> neuralmark.schemes.get("feng").parameters(bits=64).pools
            1024
        """
        if pools or rounds:
            raise ParameterError("feng takes neither pools nor rounds: give the setting 'block'")
        bits = 256 if bits is None else bits
        chosen: Filter = NONE if filter is None else filter
        self._check_filter(chosen)
        settings = {**self.settings, **(own or {})}
        block = settings["block"]
        _check_block(block)
        if type(bits) is int and bits * block > MAX_POOLS:
            raise ParameterError(
                f"{bits} bits in blocks of {block} are {bits * block:,} weights, above the cap of"
                f" {MAX_POOLS:,}: use fewer bits, or smaller blocks"
            )
        made = Parameters(
            bits, bits * block, 0, "strided", self.name, chosen, tuple(sorted(settings.items()))
        )
        self.check(made)
        return made

    def check(self, parameters: Parameters) -> None:
        """Block and coefficients within reason, and a transform that there is."""
        super().check(parameters)
        block, count = parameters.setting("block"), parameters.setting("coefficients")
        most = block // LEAST_SHARE
        if type(count) is not int or not 1 <= count <= most:
            raise ParameterError(
                f"coefficients must be a whole number from 1 to {most} for blocks of {block}, not"
                f" {count!r}"
            )
        if parameters.bits * parameters.pools * count > MAX_ENTRIES:
            raise ParameterError(
                f"{parameters.bits} bits in blocks of {block} are too many: use fewer bits, or"
                " smaller blocks"
            )
        if parameters.setting("transform") not in TRANSFORMS:
            raise ParameterError(
                f"transform must be {' or '.join(TRANSFORMS)}, not"
                f" {parameters.setting('transform')!r}"
            )

    def _check_sizes(self, parameters: Parameters) -> None:
        block = dict(parameters.own).get("block")
        _check_block(block)
        if parameters.rounds or parameters.pools != parameters.bits * int(block or 0):
            raise ParameterError("feng has bits x block pools and no rounds: leave them out")

    def derive(self, secret: bytes, terms: Terms) -> Mark:
        """Positions, order, signs, coefficients and chips from the secret; the bits last."""
        check_secret(secret)
        parameters = terms.parameters
        total, count = total_size(terms.placement), parameters.pools
        _require_weights(total, parameters, terms.placement)

        def stream(what: bytes, size: int) -> bytes:
            seed = terms.transcript(b"neuralmark/feng/" + what + b"/1", secret)
            return hashlib.shake_256(seed).digest(size)

        positions = selected(stream(b"positions", 16 * count), total, count)
        blocks = _order(stream(b"order", 8 * count)).reshape(parameters.bits, -1)
        signs = _signs(stream(b"noise", count)).reshape(blocks.shape)
        waves = _waves(parameters, stream, signs)
        bits = hashed_bits(terms.transcript(b"neuralmark/feng/bits/1", secret), parameters.bits)
        extra: Arrays = {"filter": positions, "blocks": blocks, "waves": waves}
        return Mark(parameters, _matrix(blocks, waves), bits, extra)

    def chosen(self, arrays: Arrays, terms: Terms) -> Mark:
        """The maker's matrix, bits and positions."""
        self.check_chosen(terms.parameters, arrays)
        return super().chosen(arrays, terms)

    def check_chosen(self, parameters: Parameters, arrays: Arrays) -> None:
        """A position for each weight, and a row of the matrix."""
        super().check_chosen(parameters, arrays)
        pools, bits = parameters.pools, parameters.bits
        if "filter" not in arrays:
            raise ParameterError(
                f"a raw key of feng needs the positions of its weights: {pools:,} whole numbers,"
                " as the array positions beside K"
            )
        if arrays["matrix"].shape != (pools, bits) or len(arrays["filter"]) != pools:
            raise ParameterError(
                f"a raw key of feng has {pools:,} positions and a matrix of {pools:,} x {bits}"
            )

    def carriers(self, mark: Mark, placement: Placement) -> Carriers:
        """The selected weights, each a pool of its own."""
        total = total_size(placement)
        _require_weights(total, mark.parameters, placement)
        return Listed.at(mark.extra["filter"], total, len(mark.matrix))

    def room(self, parameters: Parameters, placement: Placement) -> float:
        """One weight for each pool, if there are enough."""
        return min(total_size(placement) / parameters.pools, 1.0)

    def spreads(self, parameters: Parameters) -> bool:
        """The more tensors, the sparser the selected weights lie."""
        return True

    def strongest(self, parameters: Parameters) -> float:
        """Coefficients of ±δ have at most the mean square of the block: r · strength² < L."""
        return math.sqrt(parameters.setting("block") / parameters.setting("coefficients"))

    def solver(self, mark: Mark, effort: Float | float = 1.0) -> LeastChange:
        """Every coefficient of the mark to ±δ."""
        return ExactChange(mark, _Coefficients.of(mark), effort)


@dataclass(frozen=True, eq=False)
class _Coefficients(Aim):
    """The coefficients of a mark, turned by their chips: each belongs at ±δ."""

    @classmethod
    def of(cls, mark: Mark) -> "_Coefficients":
        blocks, waves = mark.extra["blocks"], mark.extra["waves"].astype(np.float64)
        bits, count, _ = waves.shape
        basis = np.zeros((len(mark.matrix), bits, count))
        basis[blocks[:, None], np.arange(bits)[:, None, None], np.arange(count)[:, None]] = waves
        scaled = basis.reshape(len(basis), -1) * math.sqrt(len(basis))
        return cls(scaled, mark.signs, math.inf)

    def margins(self, numbers: Float) -> Float:
        each = numbers.reshape(len(self.signs), -1)
        summed: Float = each.sum(1) * self.signs / math.sqrt(each.shape[1])
        return summed

    def targets(self, numbers: Float, goal: float) -> Float:
        return np.repeat(goal * self.signs, len(numbers) // len(self.signs))


def selected(stream: bytes, total: int, count: int) -> Positions:
    """Distinct positions below `total`, rising: Floyd's way, with one draw of 128 bits for each.

    >>> selected(bytes(range(48)), 10, 3).tolist()
    [0, 1, 2]
    """
    words = np.frombuffer(stream, "<u8").reshape(count, 2).tolist()
    found: set[int] = set()
    for last, (low, high) in enumerate(words, start=total - count):
        drawn = (high << 64 | low) % (last + 1)
        found.add(last if drawn in found else drawn)
    return np.array(sorted(found), np.int64)


def dct(size: int) -> Float:
    """The orthonormal DCT-II; row k is the k-th cosine."""
    row = np.arange(size)
    waves = np.cos(np.pi * (2 * row + 1) * row[:, None] / (2 * size)) * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    made: Float = waves
    return made


def haar(seed: bytes, size: int) -> Float:
    """A keyed orthogonal matrix: Gaussian rows made orthonormal one after the other."""
    q, r = np.linalg.qr(bell_matrix(seed, size, size).astype(np.float64).T)
    turned: Float = (q * np.sign(np.diag(r))).T
    return turned


def _waves(parameters: Parameters, stream: Any, signs: Float) -> npt.NDArray[np.float32]:
    """What each weight of a block adds to each coefficient of its bit: bits x r x L."""
    bits, count = parameters.bits, parameters.setting("coefficients")
    block = parameters.setting("block")
    if parameters.setting("transform") == "dct":
        transform = dct(block)
    else:
        transform = haar(stream(b"transform", 32), block)
    keys = np.frombuffer(stream(b"coefficients", 8 * bits * block), "<u8").reshape(bits, block)
    chosen = np.argsort(keys, axis=1, kind="stable")[:, :count]
    chips = _signs(stream(b"chips", bits * count)).reshape(bits, count)
    waves: npt.NDArray[np.float32] = (
        transform[chosen] * chips[:, :, None] * signs[:, None, :]
    ).astype(np.float32)
    return waves


def _matrix(blocks: Positions, waves: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """All of it as one matrix, scaled so that unmarked logits spread as those of other schemes."""
    bits, count, _ = waves.shape
    matrix = np.zeros((blocks.size, bits), np.float32)
    summed = waves.sum(1, dtype=np.float64) * math.sqrt(blocks.size / count)
    matrix[blocks, np.arange(bits)[:, None]] = summed
    return matrix


def _order(stream: bytes) -> Positions:
    return np.argsort(np.frombuffer(stream, "<u8"), kind="stable").astype(np.int64)


def _signs(stream: bytes) -> Float:
    return 1.0 - 2.0 * (np.frombuffer(stream, np.uint8) & 1).astype(np.float64)


def _check_block(block: object) -> None:
    if type(block) is not int or not LEAST_SHARE <= block <= MAX_BLOCK:
        raise ParameterError(
            f"block must be a whole number from {LEAST_SHARE} to {MAX_BLOCK}, not {block!r}"
        )


def _require_weights(total: int, parameters: Parameters, placement: Placement) -> None:
    if total < parameters.pools:
        raise TooFewCarriersError(
            f"{placement[0][0]!r} and the rest have {total:,} weights, and feng needs"
            f" {parameters.pools:,} ({parameters.bits} blocks of {parameters.setting('block')}):"
            " name more tensors, or make a key with smaller blocks"
        )
