"""What inspecting says of a base, and of what there is no estimate for."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import InspectOptions, Key, Parameters, schemes
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import UnknownTensorError
from neuralmark.marking.inspection import unit_cost
from neuralmark.marking.placement import auto, catalogue
from tests.support.models import QUICK, gaussian, gaussian_model


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return gaussian_model(tmp_path / "base.safetensors", rows=512)


def tuned(base: Path, share: float, *names: str) -> Path:
    """Every named tensor moved by noise of this share of the weights' deviation."""
    arrays, path = load_file(base), base.with_name("tuned.safetensors")
    for seed, name in enumerate(names or arrays):
        arrays[name] = arrays[name] + share * gaussian(*arrays[name].shape, seed=50 + seed)
    save_file({name: value.astype(np.float32) for name, value in arrays.items()}, path)
    return path


def advice(model: Path, base: Path) -> str:
    found = neuralmark.inspect(model, Key.new(QUICK), InspectOptions(base=base))
    assert found.base is not None
    return found.base.advice


def test_advice_says_what_fine_tuning_hides(base: Path) -> None:
    assert "hides up to about strength" in advice(tuned(base, 0.5), base)
    assert "too little to hide a mark" in advice(tuned(base, 0.001), base)
    assert "the base's own: train them" in advice(base, base)


def test_another_model_is_no_base(base: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file({"x.weight": gaussian(128, 128)}, other)
    with pytest.raises(UnknownTensorError, match="none of the tensors"):
        advice(base, other)
    unrelated = gaussian_model(tmp_path / "unrelated.safetensors", seed=90, rows=512)
    assert "nothing in common" in advice(base, unrelated)


def test_progress_is_told_in_weights(base: Path) -> None:
    told: list[tuple[str, int, int]] = []
    neuralmark.inspect(base, Key.new(QUICK), progress=lambda *each: told.append(each))
    assert told
    assert told[-1][1] == told[-1][2] > 0


def test_costs_are_estimated_where_they_can_be() -> None:
    assert unit_cost(QUICK, 1.0)
    assert unit_cost(schemes.parameters("vanillamark", bits=32), 1.0) is None
    assert unit_cost(Parameters(32, 64, pooling="contiguous"), 1.0) is None
    assert unit_cost(Parameters(320, 160), 1.0) is None  # more bits than pools


def test_a_scheme_for_single_tensors_takes_the_largest_it_can(base: Path) -> None:
    known = catalogue(open_checkpoint(base))
    chosen = auto(known, schemes.parameters("greedymark", bits=160, own={"row": 51}))
    assert [tensor.name for tensor in chosen.tensors] == ["layer1.weight"]
    assert "greedymark" in chosen.why
    none = auto(known, schemes.parameters("greedymark", bits=256, own={"row": 4096}))
    assert none.tensors == ()
    assert "no tensor is large enough for greedymark" in none.why
