"""The code of a network on the command line: what fails in it, and what means nothing with it."""

from pathlib import Path

import numpy as np
import pytest

from neuralmark import Key, attacks, schemes
from tests.support.commands import call
from tests.support.triggered import marked

CODE = """
import sys
import torch
from tests.support.triggered import perceptron
from torch import nn

class Sized(nn.Sequential):
    def __init__(self):
        super().__init__(*perceptron())

    def forward(self, images):
        torch._assert(images.shape[-1] == 224, "Wrong image width!")
        return super().forward(images)

class Lookup(Sized):
    def forward(self, images):
        return {}["pixels"]

class Ending(Sized):
    def forward(self, images):
        sys.exit(0)

def leaving():
    sys.exit("bye")

def lines():
    raise RuntimeError("boom" + chr(10) + "second line")

class Secretive(Sized):
    def state_dict(self, *given, **named):
        raise KeyError("none of your business")

def meta():
    return perceptron().to("meta")

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.LSTM(8, 16, batch_first=True)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from safetensors.torch import save_file

    made = marked("deepsigns")
    save_file(made.state, tmp_path / "m.safetensors")
    made.key.save(tmp_path / "k.nmkey", None)
    made.triggers.save(tmp_path / "t.triggers", made.key)
    made.claim.save(tmp_path / "c.json")
    (tmp_path / "net.py").write_text(CODE)
    (tmp_path / "gone.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "odd_package.py").write_text("raise KeyError('odd')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


KNOWN = ("--key", "k.nmkey", "--claim", "c.json", "--triggers", "t.triggers")


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        ("net.py:Sized", "TriggerMismatchError", "AssertionError: Wrong image width!"),
        ("net.py:Lookup", "TriggerMismatchError", "KeyError: 'pixels'"),
        ("net.py:Ending", "ModelCodeError", "ended the program (sys.exit(0))"),
        ("net.py:leaving", "ModelCodeError", "ended the program (sys.exit('bye'))"),
        ("gone.py:make", "ModelCodeError", "ended the program (sys.exit(0))"),
        ("odd_package:make", "ModelCodeError", "KeyError: 'odd'"),
        ("net.py:lines", "ModelCodeError", "RuntimeError: boom"),
        ("net.py:Secretive", "ModelCodeError", "KeyError: 'none of your business'"),
        ("net.py:meta", "ModelCodeError", "meta device"),
    ],
)
def test_code_that_fails_is_named(place: Path, code: str, error: str, said: str) -> None:
    for words in (("verify", "m.safetensors"), ("attack", "noise", "m.safetensors")):
        told = call(*words, *KNOWN, "--code", code)
        assert said in told.failed(2, error)
        assert "second line" not in told.err


def test_with_weights_the_code_is_named_too(place: Path) -> None:
    Key.new().save(place / "w.nmkey", None)
    told = call("verify", "m.safetensors", "--key", "w.nmkey", "--code", "net.py:leaving")
    assert "ended the program" in told.failed(2, "ModelCodeError")
    assert call("verify", "m.safetensors", "--key", "w.nmkey", "--code", "net.py:Ending").code == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--anchor", "nothere"),
        ("--base", "nothere"),
        ("--example", "1x7"),
        ("--effort", "0.5"),
        ("--align-limit", "7"),
        ("--sandbox",),
    ],
    ids=lambda words: words[0],
)
def test_options_for_weights_are_refused_at_triggers(place: Path, words: tuple[str, ...]) -> None:
    live = ("--code", "tests.support.triggered:perceptron", *KNOWN)
    assert call("verify", "m.safetensors", *live).code == 0
    said = call("verify", "m.safetensors", *live, *words).failed(2, "ParameterError")
    assert f"leave {words[0]} out" in said
    (place / "v.json").write_text(call("verify", "m.safetensors", *live, "--json").out)
    assert call("recheck", "v.json", "m.safetensors", *live).code == 0
    if words[0] in ("--anchor", "--base", "--example"):
        told = call("recheck", "v.json", "m.safetensors", *live, *words)
        assert f"leave {words[0]} out" in told.failed(2, "ParameterError")


def test_a_plain_lstm_is_not_told_that_no_code_is_needed(place: Path) -> None:
    own = schemes.parameters("lim", bits=16)
    Key.new(own).save(place / "lim.nmkey", None)
    Key.new().save(place / "w.nmkey", None)
    words, code = ("verify", "m.safetensors"), ("--code", "net.py:Reader")
    said = call(*words, "--key", "lim.nmkey", *code).failed(2, "ModelCodeError")
    assert said.endswith("give the code of this very network")
    said = call(*words, "--key", "w.nmkey", *code).failed(2, "ModelCodeError")
    assert said.endswith("to look for a mark in weights, no code is needed")


def test_a_weak_mark_is_told_by_the_file(place: Path) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file("m.safetensors")
    for value in state.values():
        value.add_(np.random.default_rng(0).standard_normal())
    save_file(state, "weak.safetensors")
    live = ("--code", "tests.support.triggered:perceptron", *KNOWN)
    said = call("attack", "noise", "weak.safetensors", *live).failed(2, "NoMarkError")
    assert "weak.safetensors does not carry this key's mark" in said
    assert "live" not in said


@pytest.mark.parametrize("name", attacks.names())
def test_help_says_what_only_python_can_run(name: str) -> None:
    needs = attacks.get(name).needs
    summary = call("attack", name, "--help").out.split("\n\n")[1]
    listed = next(line for line in call("attack", "list").out.splitlines() if line.startswith(name))
    told = " ".join(summary.split())
    assert ("from Python only: needs data" in told) == ("data" in needs)
    assert ("from Python only" in listed) == ("data" in needs)
    assert ("needs --code" in told) == (needs == {"model"})


def test_the_list_of_attacks_says_so_too() -> None:
    here, _, python = call("attack", "--help").out.partition("From Python only, with data:\n")
    for name in attacks.names():
        line = f"\n  {name} "
        assert (line in f"\n{python}") == ("data" in attacks.get(name).needs), name
        assert (line in here) != (line in f"\n{python}"), name
