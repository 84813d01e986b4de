"""Files of every release are read for ever."""

from pathlib import Path

import numpy as np
import pytest

import neuralmark
from neuralmark import Claim, Key

HERE = Path(__file__).parent
RELEASES = sorted(path.name for path in HERE.glob("release-*"))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", ["plain.nmkey", "encrypted.nmkey"])
def test_keys_claims_and_marks(release: str, name: str) -> None:
    folder = HERE / release
    key = Key.load(folder / name, "golden passphrase")
    assert key.content == b"owner=Golden\nrelease 0.1"
    claim = Claim.load(folder / "marked.safetensors.claim.json")
    assert claim.fingerprint == key.fingerprint
    assert claim.commitment == key.commitment
    verdict = neuralmark.verify(folder / "marked.safetensors", key, claim=claim)
    assert verdict.matched == verdict.bits == 256
    assert verdict.checkpoint_digest.tensors == claim.marked_digest.tensors
    assert neuralmark.verify(folder / "marked.safetensors", key).verified


@pytest.mark.parametrize("release", RELEASES)
def test_raw_keys(release: str) -> None:
    key = Key.load(HERE / release / "raw.nmkey")
    assert (key.kind, key.parameters.pooling, key.content) == ("raw", "contiguous", b"raw")
    assert key.matrix is not None
    assert key.matrix.shape == (16, 24)
    assert np.isfinite(key.matrix).all()
