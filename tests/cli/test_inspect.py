"""neuralmark inspect: what a model offers."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from neuralmark import Key
from neuralmark.core.carriers import Carriers
from tests.support.commands import call, on_terminal
from tests.support.models import gaussian, sharded_model


def test_table_and_choice(model: Path) -> None:
    result = call("inspect", model)
    assert result.code == 0
    lines = result.out.splitlines()
    assert re.split("  +", lines[0]) == [
        *("auto", "tensor", "dtype", "shape", "grid", "carriers", "per pool", "cost at 1")
    ]
    rows = {line.split()[1]: line for line in lines[1:] if line.startswith("*")}
    assert set(rows) == {"layer1.weight", "layer2.weight"}
    assert "128x128  float32 " in rows["layer1.weight"]
    assert "why:" in result.out
    assert "wide: all inner weight tensors, 28,672 weights" in result.out
    assert "expected of a new key" in result.out


def test_json_with_and_without_a_key(model: Path, key: Path) -> None:
    plain = call("inspect", model, "--json").json
    assert plain["exact"] is False
    assert plain["auto"] == ["layer1.weight", "layer2.weight"]
    assert plain["format"] == "safetensors"
    assert {row["name"] for row in plain["rows"]} == {
        "layer1.weight",
        "layer2.weight",
        "layer1.bias",
    }
    exact = call("inspect", model, "--key", key, "--json").json
    assert exact["exact"] is True
    secret = Key.load(key)
    mark = secret.at((("layer1.weight", (128, 128)), ("layer2.weight", (96, 128))))
    carriers = Carriers.of(mark, 128 * 128 + 96 * 128)
    assert exact["auto_carriers"] == carriers.size
    assert exact["auto_weights_per_pool"] == carriers.per_pool
    assert exact["parameters"] == secret.parameters.to_dict()
    text = json.dumps(exact)
    assert secret.secret is not None
    assert secret.secret.hex() not in text


def test_cost_is_what_embedding_takes(model: Path, key: Path) -> None:
    for strength in (0.5, 1, 3):
        told = call("inspect", model, "--key", key, "--json", "--strength", strength).json
        # without an anchor the key makes the very mark that inspect looked at
        dry = ("embed", model, "--key", key, "--dry-run", "--no-anchor", "--json")
        done = call(*dry, "--strength", strength)
        real = 100 * done.json["change_relative"]
        assert told["auto_cost_percent"] == pytest.approx(real, rel=0.25)


def test_obstacles_are_explained(tmp_path: Path) -> None:
    tensors: dict[str, npt.NDArray[Any]] = {
        "a.weight": np.ones((64, 64), np.int8),
        "a.weight_scale": np.ones(64, np.int32),
        "empty.weight": np.ones((0, 64), np.float32),
        "b.weight": gaussian(128, 128),
    }
    save_file(tensors, tmp_path / "m.safetensors")
    rows = {
        row["name"]: row
        for row in call("inspect", tmp_path / "m.safetensors", "--json").json["rows"]
    }
    assert "dequantise" in rows["a.weight"]["obstacle"]
    assert "scales" in rows["a.weight_scale"]["obstacle"]
    assert "no elements" in rows["empty.weight"]["obstacle"]
    assert rows["b.weight"]["obstacle"] is None
    assert "no elements" in call("inspect", tmp_path / "m.safetensors").out


def test_nothing_to_mark(tmp_path: Path) -> None:
    save_file({"steps": np.ones(5, np.int64)}, tmp_path / "m.safetensors")
    result = call("inspect", tmp_path / "m.safetensors")
    assert result.code == 0
    assert "no floating-point matrix" in result.out
    told = call("inspect", tmp_path / "m.safetensors", "--json").json
    assert (told["auto"], told["auto_cost_percent"]) == ([], None)


def test_folder(tmp_path: Path) -> None:
    told = call("inspect", sharded_model(tmp_path / "m"), "--json").json
    assert told["format"] == "folder of safetensors"
    assert told["auto"] == ["a.weight", "b.weight"]


@pytest.mark.parametrize("strength", ["nan", "inf", "-1", "0"])
def test_strength_out_of_range(model: Path, strength: str) -> None:
    call("inspect", model, "--strength", strength).failed(2, "ParameterError")
    call("inspect", model, "--strength", strength, "--json").failed(2, "ParameterError")


def test_not_there(tmp_path: Path) -> None:
    call("inspect", tmp_path / "no").failed(3, "CheckpointError")
    (tmp_path / "empty").mkdir()
    call("inspect", tmp_path / "empty").failed(3, "UnknownFormatError")


def test_on_a_terminal(model: Path) -> None:
    code, screen = on_terminal("inspect", model)
    assert code == 0
    assert "layer1.weight" in screen
    assert "\x1b[" in screen
