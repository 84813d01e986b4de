"""What a model offers: carriers, costs and grids, told without writing anything."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

import neuralmark
from neuralmark import Key, Parameters, schemes
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import ParameterError
from neuralmark.marking.inspection import _advice, unit_cost
from neuralmark.marking.reading import FileSuspect
from neuralmark.marking.verification import WHOLE_UP_TO, examine, verify
from tests.support.models import QUICK, gaussian


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tensors: dict[str, npt.NDArray[Any]] = {
        "a.weight": gaussian(128, 128),
        "b.weight": gaussian(96, 128, seed=1),
        "c.bias": gaussian(100, seed=2),
        "d.qweight": np.ones((60, 60), np.int8),
        "e.weight": np.full((128, 128), np.nan, np.float32),
    }
    save_file(tensors, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


def test_carriers_are_expected_or_counted(path: Path) -> None:
    expected = {
        row.name: row
        for row in neuralmark.inspect(
            path, options=neuralmark.InspectOptions(parameters=QUICK)
        ).rows
    }
    a, c, d = (expected[name] for name in ("a.weight", "c.bias", "d.qweight"))
    assert a.weights_per_pool == 128 * 128 / 2 / 320
    assert a.carriers == int(128 * 128 / 2 / 320) * 320
    assert (c.weights_per_pool, c.carriers, c.cost_percent) == (100 / 2 / 320, 0, None)
    assert (d.carriers, d.cost_percent, d.chosen) == (None, None, False)
    key = Key.new(QUICK)
    counted = neuralmark.inspect(path, key)
    assert counted.exact
    assert counted.auto == ("a.weight", "b.weight", "e.weight")
    row = next(row for row in counted.rows if row.name == "b.weight")
    assert row.carriers is not None
    assert row.carriers % 320 == 0
    assert abs(row.carriers - 96 * 64) < 700


def test_costs_fall_with_the_root_of_the_weights(path: Path) -> None:
    rows = {
        row.name: row
        for row in neuralmark.inspect(
            path, options=neuralmark.InspectOptions(parameters=QUICK)
        ).rows
    }
    a, b = rows["a.weight"].cost_percent, rows["b.weight"].cost_percent
    assert a is not None
    assert b is not None
    assert b / a == pytest.approx(math.sqrt(128 / 96))
    weak, strong = (
        neuralmark.inspect(path, options=neuralmark.InspectOptions(parameters=QUICK, strength=s))
        for s in (0.5, 2.0)
    )
    assert weak.auto_cost_percent is not None
    assert strong.auto_cost_percent is not None
    assert weak.auto_cost_percent < strong.auto_cost_percent


def test_what_cannot_be_written_has_no_cost() -> None:
    usual, strong = (unit_cost(Parameters(64, 128), strength) for strength in (0.5, 4.0))
    assert usual is not None
    assert strong is not None
    assert 0 < usual < strong
    assert unit_cost(Parameters(64, 32), 1.0) is None
    assert unit_cost(Parameters(8, 64, scheme="votemark"), 1.0) is None


def test_grids_and_what_is_not_finite_are_told_of_chosen_tensors(path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    found = neuralmark.inspect(
        path,
        options=neuralmark.InspectOptions(parameters=QUICK),
        progress=lambda *step: steps.append(step),
    )
    rows = {row.name: row for row in found.rows}
    assert rows["a.weight"].grid == rows["b.weight"].grid == "float32"
    assert rows["c.bias"].grid is None
    assert "NaN" in (rows["e.weight"].obstacle or "")
    total = 2 * 128 * 128 + 96 * 128
    assert steps[-1] == ("reading", total, total)
    assert [done for _, done, _ in steps] == sorted({done for _, done, _ in steps})
    headers = neuralmark.inspect(
        path, options=neuralmark.InspectOptions(parameters=QUICK, weights=False)
    )
    assert all(row.grid is None for row in headers.rows)


def test_whole_files_are_digested_on_request_or_if_they_are_small(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Key.new(QUICK)
    suspect = FileSuspect(open_checkpoint(path), "m")
    assert examine(suspect, key, tensors=["a.weight"]).checkpoint_digest.files is None
    assert verify(path, key, tensors=["a.weight"]).checkpoint_digest.files is None
    assert WHOLE_UP_TO == 64 * 1024 * 1024
    with pytest.raises(ParameterError, match="expected a Key, not str"):
        examine(suspect, "mine.nmkey")  # type: ignore[arg-type]
    for full, most, listed in (
        *((True, 1, [path.name]), (False, 1 << 30, [])),
        *((None, path.stat().st_size, [path.name]), (None, path.stat().st_size - 1, [])),
    ):
        monkeypatch.setattr("neuralmark.marking.verification.WHOLE_UP_TO", most)
        options = neuralmark.VerifyOptions(full_digest=full)
        whole = verify(path, key, tensors=["a.weight"], options=options).checkpoint_digest
        assert list(whole.files or {}) == listed


@pytest.mark.parametrize(("size", "costs"), [(638, False), (640, True), (1200, True)])
def test_one_carrier_per_pool_has_a_cost(tmp_path: Path, size: int, costs: bool) -> None:
    save_file({"a.weight": gaussian(2, size // 2)}, tmp_path / "m.safetensors")
    (row,) = neuralmark.inspect(
        tmp_path / "m.safetensors", options=neuralmark.InspectOptions(parameters=QUICK)
    ).rows
    assert row.weights_per_pool == size / 2 / 320
    assert (row.cost_percent is not None) == costs


def test_how_far_fine_tuning_moved_is_told_with_and_without_a_key(tmp_path: Path) -> None:
    base = {"a.weight": gaussian(128, 128), "b.weight": gaussian(96, 128, seed=1)}
    tuned = {name: value + gaussian(*value.shape, seed=9) / 10 for name, value in base.items()}
    save_file(base, tmp_path / "base.safetensors")
    save_file(tuned, tmp_path / "m.safetensors")
    change, whole = (
        math.sqrt(sum(float(np.square(table[name], dtype=np.float64).sum()) for name in base))
        for table in ({n: tuned[n] - base[n] for n in base}, tuned)
    )
    for key in (Key.new(QUICK), None):
        options = neuralmark.InspectOptions(parameters=QUICK, base=tmp_path / "base.safetensors")
        found = neuralmark.inspect(tmp_path / "m.safetensors", key, options).base
        assert found is not None
        assert found.moved == pytest.approx(change / whole, rel=1e-5)
        assert found.unmoved == 0
        assert [strength for strength, _ in found.exposures] == [0.5, 1.0, 2.0, 4.0]


def test_a_cost_is_that_of_a_unit_over_the_root_of_the_weights(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuralmark.marking.inspection.unit_cost", lambda *_: 3.0)
    options = neuralmark.InspectOptions(parameters=QUICK, weights=False)
    found = neuralmark.inspect(path, options=options)
    assert found.rows[0].cost_percent == 300 / 128
    assert found.auto_cost_percent == pytest.approx(300 / math.sqrt(2 * 128 * 128 + 96 * 128))


def test_where_nothing_can_be_chosen_nothing_is_carried(tmp_path: Path) -> None:
    save_file({"a.bias": gaussian(100)}, tmp_path / "m.safetensors")
    found = neuralmark.inspect(tmp_path / "m.safetensors")
    assert found.auto == ()
    assert (found.auto_carriers, found.auto_weights_per_pool) == (0, 0)
    assert found.auto_cost_percent is None


def test_with_a_key_carriers_are_whole_pools(tmp_path: Path) -> None:
    save_file({"a.weight": gaussian(30, 40)}, tmp_path / "m.safetensors")
    (row,) = neuralmark.inspect(tmp_path / "m.safetensors", Key.new(QUICK)).rows
    assert (row.weights_per_pool, row.carriers) == (1.0, 320)


def test_the_largest_strength_that_hides_is_advised() -> None:
    seen = {0.5: 0.5, 1.0: 0.55, 2.0: 0.6, 4.0: 0.7}
    assert "up to about strength 2:" in _advice(seen, 0.1)
    shown = {0.5: 0.5, 1.0: 0.61, 2.0: 0.7, 4.0: 0.8}
    assert "merged adapter" in _advice(shown, 0.51)
    assert "too little" in _advice(shown, 0.5)
    assert "strength 1:" in _advice({**shown, 1.0: 0.6}, 0.9)


def test_with_a_key_one_expected_carrier_a_pool_is_counted_too(tmp_path: Path) -> None:
    save_file({"a.weight": gaussian(2, 320)}, tmp_path / "m.safetensors")
    placement = (("a.weight", (2, 320)),)
    scheme = schemes.get(QUICK.scheme)
    keys = (Key.new(QUICK) for _ in range(100))
    short = next(key for key in keys if not scheme.carriers(key.at(placement), placement).size)
    (row,) = neuralmark.inspect(tmp_path / "m.safetensors", short).rows
    assert (row.weights_per_pool, row.carriers) == (0, 0)
