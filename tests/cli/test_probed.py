"""`verify --code --example`: layers that the network's code stores in a way of its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neuralmark
from tests.support.commands import call
from tests.support.marks import some_key

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

CODE = """
import torch
from torch import nn
from tests.support.encoded import Integers, Running, encoded

def plain():
    torch.manual_seed(1)
    layers = nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 9)
    return nn.Sequential(*layers)

def other():
    return encoded(encoded(plain(), Integers, nn.Linear, "0"), Running, nn.Linear)
"""


@pytest.fixture
def stolen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(CODE)
    code: dict[str, Any] = {}
    exec(CODE, code)
    save_file(code["plain"]().state_dict(), "model.safetensors")
    key = some_key()
    key.save("k.nmkey", None)
    neuralmark.embed("model.safetensors", key, "m.safetensors")
    model = code["plain"]()
    model.load_state_dict(load_file("m.safetensors"))
    encoded = code["encoded"]
    model = encoded(model, code["Integers"], torch.nn.Linear, "0")
    save_file(encoded(model, code["Running"], torch.nn.Linear).state_dict(), "suspect.safetensors")
    return tmp_path


WORDS = ("verify", "suspect.safetensors", "--key", "k.nmkey", "--claim", "m.safetensors.claim.json")


def test_the_network_is_run_and_its_layers_are_probed(stolen: Path) -> None:
    assert call(*WORDS).code != 0
    assert call(*WORDS, "--code", "net.py:other").code != 0
    found = call(*WORDS, "--code", "net.py:other", "--example", "2x96", "--json")
    assert found.code == 0, found.err
    assert "3 layers were read by probing" in found.json["reason"]
    np.save("x.npy", np.ones((1, 96), np.float32))
    np.savez("x.npz", x=np.ones((1, 96), np.float32))
    for file in ("x.npy", "x.npz"):
        shown = call(*WORDS, "--code", "net.py:other", "--example", file)
        assert shown.code == 0, shown.err
        assert "read by probing" in shown.out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("2x", "give a shape"),
        ("2x0", "give a shape"),
        ("2x96:text", "give a shape"),
        ("gone.npy", "cannot be read"),
        ("two.npz", "holds 2 arrays"),
    ],
)
def test_what_is_no_example_is_named(stolen: Path, given: str, said: str) -> None:
    np.savez("two.npz", x=np.ones(3), y=np.ones(3))
    told = call(*WORDS, "--code", "net.py:other", "--example", given)
    assert told.code == 2
    assert said in told.err


def test_an_example_needs_code_and_fits_the_network(stolen: Path) -> None:
    assert "give that, too" in call(*WORDS, "--example", "2x96").err
    wrong = call(*WORDS, "--code", "net.py:other", "--example", "2x16:int64")
    assert wrong.code == 2
    assert "give an example that it takes" in wrong.err
