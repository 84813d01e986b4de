"""Marks of every spread are written where `auto` says and found again without a claim."""

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import Key, Parameters
from neuralmark.core.bound import bound_log2, boundary
from neuralmark.errors import ParameterError
from neuralmark.marking import placement
from neuralmark.marking.options import Spread
from tests.support.commands import call
from tests.support.models import embed_unbound, gaussian, plain_key

PARAMETERS = Parameters(bits=160, pools=320)
LAYERS = 12
TRIALS = 27
"""Three lists, every tensor, lists by rows and under prefixes."""
SPREADS: tuple[Spread, ...] = ("wide", "quick", "all")
COUNTS = {"wide": 6, "quick": 2, "all": LAYERS}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many weights for each pool as make six layers wide and two quick."""
    monkeypatch.setitem(placement.WEIGHTS_PER_POOL, "wide", 6 * 128 * 128 // 320)
    monkeypatch.setitem(placement.WEIGHTS_PER_POOL, "quick", 2 * 128 * 128 // 320)


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    tensors = {f"layers.{i}.weight": gaussian(128, 128, seed=i) for i in range(LAYERS)}
    save_file(tensors, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


def changed(before: Path, after: Path) -> list[str]:
    old, new = load_file(before), load_file(after)
    return [name for name in old if (old[name] != new[name]).any()]


@pytest.mark.parametrize("spread", SPREADS)
def test_a_mark_of_every_spread_is_found_without_a_claim(
    tmp_path: Path, deep: Path, spread: Spread
) -> None:
    key, out = Key.new(PARAMETERS), tmp_path / "o.safetensors"
    made = embed_unbound(deep, key, out, neuralmark.EmbedOptions(spread=spread))
    assert len(made.tensors) == COUNTS[spread]
    assert sorted(made.tensors) == sorted(changed(deep, out))
    verdict = neuralmark.verify(out, key)
    assert verdict.verified
    assert verdict.matched == 160
    assert [name for name, _ in verdict.placement] == list(made.tensors)
    assert verdict.trials == TRIALS
    assert verdict.boundary == boundary(160, TRIALS)
    assert verdict.bound_log2 == bound_log2(160, 160, TRIALS)
    claimed = neuralmark.verify(out, key, claim=made.claim)
    assert (claimed.trials, claimed.mapping) == (2, "names")


def test_one_tensor_alone_is_found_without_a_claim(tmp_path: Path, deep: Path) -> None:
    key, out = Key.new(PARAMETERS), tmp_path / "o.safetensors"
    embed_unbound(deep, key, out, neuralmark.EmbedOptions(tensors=["layers.9.weight"]))
    verdict = neuralmark.verify(out, key)
    assert verdict.verified
    assert verdict.placement == (("layers.9.weight", (128, 128)),)
    assert verdict.trials == TRIALS


def test_two_named_tensors_are_not_found_without_the_claim(tmp_path: Path, deep: Path) -> None:
    key, out = Key.new(PARAMETERS), tmp_path / "o.safetensors"
    made = embed_unbound(
        deep, key, out, neuralmark.EmbedOptions(tensors=["layers.9.weight", "layers.3.weight"])
    )
    assert any("only with the claim" in warning for warning in made.warnings)
    assert not neuralmark.verify(out, key).verified
    assert neuralmark.verify(out, key, claim=made.claim).verified


def test_lists_that_are_the_same_count_once(tmp_path: Path) -> None:
    key, source = Key.new(PARAMETERS), tmp_path / "m.safetensors"
    save_file({"a.weight": gaussian(128, 128)}, source)
    assert neuralmark.verify(source, key).trials == 6  # stored, by rows, under four prefixes
    save_file({f"{i}.weight": gaussian(128, 128, seed=i) for i in range(2)}, source)
    assert neuralmark.verify(source, key).trials == 8


def test_quick_is_found_among_the_layers_of_a_file_in_another_order(
    tmp_path: Path, deep: Path
) -> None:
    key, out = Key.new(PARAMETERS), tmp_path / "o.npz"
    made = embed_unbound(
        deep, key, tmp_path / "o.safetensors", neuralmark.EmbedOptions(spread="wide")
    )
    tensors = load_file(tmp_path / "o.safetensors")
    np.savez(out, **{name: tensors[name] for name in reversed(list(tensors))})  # type: ignore[arg-type]
    verdict = neuralmark.verify(out, key)
    assert verdict.verified
    assert [name for name, _ in verdict.placement] == list(made.tensors)


def test_an_unknown_spread_is_refused(deep: Path) -> None:
    with pytest.raises(ParameterError, match="wide, quick, all"):
        neuralmark.embed(
            deep,
            Key.new(PARAMETERS),
            options=neuralmark.EmbedOptions(spread="narrow"),  # type: ignore[arg-type]
        )


@pytest.mark.parametrize("spread", SPREADS)
def test_live_models_take_the_same_tensors(deep: Path, spread: Spread) -> None:
    import torch

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.Linear(128, 128, bias=False) for _ in range(LAYERS))
    key = Key.new(PARAMETERS)
    live = neuralmark.imprint(model, key, spread=spread)
    file = neuralmark.embed(deep, key, options=neuralmark.EmbedOptions(spread=spread))
    assert live.tensors == file.tensors
    assert neuralmark.verify(model, key).verified


@pytest.mark.parametrize("spread", SPREADS)
def test_the_command_line(tmp_path: Path, deep: Path, spread: Spread) -> None:
    key, out = plain_key(tmp_path / "k.nmkey"), tmp_path / "o.safetensors"
    done = call("embed", deep, "--key", key, "-o", out, "--spread", spread, "--json")
    assert done.code == 0, done
    assert len(done.json["tensors"]) == COUNTS[spread]
    assert call("verify", out, "--key", key).code == 0
    exact = call("inspect", deep, "--spread", spread, "--key", key, "--json").json
    assert exact["auto"] == done.json["tensors"]
    assert exact["why"].startswith(f"{spread}: ")
    read = {row["name"] for row in exact["rows"] if row["grid"] is not None}
    assert read == set(exact["auto"])


def test_wide_is_the_default_on_the_command_line(tmp_path: Path, deep: Path) -> None:
    key = plain_key(tmp_path / "k.nmkey")
    told = call("embed", deep, "--key", key, "--dry-run", "--json").json
    assert len(told["tensors"]) == COUNTS["wide"]
    call("embed", deep, "--key", key, "--dry-run", "--spread", "narrow").failed(2, "BadParameter")
    for command in ("embed", "inspect"):
        text = " ".join(call(command, "--help").out.split())
        assert "--spread [wide|quick|all]" in text
        assert "many of all depths, the few largest, or everything" in text


def test_headers_alone_are_enough_to_see_what_auto_takes(tmp_path: Path) -> None:
    """A file of 480 MB of which only the header was ever written."""
    header, at = {}, 0
    for i in range(60):
        shape = (1024, 4096)
        size = 2 * math.prod(shape)
        header[f"layers.{i}.weight"] = {
            **{"dtype": "BF16", "shape": shape},
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    told = call("inspect", path, "--headers-only", "--spread", "all", "--json").json
    assert len(told["auto"]) == 60
    assert all(row["grid"] is None and row["obstacle"] is None for row in told["rows"])
    shown = call("inspect", path, "--headers-only")
    assert shown.code == 0
    assert "BF16   1024x4096  -" in shown.out


def test_headers_only_reads_no_weights(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a.weight": np.zeros((128, 128), np.float32)}, path)
    looked = call("inspect", path, "--json").json["rows"][0]
    assert looked["obstacle"] == "all values are zero"
    unseen = call("inspect", path, "--headers-only", "--json").json["rows"][0]
    assert unseen["obstacle"] is None
    assert "--headers-only" in call("inspect", "--help").out
