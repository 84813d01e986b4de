"""Presets are data, and strict about it."""

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from neuralmark.errors import ParameterError
from neuralmark.lab.plan.preset import load_preset, parse, preset_names


def raw(name: str) -> dict[str, Any]:
    text = (files("neuralmark.lab") / "presets" / f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@pytest.mark.parametrize("name", preset_names())
def test_presets_load(name: str) -> None:
    preset = load_preset(name)
    assert preset.name == name
    assert preset.about
    assert preset.training.main in preset.training.architectures


def test_the_paper_has_the_papers_numbers() -> None:
    preset = load_preset("paper")
    assert (preset.training.epochs, preset.attack.epochs) == (200, 100)
    assert (preset.training.rate, preset.training.batch) == (0.01, 64)
    assert list(preset.sweeps.weights) == [1, 10, 50, 100, 1000]
    assert list(preset.sweeps.rates) == [0.001, 0.005, 0.01, 0.1, 1]
    assert len(preset.training.seeds) == 3


def test_unknown_and_missing_keys_are_named() -> None:
    data = raw("smoke")
    data["training"]["epoch"] = 3
    with pytest.raises(ParameterError, match="did you mean 'epochs'"):
        parse("mine", data)
    data = raw("smoke")
    del data["sweeps"]["rounds"]
    with pytest.raises(ParameterError, match="lacks 'rounds' in \\[sweeps\\]"):
        parse("mine", data)
    with pytest.raises(ParameterError, match="no table \\[attack\\]"):
        parse("mine", {"training": raw("smoke")["training"]})
    with pytest.raises(ParameterError, match="did you mean 'smoke'"):
        load_preset("smok")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = (files("neuralmark.lab") / "presets" / "smoke.toml").read_text(encoding="utf-8")
    path.write_text(text.replace("epochs = 2", "epochs = 5"))
    assert load_preset(str(path)).training.epochs == 5
    path.write_text("[")
    with pytest.raises(ParameterError, match="not valid TOML"):
        load_preset(str(path))
    with pytest.raises(ParameterError, match="cannot be read"):
        load_preset(str(tmp_path / "none.toml"))
