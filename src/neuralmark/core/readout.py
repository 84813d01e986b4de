"""Pool, project, compare: written once for numpy arrays and torch tensors.

Every function takes arrays of one kind and returns the same kind. torch is never imported here;
the namespace comes from the array itself, so gradients flow through torch tensors.
"""

import sys
from typing import Any

Array = Any
"""A numpy array or a torch tensor; all arguments of one call are of the same kind."""


def namespace(array: Array) -> Any:
    """The module the array comes from: numpy or torch."""
    return sys.modules["torch" if type(array).__module__.startswith("torch") else "numpy"]


def pool(values: Array, pools: int, pooling: str = "strided") -> Array:
    """Means of the carriers' values, pool by pool; `values` holds P·k of them, in order."""
    if pooling == "strided":
        return values.reshape(-1, pools).mean(0)
    return values.reshape(pools, -1).mean(1)


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
    """‖p - mean(p)‖: what the logits of an unmarked tensor scatter by (one σz)."""
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
