"""`neuralmark trigger`: drawing, sealing and looking."""

import hashlib
import json
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
    (place / "net.py").write_text("import torch\n")
    said = call("trigger", "new", place / "net.py", "-o", out, "--key", key)
    assert "neither .npz nor safetensors" in said.failed(3, "TriggerError")
    call("trigger", "show", place / "d.npz", "--key", key).failed(3, "TriggerError")
    assert not out.exists()


def test_odd_data_is_named_with_its_file(place: Path) -> None:
    out, key, data = place / "t.triggers", place / "k.nmkey", place / "odd.npz"
    words = ("trigger", "new", data, "-o", out, "--key", key)
    inputs, labels = np.ones((8, 6)), np.arange(8) % 4
    for wrong, said in (
        (inputs[:0], "inputs is empty"),
        (inputs * np.nan, "input 0 holds NaN or infinity: leave it out"),
        (inputs * 1e60, "too large for float32 (up to 1e+60): scale the inputs"),
    ):
        np.savez(data, inputs=wrong, labels=labels[: len(wrong)])
        line = call(*words).failed(3, "TriggerError")
        assert said in line
        assert str(data) in line
    np.savez(data, inputs=inputs)
    line = call(*words, "--classes", "0").failed(2, "TriggerMismatchError")
    assert "these inputs have no labels" in line
    own = {"channels": 4, "side": 2}
    Key.new(schemes.parameters("featuremap", own=own)).save(place / "f.nmkey", None)
    other = ("trigger", "new", data, "-o", out, "--key", place / "f.nmkey")
    line = call(*other, "--classes", "0").failed(2, "TriggerMismatchError")
    assert "no classes to choose from" in line
    Key.new(schemes.parameters("deepipr")).save(place / "d.nmkey", None)
    refused = call("trigger", "new", data, "-o", out, "--key", place / "d.nmkey")
    assert "made with --set version=3 take some" in refused.failed(2, "LiveModelError")


def test_triggers_never_replace_what_they_are_made_of(place: Path) -> None:
    data, key = place / "d.npz", place / "k.nmkey"
    before = data.read_bytes(), key.read_bytes()
    (place / "link.npz").symlink_to(data)
    for out in (data, key, place / "link.npz"):
        for more in ((), ("--force",)):
            said = call("trigger", "new", data, "-o", out, "--key", key, "--count", 2, *more)
            assert "is an input itself" in said.failed(2, "OutputError")
    assert (data.read_bytes(), key.read_bytes()) == before
    (place / "images" / "cat").mkdir(parents=True)
    inside = place / "images" / "cat" / "t.triggers"
    said = call("trigger", "new", place / "images", "-o", inside, "--key", key)
    assert "lies inside the input folder" in said.failed(2, "OutputError")
    assert not inside.exists()


def test_verifying_a_file_says_what_to_give(place: Path) -> None:
    save_file({"fc.weight": np.ones((64, 64), np.float32)}, place / "m.safetensors")
    said = call("verify", place / "m.safetensors", "--key", place / "k.nmkey")
    message = said.failed(2, "LiveModelError")
    assert "live model" in message
    assert "--code FILE.py:NAME, and --triggers" in message


CODE = """
from tests.support.triggered import perceptron
from torch import nn

def wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 200))

def broken():
    raise OSError("no")

number = 3
"""


@pytest.fixture
def network(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    from safetensors.torch import save_file as save_tensors

    from tests.support.triggered import marked

    made = marked("deepsigns")
    save_tensors(made.state, tmp_path / "m.safetensors")
    made.key.save(tmp_path / "k.nmkey", None)
    made.triggers.save(tmp_path / "t.triggers", made.key)
    made.claim.save(tmp_path / "c.json")
    (tmp_path / "net.py").write_text(CODE)
    return tmp_path


def test_a_file_and_the_code_of_its_network_are_a_live_model(network: Path) -> None:
    file, code = network / "m.safetensors", f"{network / 'net.py'}:perceptron"
    known = ("--key", network / "k.nmkey", "--claim", network / "c.json", "--code", code)
    words = ("verify", file, *known, "--triggers", network / "t.triggers")
    found = call(*words, "--json")
    assert found.code == 0, found.err
    assert found.json["status"] == "verified"
    assert found.json["model"] == str(file)
    whole = hashlib.sha256(file.read_bytes()).hexdigest()
    assert found.json["checkpoint_digest"]["files"] == {"m.safetensors": whole}
    assert "what this layer makes of the triggers" in call(*words).out
    (network / "v.json").write_text(found.out)
    again = ("recheck", network / "v.json", file, *known, "--triggers", network / "t.triggers")
    assert call(*again).code == 0
    edited = {**found.json, "trigger_digest": "0" * 128}
    (network / "v.json").write_text(json.dumps(edited))
    told = call(*again, "--json")
    assert told.code == 1
    assert [p["name"] for p in told.json["points"] if p["holds"] is False] == ["triggers"]
    assert "--triggers" in call("verify", file, *known).failed(2, "TriggerMismatchError")


def test_the_claim_beside_a_file_is_followed_with_code_too(network: Path) -> None:
    """The same verdict with and without the code of the network."""
    file, code = network / "m.safetensors", f"{network / 'net.py'}:perceptron"
    Key.new(schemes.parameters("feng", bits=160)).save(network / "w.nmkey", None)
    words = ("--key", network / "w.nmkey")
    assert call("embed", file, *words, "-o", network / "o.safetensors").code == 0
    for more in ((), ("--code", code)):
        found = call("verify", network / "o.safetensors", *words, *more, "--json")
        assert (found.code, found.json["matched"]) == (0, 160), more
        assert "it followed the claim beside the model" in found.json["reason"]
        assert found.json["anchor_digest"]
        assert found.json["claim_digest"]
    (network / "c.json").rename(network / "m.safetensors.claim.json")
    known = ("--key", network / "k.nmkey", "--triggers", network / "t.triggers", "--code", code)
    found = call("verify", file, *known, "--json")
    assert (found.code, found.json["status"]) == (0, "verified"), found.err
    assert "it followed the claim beside the model" in found.json["reason"]


def test_a_mark_in_activations_is_attacked_with_code_and_triggers(network: Path) -> None:
    file, code = network / "m.safetensors", f"{network / 'net.py'}:perceptron"
    known = ("--key", network / "k.nmkey", "--claim", network / "c.json")
    words = (*known, "--triggers", network / "t.triggers", "--code", code)
    out = network / "attacked.safetensors"
    told = call("attack", "noise", file, "--amount", "0.01", *words, "-o", out, "--json")
    assert told.code == 0, told.err
    assert (told.json["before"]["matched"], told.json["after"]["status"]) == (160, "verified")
    assert told.json["after"]["bound_holds"] is True
    assert call("verify", out, *words).code == 0
    said = call("attack", "noise", file, *known).failed(2, "LiveModelError")
    assert "verify, recheck and attack take its network as --code FILE.py:NAME" in said
    card = call("attack", "suite", file, *words, "--only", "shrink", "--json")
    assert card.code == 0, card.err
    assert {row["attack"] for row in card.json["rows"]} == {"shrink"}
    missing = call("attack", "noise", file, *known, "--code", code)
    assert "--triggers" in missing.failed(2, "TriggerMismatchError")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("net.py:wide", "1.weight"),
        ("net.py:broken", "OSError: no"),
        ("net.py:number", "could be called"),
        ("net.py:nobody", "nothing named 'nobody'"),
        ("other.py:wide", "is not there"),
        ("net.py", "FILE.py:NAME"),
        ("no.such.module:wide", "cannot be imported"),
        ("math:floor", "without arguments"),
        ("builtins:list", "gives a list"),
    ],
)
def test_code_that_does_not_fit_is_named(
    network: Path, code: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(network)
    words = ("verify", "m.safetensors", "--key", "k.nmkey", "--triggers", "t.triggers")
    assert said in call(*words, "--code", code).failed(2, "ModelCodeError")


def test_triggers_for_a_key_that_reads_weights_are_refused(network: Path) -> None:
    Key.new().save(network / "plain.nmkey", None)
    words = ("verify", network / "m.safetensors", "--key", network / "plain.nmkey")
    said = call(*words, "--triggers", network / "t.triggers").failed(2, "TriggerMismatchError")
    assert "leave --triggers out" in said


def test_triggers_share_out_the_bits(place: Path) -> None:
    own = {"channels": 4, "side": 2}
    Key.new(schemes.parameters("featuremap", own=own)).save(place / "f.nmkey", None)
    words = ("trigger", "new", place / "d.npz", "-o", place / "f.triggers", "--key")
    assert call(*words, place / "f.nmkey", "--json").json["count"] == 8  # 256 bits, at most 15
    said = call(*words, place / "k.nmkey", "--classes", "0,1,2", "--count", 2)
    assert "160 bits cannot be shared out evenly among 3 classes" in said.failed(
        2, "TriggerMismatchError"
    )


def test_deepiprs_third_version_has_triggers_and_the_others_have_none(place: Path) -> None:
    words = ("trigger", "new", place / "d.npz", "-o", place / "v.triggers", "--json", "--key")
    for version in (1, 2, 3):
        own = {"version": version}
        Key.new(schemes.parameters("deepipr", own=own)).save(place / f"{version}.nmkey", None)
    for version in (1, 2):
        call(*words, place / f"{version}.nmkey").failed(2, "LiveModelError")
    assert call(*words, place / "3.nmkey").json["count"] == 40
    opened = Triggers.load(place / "v.triggers", Key.load(place / "3.nmkey"))
    assert len(opened) == 40


def test_code_that_does_not_run_is_named(network: Path) -> None:
    (network / "bad.py").write_text("this is no code")
    words = ("verify", network / "m.safetensors", "--key", network / "k.nmkey", "--code")
    assert "SyntaxError" in call(*words, f"{network / 'bad.py'}:net").failed(2, "ModelCodeError")


SUSPECT = """
from tests.support.passports import normed

def failing():
    model = normed()
    def no(*given):
        raise KeyError("pixels")
    model.forward = no
    return model
"""


@pytest.fixture
def suspect(tmp_path: Path) -> Path:
    """A network, a V3 key with its triggers, and a claim of layers for it."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_tensors

    from tests.support.passports import key_for, learnt

    key, model = key_for("deepipr", version=3), learnt()
    save_tensors(model.state_dict(), tmp_path / "m.safetensors")
    key.save(tmp_path / "v3.nmkey", None)
    inputs = torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    Triggers.of(inputs).save(tmp_path / "v3.triggers", key)
    (tmp_path / "net.py").write_text(SUSPECT)
    return tmp_path


def test_a_suspicion_is_raised_from_a_file_and_its_code(suspect: Path) -> None:
    from neuralmark import EmbedOptions, Passports, embed
    from tests.support.passports import LAYERS, learnt

    file, key = suspect / "m.safetensors", Key.load(suspect / "v3.nmkey")
    known = ("--key", suspect / "v3.nmkey", "--triggers", suspect / "v3.triggers", "--classes", 10)
    words = ("trigger", "suspect", file, *known, "--code", f"{suspect / 'net.py'}:normed")
    wanted = Passports(learnt(), key, LAYERS).suspicion(
        learnt(), Triggers.load(suspect / "v3.triggers", key), 10
    )
    layers = ("--tensor", "7", "--tensor", "4.weight")
    told = call(*words, *layers, "--json")
    assert told.code == 0, told.err
    assert told.json["matched"] == wanted.matched
    assert told.json["luck_log2"] == wanted.luck_log2
    assert (told.json["triggers"], told.json["classes"]) == (24, 10)
    assert "no verdict" in told.json["note"]
    shown = call(*words, *layers).out
    assert f"{wanted.matched} of 24 triggers" in shown
    assert "no verdict" in shown
    missing = call(*words).failed(2, "ParameterError")
    assert "--claim" in missing
    assert "--tensor" in missing
    marked = EmbedOptions(tensors=["4.weight", "7.weight"])
    made = embed(file, key, suspect / "o.safetensors", marked)
    claim = suspect / "o.safetensors.claim.json"
    assert made.claim is not None
    assert made.claim.placement == Passports(learnt(), key, LAYERS).placement
    for more in (("--claim", claim), ()):
        model = file if more else suspect / "o.safetensors"  # the claim beside it is followed
        told = call("trigger", "suspect", model, *words[3:], *more, "--json")
        assert told.code == 0, told.err
    both = call(*words, *layers, "--claim", claim)
    assert "give --claim or --tensor" in both.failed(2, "UsageError")


def test_what_cannot_raise_a_suspicion_is_named(suspect: Path) -> None:
    file = suspect / "m.safetensors"
    layers = ("--tensor", "4", "--tensor", "7")
    words = ("trigger", "suspect", file, "--triggers", suspect / "v3.triggers", *layers, "--code")
    code, key = f"{suspect / 'net.py'}:normed", ("--key", suspect / "v3.nmkey")
    said = call(*words, code, *key, "--classes", 7)
    assert "as many classes as it has" in said.failed(2, "TriggerMismatchError")
    call(*words, code, *key, "--classes", 1).failed(2, "ParameterError")
    call(*words, code, *key, "--classes", "ten").failed(2, "BadParameter")
    said = call(*words, f"{suspect / 'net.py'}:failing", *key, "--classes", 10)
    assert "KeyError: 'pixels'" in said.failed(2, "TriggerMismatchError")
    call(*words, f"{suspect / 'net.py'}:nobody", *key, "--classes", 10).failed(2, "ModelCodeError")
    Key.new(schemes.parameters("deepipr")).save(suspect / "v2.nmkey", None)
    said = call(*words, code, "--key", suspect / "v2.nmkey", "--classes", 10)
    assert "--set version=3" in said.failed(2, "ParameterError")
