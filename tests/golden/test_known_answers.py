"""The published method and the native derivation against known answers (tests/golden/data)."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuralmark.core import readout
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Mark, Parameters, derive, watermark

DATA = Path(__file__).parent / "data"
NATIVE = json.loads((DATA / "native.json").read_text())


@pytest.mark.parametrize("name", ["content", "conv", "long", "odd-length", "small"])
def test_published_method(name: str) -> None:
    with np.load(DATA / f"{name}.npz") as known:
        answers = {key: known[key] for key in known}
    matrix, w = answers["K"], answers["w"]
    pools, n = matrix.shape
    bits = watermark(matrix, answers["content"].tobytes())
    mark = Mark(Parameters(n, pools, int(answers["rounds"])), matrix, bits)
    carriers = Carriers.of(mark, len(w))
    positions = carriers.positions()
    assert (bits == answers["bits"]).all()
    assert np.array_equal(positions, answers["carriers"])

    wide = matrix.astype(np.float64)
    pooled = readout.pool(w[positions].astype(np.float64), pools)
    z = readout.logits(pooled, wide)
    np.testing.assert_allclose(pooled, answers["pooled"], rtol=1e-9)
    np.testing.assert_allclose(z, answers["logits"], rtol=1e-9)
    assert np.array_equal(z > 0, answers["extracted"].astype(bool))
    assert readout.matches(z, mark.signs).mean() == answers["rate"]
    assert readout.loss(z, bits) == pytest.approx(float(answers["bce"]), rel=1e-9)

    gradient = np.zeros(len(w))
    per_pool = readout.loss_gradient(z, mark.signs, wide, carriers.per_pool)
    gradient[positions] = per_pool[carriers.pool_of(0, carriers.size)]
    known_gradient = answers["grad"]
    ours = gradient if len(w) < 10_000 else gradient[positions[:4096]]
    np.testing.assert_allclose(
        ours, known_gradient, rtol=1e-9, atol=1e-9 * abs(known_gradient).max()
    )


@pytest.mark.parametrize("case", NATIVE, ids=range(len(NATIVE)))
def test_native_derivation(case: dict[str, Any]) -> None:
    placement = tuple((name, tuple(shape)) for name, shape in case["placement"])
    parameters = Parameters(case["bits"], case["pools"], case["rounds"], case["pooling"])
    mark = derive(
        bytes.fromhex(case["secret"]), parameters, placement, bytes.fromhex(case["content"])
    )
    assert hashlib.sha256(mark.matrix.tobytes()).hexdigest() == case["K_sha256"]
    assert mark.matrix.ravel()[:4].tolist() == case["K_first"]
    assert np.packbits(mark.bits).tobytes().hex() == case["b"]
