"""GreedyMark (Liu et al. 2021): the signs of greedy residuals of a layer.

There is no secret matrix. A layer is pooled to n rows of 253 values; in each row the half with the
smallest absolute values is set to zero, and the sign of the row's mean is the bit. The mark is the
hash of the owner's signature. Here the signature (Ed25519) is over the identity text, the
parameters and the tensors, so that none of them can be chosen afterwards; it is kept with the mark,
and so is the public key, and both can be checked later (`check_signature`).
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from neuralmark.core.carriers import Carriers
from neuralmark.core.key import (
    Mark,
    Parameters,
    Placement,
    Terms,
    check_secret,
    hashed_bits,
)
from neuralmark.core.readout import Array, Known, namespace
from neuralmark.errors import ParameterError, TooFewCarriersError
from neuralmark.schemes.contract import Arrays, Facts, Scheme, total_size

MARGIN = 0.1
SHARE = 0.01
"""The published weight of the sum over the bits, at a strength of 1."""


class GreedyMark(Scheme):
    """Greedy residuals against the hash of a signature."""

    facts: ClassVar[Facts] = Facts(
        origin="Liu et al. 2021",
        bit="the mean of the larger half of a row of weights",
        needs="the weights",
        survives="at strength 100 (at 1 a short training does not bring it in): pruning, noise,"
        " fine-tuning, second marks, scaling; rearranged channels lose it: a trained"
        " mark has no anchor",
        costs="training only, the dearest of all; a tensor of bits x row weights",
        proves="the exact bound: the mark is the hash of a signature over owner and tensors;"
        " no certified radius",
    )
    theory: ClassVar[str] = (
        "the mark is the hash of a signature that fixes owner and tensors, so it matches a foreign"
        " model like fair coins; a mark of one's own choice proves nothing"
    )
    linear: ClassVar[bool] = False
    writes: ClassVar[bool] = False
    plain: ClassVar[bool] = False
    pooled: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, Any]] = {"divider": 2, "row": 253}

    def check(self, parameters: Parameters) -> None:
        """Rows and divider within reason."""
        super().check(parameters)
        row, divider = parameters.setting("row"), parameters.setting("divider")
        if type(row) is not int or not 2 <= row <= 1 << 16:
            raise ParameterError(f"row must be a whole number from 2 to 65536, not {row!r}")
        if type(divider) is not int or not 2 <= divider <= row:
            raise ParameterError(f"divider must be a whole number from 2 to {row}, not {divider!r}")

    def derive(self, secret: bytes, terms: Terms) -> Mark:
        """Sign everything that shapes the read-out; the bits are the hash of the signature."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        check_secret(secret)
        parameters = terms.parameters
        signer = Ed25519PrivateKey.from_private_bytes(secret)
        signature = signer.sign(_statement(terms))
        public = signer.public_key().public_bytes_raw()
        bits = hashed_bits(signature, parameters.bits)
        extra = {
            "sizes": _sizes(terms.placement),
            "signature": np.frombuffer(signature, np.uint8),
            "public": np.frombuffer(public, np.uint8),
        }
        return Mark(parameters, _no_matrix(parameters), bits, extra)

    def chosen(self, arrays: Arrays, terms: Terms) -> Mark:
        """Bits of somebody's own choice, without a signature."""
        bits = arrays["bits"].astype(np.uint8)
        sizes = {"sizes": _sizes(terms.placement)}
        return Mark(terms.parameters, _no_matrix(terms.parameters), bits, sizes)

    def carriers(self, mark: Mark, placement: Placement) -> Carriers:
        """Every weight by itself: which ones count is decided by their values."""
        needed = mark.parameters.bits * mark.parameters.setting("row")
        for name, shape in placement:
            if total_size(((name, shape),)) < needed:
                raise TooFewCarriersError(
                    f"{name!r} has fewer than the {needed:,} weights that greedymark needs for"
                    f" {mark.parameters.bits} rows of {mark.parameters.setting('row')}: name a"
                    " larger tensor, or make a key with a smaller row"
                )
        return Carriers.everything(total_size(placement), total_size(placement))

    def room(self, parameters: Parameters, placement: Placement) -> float:
        """Weights for each of the n rows' values, in the smallest tensor."""
        needed: int = parameters.bits * parameters.setting("row")
        return min(total_size((entry,)) for entry in placement) / needed

    def logits(self, known: Known, pooled: Array) -> Array:
        """The residual of every row."""
        bits, row = len(known.bits), known.settings["row"]
        sizes = [int(size) for size in known.extra["sizes"].tolist()]
        parts, start = [], 0
        for size in sizes:
            layer = pooled[start : start + size // row * row]
            parts.append(_averaged(layer, bits * row).reshape(bits, row))
            start += size
        rows = sum(parts[1:], parts[0]) / len(parts)
        return (rows * _kept(rows, row // known.settings["divider"])).mean(1)

    def loss(self, known: Known, pooled: Array, step: int = 0) -> Array:
        """0.01 times the sum of what every residual lacks of the margin 0.1."""
        short = MARGIN - known.signs * self.logits(known, pooled)
        return SHARE * short.clip(min=0).sum()


def check_signature(mark: Mark, placement: Placement, content: bytes, anchor: bytes = b"") -> bool:
    """Whether the mark is the hash of a valid signature over all that it stands for."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if "signature" not in mark.extra:
        return False
    terms = Terms(mark.parameters, placement, content, anchor)
    signature = mark.extra["signature"].tobytes()
    public = Ed25519PublicKey.from_public_bytes(mark.extra["public"].tobytes())
    try:
        public.verify(signature, _statement(terms))
    except InvalidSignature:
        return False
    return bool((hashed_bits(signature, len(mark.bits)) == mark.bits).all())


def _statement(terms: Terms) -> bytes:
    return terms.transcript(b"neuralmark/greedymark/2")


def _sizes(placement: Placement) -> Any:
    return np.array([total_size((entry,)) for entry in placement], np.int64)


def _no_matrix(parameters: Parameters) -> Any:
    return np.zeros((0, parameters.bits), np.float32)


def _averaged(layer: Array, count: int) -> Array:
    """Adaptive average pooling of a row of values to `count` values."""
    xp = namespace(layer)
    if xp.__name__ == "torch":
        return xp.nn.functional.adaptive_avg_pool1d(layer[None, None], count)[0, 0]
    size = len(layer)
    at = np.arange(count, dtype=np.int64)
    low, high = at * size // count, -(-(at + 1) * size // count)
    sums = np.concatenate([[0.0], np.cumsum(layer, dtype=np.float64)])
    return (sums[high] - sums[low]) / (high - low)


def _kept(rows: Array, zeroed: int) -> Array:
    """1 for the values that stay, 0 for the `zeroed` smallest of each row."""
    xp = namespace(rows)
    values = rows.detach() if xp.__name__ == "torch" else rows
    order = abs(values).argsort(1)
    keep = xp.ones_like(values)
    if xp.__name__ == "torch":
        return keep.scatter_(1, order[:, :zeroed], 0.0)
    np.put_along_axis(keep, order[:, :zeroed], 0.0, 1)
    return keep
