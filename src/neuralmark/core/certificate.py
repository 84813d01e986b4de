"""Certified radius: the least change that could undo a verdict (docs/method.md, section 3)."""

import math

import numpy as np
import numpy.typing as npt

from neuralmark.core.key import Float


def largest_singular_value(matrix: npt.NDArray[np.float32]) -> float:
    """σ_max(K), from the smaller of the two Gram matrices."""
    wide = matrix.astype(np.float64)
    gram = wide @ wide.T if wide.shape[0] < wide.shape[1] else wide.T @ wide
    return math.sqrt(max(float(np.linalg.eigvalsh(gram)[-1]), 0.0))


def certified_radius(margins: Float, boundary: int, per_pool: int, steepest: float) -> float:
    """No change of the marked weights of smaller norm brings the matches below the boundary.

    An attacker must flip f = M - t + 1 matching bits; the cheapest f margins bound the change of
    the logits, `steepest` (σ_max of the read-out) the change of the pools, √P that of the
    weights. It holds even against someone who knows the key.
    """
    matching = np.sort(margins[margins > 0])
    to_flip = len(matching) - boundary + 1
    if to_flip <= 0:
        return 0.0
    cheapest = float(np.linalg.norm(matching[:to_flip]))
    return math.sqrt(per_pool) * cheapest / steepest
