"""neuralmark schemes, and the journey of a key of the newer ones: new, embed, verify."""

from dataclasses import asdict
from pathlib import Path

import pytest

from neuralmark import schemes
from tests.support.commands import call
from tests.support.models import gaussian, saved

FACTS = ("origin", "bit", "needs", "survives", "costs", "proves")


def test_facts_are_those_of_the_classes() -> None:
    told = {each["name"]: each for each in call("schemes", "--json").json["schemes"]}
    assert list(told) == schemes.names()
    for name, each in told.items():
        scheme = schemes.get(name)
        assert {fact: each[fact] for fact in asdict(scheme.facts)} == asdict(scheme.facts)
        assert all(each[fact] for fact in FACTS), name
        assert each["settings"] == dict(scheme.settings)
        assert each["post_hoc"] == scheme.writes
    rebuilt = {name for name, each in told.items() if each["reconstruction"]}
    assert rebuilt == {"feng", "trapdoor", "votemark"}


def test_they_are_printed_and_reconstructions_say_so() -> None:
    text = call("schemes").out
    for name in schemes.names():
        facts = schemes.get(name).facts
        assert facts.survives in text
        assert facts.proves in text
    assert "feng (Feng and Zhang 2020); a reconstruction" in text
    assert "alpha=10.0, beta=10.0, loss=bce, norm=0.0" in text


@pytest.mark.parametrize(
    ("scheme", "setting"),
    [
        ("stdm", "loss=absolute"),
        ("feng", "transform=haar"),
        ("deepipr", "version=3"),
        ("passport-aware", "side=4"),
    ],
)
def test_a_key_is_made_embedded_and_verified(tmp_path: Path, scheme: str, setting: str) -> None:
    model = saved(tmp_path / "m.safetensors", **{"conv.weight": gaussian(256, 64, 3, 3)})
    key, out = tmp_path / "k.nmkey", tmp_path / "o.safetensors"
    made = call("key", "new", key, "--scheme", scheme, "--set", setting, "--no-passphrase")
    assert made.code == 0
    assert setting.replace("=", " ") in made.out
    assert call("verify", model, "--key", key).code == 1
    assert call("embed", model, "--key", key, "-o", out).code == 0
    shown = call("verify", out, "--key", key, "--json").json
    assert (shown["status"], shown["matched"], shown["scheme"]) == ("verified", 256, scheme)
    assert (shown["certified_radius"] is not None) == (scheme != "stdm")
    inspected = call("inspect", model, "--key", key)
    assert inspected.code == 0


def test_a_filter_without_pools_is_told_as_such(tmp_path: Path) -> None:
    wanted = ("--scheme", "deepipr", "--filter", "stream", "--rounds", "2", "--no-passphrase")
    made = call("key", "new", tmp_path / "k.nmkey", *wanted)
    assert "256 bits, 2 rounds, stream filter, side 8, version 2" in made.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stdm", "--set", "beta=nan"), "a finite number or a short word"),
        (("stdm", "--set", "beta=1e400"), "a finite number or a short word"),
        (("deepipr", "--set", "version=2", "--set", "version=3"), "--set gives version twice"),
        (("feng", "--bits", "1024", "--set", "block=256"), "fewer bits, or smaller blocks"),
    ],
)
def test_settings_that_cannot_be_are_named(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    made = call("key", "new", tmp_path / "k.nmkey", "--no-passphrase", "--scheme", *words)
    assert made.code == 2
    assert said in made.err
    assert not (tmp_path / "k.nmkey").exists()


def test_an_attack_that_runs_the_network_names_the_option(tmp_path: Path) -> None:
    model = saved(tmp_path / "m.safetensors")
    said = call("attack", "fold-in", model).failed(2, "MissingDataError")
    assert "neuralmark attack fold-in MODEL --code FILE.py:NAME" in said
