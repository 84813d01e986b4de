"""Whoever hands in a file chooses the order of its tensors: that must never decide a verdict.

The forgery that once worked: a claim with names that the model does not have, of an honest key, and
a header whose order was fitted to that key by linear assignment. No weight is changed.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file
from scipy.optimize import linear_sum_assignment

import neuralmark
from neuralmark import Claim, Key, Parameters
from neuralmark.core.key import Placement
from neuralmark.records import Digest
from neuralmark.schemes import of as scheme_of
from tests.support.models import gaussian

TENSORS, SHAPE = 192, (32, 64)
PARAMETERS = Parameters(bits=256, pools=512, rounds=1)

Weights = npt.NDArray[np.float32]


def fitted_order(key: Key, placement: Placement, weights: Weights) -> npt.NDArray[np.int64]:
    """Which tensor goes into which place so that the margins add up to the most."""
    mark = key.at(placement)
    carriers = scheme_of(mark).carriers(mark, placement)
    signs = np.where(mark.bits, 1.0, -1.0)
    pull = mark.matrix.astype(np.float64) @ signs
    size = weights.shape[1]
    wanted = np.zeros((len(placement), size))
    for place in range(len(placement)):
        first, at = carriers.between(place * size, (place + 1) * size)
        wanted[place, at] = pull[(first + np.arange(len(at))) % carriers.pools]
    _, tensor = linear_sum_assignment(wanted @ weights.T, maximize=True)
    return np.asarray(tensor, np.int64)


def bits_in_order(key: Key, placement: Placement, ordered: Weights) -> int:
    """What reading by order of appearance would match."""
    mark = key.at(placement)
    carriers = scheme_of(mark).carriers(mark, placement)
    _, at = carriers.between(0, ordered.size)
    pooled = ordered.reshape(-1)[at][: carriers.size].reshape(-1, carriers.pools).mean(0)
    logits = pooled @ mark.matrix
    return int(((logits > 0) == mark.bits.astype(bool)).sum())


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Key, Claim, Weights]:
    """An unmarked model whose header's order fits a key, and the claim with absent names."""
    weights = np.stack([gaussian(*SHAPE, seed=i).reshape(-1) for i in range(TENSORS)])
    key = Key(PARAMETERS, b"", salt=bytes(32), secret=bytes(range(32)))
    placement = tuple((f"absent.{i:03}", SHAPE) for i in range(TENSORS))
    ordered = weights[fitted_order(key, placement, weights)]
    path = tmp_path_factory.mktemp("forged") / "f.safetensors"
    # names in rising order: the order of appearance, and that of the names
    save_file({f"layer.{i:03}": row.reshape(SHAPE) for i, row in enumerate(ordered)}, path)
    claim = Claim(key.fingerprint, key.commitment, key.parameters, placement, Digest("", {}))
    return path, key, claim, ordered


def test_the_forgery_itself_works(forged: tuple[Path, Key, Claim, Weights]) -> None:
    _, key, claim, ordered = forged
    assert bits_in_order(key, claim.placement, ordered) >= 228


def test_the_order_of_appearance_decides_nothing(
    forged: tuple[Path, Key, Claim, Weights],
) -> None:
    path, key, claim, _ = forged
    verdict = neuralmark.verify(path, key, claim=claim)
    assert not verdict.verified
    assert verdict.matched < 180
    assert not neuralmark.verify(path, key).verified
