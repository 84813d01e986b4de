"""The same battery for every attack that is discovered: it keeps to the contract."""

import json
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import Key, attacks
from neuralmark.attacks import Attack
from neuralmark.attacks.contract import KEY, TEST, WEIGHTS
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.attacks.engine.result import Result
from neuralmark.errors import AttackError, MissingDataError, UnknownAttackError
from tests.support.checks import one_line
from tests.support.models import QUICK, gaussian

NAMES = attacks.names()
DATA_FREE = [name for name in NAMES if not attacks.get(name).needs]
CHANGING = [name for name in DATA_FREE if attacks.get(name).kind == WEIGHTS]

SECRET = Key(QUICK, b"", salt=bytes(32), secret=bytes([7]) * 32)

OPEN = {("quantize", "to")}
"""Settings whose choices follow from a table; those of all others are named by their type."""

EVERY = pytest.mark.parametrize("name", NAMES)

pytestmark = pytest.mark.filterwarnings("default::neuralmark.errors.NeuralMarkWarning")


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small chain of layers that carries the mark of `SECRET`."""
    folder = tmp_path_factory.mktemp("marked")
    out = folder / "marked.safetensors"
    chain = {f"{i}.weight": gaussian(128, 128, seed=i) for i in (0, 2, 4)}
    chain |= {f"{i}.bias": gaussian(128, seed=i + 10) for i in (0, 2, 4)}
    save_file(chain, folder / "model.safetensors")
    unbound = neuralmark.EmbedOptions(anchor=False)  # tables in memory have no claim beside them
    neuralmark.embed(folder / "model.safetensors", SECRET, out, unbound)
    return out


def words(kind: Any) -> tuple[str, ...]:
    """What a setting of this type may be."""
    return get_args(kind) if get_origin(kind) is Literal else ()


@cache
def members(name: str) -> tuple[Attack, ...]:
    """The default attack and its sweep."""
    cls = attacks.get(name)
    return (cls(), *cls.sweep())


def samples(name: str) -> list[Attack]:
    """The default attack, and the weakest and the strongest of every variant."""
    chosen = {(each.variant, each.strength): each for each in members(name)[:1]}
    for sweep in by_variant(name):
        chosen |= {(each.variant, each.strength): each for each in (sweep[0], sweep[-1])}
    return list(chosen.values())


def by_variant(name: str) -> list[list[Attack]]:
    """The sweeps of an attack, one for each variant."""
    ordered = sorted(members(name)[1:], key=lambda each: each.variant)
    return [list(sweep) for _, sweep in groupby(ordered, key=lambda each: each.variant)]


def launched(attack: Attack, model: Any, seed: int = 0) -> Result | None:
    """The result; None from an attack that says why this model gives it nothing to work on."""
    try:
        return launch(attack, model, SECRET, options=LaunchOptions(seed=seed))
    except AttackError as error:
        one_line(error)
        return None


@EVERY
def test_one_dataclass_a_file(name: str) -> None:
    cls = attacks.get(name)
    module = import_module(cls.__module__)
    own = [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type)
        and issubclass(thing, Attack)
        and thing.__module__ == module.__name__
        and not thing.__name__.startswith("_")
    ]
    assert own == [cls]
    assert is_dataclass(cls)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert attacks.name_of(cls) == attacks.name_of(cls()) == name
    assert module.__doc__
    assert cls.__doc__


@EVERY
def test_it_says_what_it_does_and_what_to_expect(name: str) -> None:
    cls = attacks.get(name)
    for text in (cls.summary, cls.expects):
        assert text
        assert text == text.strip()
        assert "\n" not in text
        assert len(text) < 100
    assert cls.kind in (WEIGHTS, KEY, TEST)
    assert cls.needs <= {"model", "data", "others"}


@EVERY
def test_settings_have_meanings_and_defaults_that_fit(name: str) -> None:
    cls = attacks.get(name)
    for each in fields(cls):
        assert each.metadata["meaning"], each.name
        if each.metadata["choices"]:
            assert each.default in each.metadata["choices"]
            assert (name, each.name) in OPEN or set(words(each.type)) >= set(
                each.metadata["choices"]
            )
    default = cls()
    assert set(default.settings()) == {each.name for each in fields(cls)}
    assert json.loads(json.dumps(default.settings(), allow_nan=False)) == default.settings()
    assert cls(**default.settings()) == default


@EVERY
def test_the_dial_is_a_setting_and_has_a_unit(name: str) -> None:
    cls = attacks.get(name)
    if cls.dial:
        assert cls.dial in {each.name for each in fields(cls)}
        assert cls.unit()
    assert np.isfinite(cls().strength)


@EVERY
def test_sweeps_go_one_way_and_repeat_nothing(name: str) -> None:
    """Weak ones first; whether that is up or down depends on what the dial counts."""
    sweep = members(name)[1:]
    assert all(type(each) is attacks.get(name) for each in sweep)
    assert len({(each.variant, each.strength) for each in sweep}) == len(sweep)
    for each in by_variant(name):
        strengths = [one.strength for one in each]
        assert np.isfinite(strengths).all()
        assert strengths in (sorted(strengths), sorted(strengths, reverse=True))


@EVERY
def test_numbers_out_of_range_are_refused(name: str) -> None:
    cls = attacks.get(name)
    for each in fields(cls):
        for limit, beyond in (("low", -1), ("high", 1)):
            edge = each.metadata[limit]
            if edge is not None:
                with pytest.raises(neuralmark.errors.ParameterError, match=each.name) as caught:
                    cls(**{each.name: edge + beyond})
                one_line(caught.value)


@pytest.mark.parametrize("name", [name for name in NAMES if attacks.get(name).needs])
def test_what_an_attack_needs_is_asked_for(name: str, marked: Path) -> None:
    with pytest.raises(MissingDataError, match=name) as caught:
        launch(attacks.get(name)(), marked, SECRET)
    one_line(caught.value)


@pytest.mark.parametrize("name", CHANGING)
def test_weights_come_out_finite_and_the_input_stays(name: str, marked: Path) -> None:
    worked = 0
    for attack in samples(name):
        arrays = {key: value.copy() for key, value in load_file(marked).items()}
        before = {key: value.tobytes() for key, value in arrays.items()}
        result = launched(attack, arrays)
        if result is None:
            continue
        worked += 1
        assert {key: value.tobytes() for key, value in arrays.items()} == before
        assert all(value.flags.writeable for value in arrays.values())
        assert result.weights is not None
        assert all(np.isfinite(value).all() for value in result.weights.values())
        assert result.before is not None
        assert result.before.verified
        assert result.after is not None or result.unreadable
    assert worked


@pytest.mark.parametrize("name", CHANGING)
def test_a_file_is_left_as_it_was_and_a_seed_repeats(name: str, marked: Path) -> None:
    bytes_before = marked.read_bytes()
    for attack in samples(name):
        one, two = (launched(attack, marked, seed=3) for _ in range(2))
        if one is None or two is None:
            assert one is two
            continue
        assert one.weights is not None
        assert two.weights is not None
        assert one.weights.keys() == two.weights.keys()
        for tensor, value in one.weights.items():
            assert np.array_equal(value, two.weights[tensor]), tensor
        first, second = one.to_dict(), two.to_dict()
        del first["seconds"], second["seconds"]
        assert first == second
    assert marked.read_bytes() == bytes_before


@pytest.mark.parametrize("name", DATA_FREE)
def test_results_are_json(name: str, marked: Path) -> None:
    attack = attacks.get(name)()
    result = launched(attack, marked)
    assert result is not None
    told = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert told["attack"] == name
    assert told["settings"] == attack.settings()
    assert told["strength"] == attack.strength
    assert told["before"]["verified"]
    assert told["seconds"] >= 0


@EVERY
def test_a_misspelt_name_suggests_the_near_one(name: str) -> None:
    with pytest.raises(UnknownAttackError, match=f"did you mean '{name}'") as caught:
        attacks.get(f"{name}x")
    one_line(caught.value)


def test_a_name_that_is_near_to_nothing_lists_what_is_known() -> None:
    with pytest.raises(UnknownAttackError, match=r"known: .*noise"):
        attacks.get("zzzzzzzzzz")


def test_a_third_party_attack_is_found_through_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: Path
) -> None:
    info = tmp_path / "acme_attack-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-attack\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[neuralmark.attacks]\nacme = acme_attack:Negate\n")
    (tmp_path / "acme_attack.py").write_text(
        "from dataclasses import dataclass\n"
        "from neuralmark.attacks import Attack, Outcome\n"
        "@dataclass(frozen=True)\n"
        "class Negate(Attack):\n"
        "    summary = 'negate'\n"
        "    expects = 'every bit flips'\n"
        "    def run(self, scene):\n"
        "        return Outcome({name: -w for name, w in scene.targets()})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "acme" in attacks.names()
    result = launch(attacks.get("acme")(), marked, SECRET)
    assert result.attack == "acme"
    assert result.after is not None
    assert result.after.matched == 0
