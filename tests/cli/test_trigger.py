"""`neuralmark trigger`: drawing, sealing and looking."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from neuralmark import Key, Triggers, schemes
from tests.support.commands import call


@pytest.fixture
def place(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((40, 6)).astype(np.float32)
    np.savez(tmp_path / "d.npz", inputs=inputs, labels=np.arange(40) % 4)
    key = Key.new(schemes.parameters("deepsigns", bits=160))
    key.save(tmp_path / "k.nmkey", None)
    Key.new().save(tmp_path / "plain.nmkey", None)
    return tmp_path


def test_new_and_show_tell_the_same(place: Path) -> None:
    out, key = place / "t.triggers", place / "k.nmkey"
    arguments = ("trigger", "new", place / "d.npz", "-o", out, "--key", key, "--count", 5)
    made = call(*arguments, "--classes", "3,1", "--json")
    assert made.code == 0, made.err
    assert "keep" in made.err
    told = made.json
    assert (told["count"], told["shape"], told["classes"]) == (10, [6], {"1": 5, "3": 5})
    assert told["digest"] == Triggers.load(out, Key.load(key)).digest.hex()
    assert call("trigger", "show", out, "--key", key, "--json").json == told
    shown = call("trigger", "show", out, "--key", key)
    assert "1 (5), 3 (5)" in shown.out
    assert call(*arguments).failed(2, "OutputError").endswith("--force")
    assert call(*arguments, "--force").code == 0


def test_bad_input_is_named(place: Path) -> None:
    out, key = place / "t.triggers", place / "k.nmkey"
    arguments = ("trigger", "new", place / "d.npz", "-o", out, "--key")
    call(*arguments, place / "plain.nmkey").failed(2, "LiveModelError")
    call(*arguments, key, "--count", 11).failed(2, "TriggerMismatchError")
    call(*arguments, key, "--classes", "a").failed(2, "BadParameter")
    call("trigger", "new", place / "none", "-o", out, "--key", key).failed(3, "CheckpointError")
    call("trigger", "show", place / "d.npz", "--key", key).failed(3, "TriggerError")
    assert not out.exists()


def test_verifying_a_file_says_what_to_give(place: Path) -> None:
    save_file({"fc.weight": np.ones((64, 64), np.float32)}, place / "m.safetensors")
    said = call("verify", place / "m.safetensors", "--key", place / "k.nmkey")
    assert "live model" in said.failed(2, "LiveModelError")
