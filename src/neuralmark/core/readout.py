"""Pool, project, compare: written once for numpy arrays and torch tensors.

Every function takes arrays of one kind and returns the same kind. torch is never imported here;
the namespace comes from the array itself, so gradients flow through torch tensors.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuralmark.core.key import Mark, Pooling

Array = Any
"""A numpy array or a torch tensor; all arguments of one call are of the same kind."""


@dataclass(frozen=True, eq=False)
class Known:
    """What a read-out knows of a mark, as arrays of the kind that it works on."""

    matrix: Array = field(repr=False)
    bits: Array = field(repr=False)
    signs: Array = field(repr=False)
    extra: Mapping[str, Array] = field(default_factory=dict, repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, mark: Mark, like: Array = None) -> "Known":
        """In numpy's float64; or on the device and in the precision of the tensor `like`."""
        if like is None:
            matrix, bits = mark.matrix.astype(np.float64), mark.bits.astype(np.float64)
            return cls(matrix, bits, mark.signs, mark.extra, mark.parameters.to_dict())
        torch = namespace(like)

        def turned(array: Any) -> Any:
            tensor = torch.from_numpy(np.array(array))
            return tensor.to(like) if tensor.is_floating_point() else tensor.to(like.device)

        return cls(
            turned(mark.matrix),
            turned(mark.bits.astype(np.float32)),
            turned(mark.signs),
            extra={name: turned(array) for name, array in mark.extra.items()},
            settings=mark.parameters.to_dict(),
        )


def namespace(array: Array) -> Any:
    """The module the array comes from: numpy or torch."""
    return sys.modules["torch" if type(array).__module__.startswith("torch") else "numpy"]


def pool(values: Array, pools: int, pooling: Pooling = "strided") -> Array:
    """Means of the carriers' values, pool by pool; `values` holds P·k of them, in order."""
    if pooling == "strided":
        return values.reshape(-1, pools).mean(0)
    return values.reshape(pools, -1).mean(1)


def pool_of(index: Array, pools: int, per_pool: int, pooling: Pooling = "strided") -> Array:
    """Pool of each carrier, by its index; `pool` takes the means over just these."""
    return index % pools if pooling == "strided" else index // per_pool


def logits(pooled: Array, matrix: Array) -> Array:
    """Logits z = pooled @ K; bit j is read as 1 where z_j > 0."""
    return pooled @ matrix


def margins(z: Array, signs: Array) -> Array:
    """Signed distance of each logit from its boundary: positive where the bit matches."""
    return z * signs


def matches(z: Array, signs: Array) -> Array:
    """Where the bit matches. A zero logit never does, or a zeroed tensor would match every 0."""
    return margins(z, signs) > 0


def scatter_unit(pooled: Array) -> Array:
    """‖p - mean(p)‖: the spread of an unmarked tensor's logits (one σz)."""
    centred = pooled - pooled.mean()
    return (centred * centred).sum() ** 0.5


def loss(z: Array, bits: Array) -> Array:
    """Mean binary cross-entropy of sigmoid(z) against the watermark."""
    xp = namespace(z)
    return (z.clip(min=0) - z * bits + xp.log1p(xp.exp(-abs(z)))).mean()


def loss_gradient(z: Array, signs: Array, matrix: Array, per_pool: int) -> Array:
    """∂loss/∂w at a carrier of each pool: k numbers, the same for all P carriers of a pool.

    sigmoid(z) - b is (tanh(z/2) - s)/2 with s = ±1 for b.
    """
    return matrix @ ((namespace(z).tanh(0.5 * z) - signs) * (0.5 / (len(signs) * per_pool)))
