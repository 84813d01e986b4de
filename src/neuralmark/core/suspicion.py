"""Labels that nobody could choose, and the chance of a model giving them by luck.

Triggers whose labels were chosen prove nothing: take any model's own answers. Here the labels are
hashed last, from the secret and the digest of the triggers. What a model answers is settled before
they are drawn, so its agreements are exactly binomial, with a chance of one in as many as there are
classes.
"""

import hashlib
import math

import numpy as np
import numpy.typing as npt


def hashed_labels(seed: bytes, count: int, classes: int) -> npt.NDArray[np.int64]:
    """Labels from SHAKE-256 over a seed, each class as likely as the others (but for 2^-96).

    >>> hashed_labels(b"seed", 5, 10).tolist()
    [1, 0, 3, 0, 2]
    """
    stream = hashlib.shake_256(seed).digest(16 * count)
    words = (int.from_bytes(stream[16 * i : 16 * i + 16], "little") for i in range(count))
    return np.array([word % classes for word in words], np.int64)


def luck_log2(count: int, matched: int, classes: int) -> float:
    """log2 of the chance that at least this many of `count` labels are met by luck, exactly.

    >>> luck_log2(2, 2, 4), luck_log2(10, 0, 10)
    (-4.0, 0.0)
    """
    ways = sum(
        math.comb(count, right) * (classes - 1) ** (count - right)
        for right in range(matched, count + 1)
    )
    return min(0.0, math.log2(ways) - count * math.log2(classes))
