"""The published method and the native derivation against known answers (tests/golden/data)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.golden import differences

from neuralmark.core import readout
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import TILED, Mark, Parameters, watermark

DATA = Path(__file__).parent / "data"
NATIVE = json.loads((DATA / "native2.json").read_text())


@pytest.mark.parametrize("name", ["content", "conv", "long", "odd-length", "small"])
def test_published_method(name: str) -> None:
    with np.load(DATA / f"{name}.npz") as known:
        answers = {key: known[key] for key in known}
    matrix, w = answers["K"], answers["w"]
    pools, n = matrix.shape
    bits = watermark(matrix, answers["content"].tobytes())
    mark = Mark(Parameters(n, pools, int(answers["rounds"]), filter=TILED), matrix, bits)
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
    assert differences(case) == []


def test_an_answer_that_differs_is_named() -> None:
    assert differences({**NATIVE[0], "b": "00" * 32}) == ["b"]
