"""Every scheme that is found goes through the same battery."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import neuralmark
from neuralmark import Key, Parameters, Verdict, schemes
from neuralmark.core.key import Filter
from neuralmark.core.readout import Known
from neuralmark.errors import (
    KeyFileError,
    ParameterError,
    TooFewCarriersError,
    UnknownSchemeError,
    UnsuitableTensorError,
)
from neuralmark.marking.options import Mode
from tests.support.checks import one_line
from tests.support.images import LAYER, network
from tests.support.schemes import ALL, MARKING, key_of, layers, parameters, placement, trained

FILTERED = [
    (name, how)
    for name in ALL
    if schemes.get(name).filters[0] == "none"
    for how in schemes.get(name).filters[1:]
]


def found(model: nn.Module | Path, key: Key) -> Verdict:
    return neuralmark.verify(model, key, tensors=layers(key.parameters.scheme))


@pytest.mark.parametrize("name", MARKING)
def test_embeds_survives_saving_and_is_foreign_to_others(name: str, tmp_path: Path) -> None:
    key = key_of(parameters(name))
    model = trained(key)
    verdict = found(model, key)
    assert verdict.rate == 1.0
    assert verdict.verified
    assert verdict.parameters.scheme == name

    path = tmp_path / "m.safetensors"
    save_file(model.state_dict(), path)
    loaded = found(path, key)
    assert (loaded.matched, loaded.status) == (verdict.matched, verdict.status)
    assert loaded.to_dict()["scheme"] == name

    for number in range(2, 6):
        foreign = found(path, key_of(key.parameters, number))
        assert 0.3 < foreign.rate < 0.7
        assert not foreign.verified


def test_vanillamark_and_votemark_take_every_filter() -> None:
    hows = ("stream", "tiled", "private")
    both = [(name, how) for name in ("vanillamark", "votemark") for how in hows]
    passports = [(name, "stream") for name in ("deepipr", "passport-aware", "trapdoor")]
    assert sorted([*both, *passports]) == sorted(FILTERED)
    published = schemes.parameters("votemark", filter="tiled")
    assert (published.pools, published.rounds) == (512, 4)
    assert schemes.parameters("votemark", filter="stream").rounds == 1
    assert schemes.parameters("votemark", filter="private").rounds == 4
    assert schemes.parameters("votemark").filter == "none"


@pytest.mark.parametrize(("name", "how"), FILTERED)
def test_filters_compose_with_the_schemes_that_take_one(name: str, how: Filter) -> None:
    key = key_of(parameters(name, how))
    model = trained(key, steps=900)
    assert found(model, key).verified
    assert 0.3 < found(model, key_of(key.parameters, 2)).rate < 0.7


@pytest.mark.parametrize("name", [name for name in MARKING if schemes.get(name).writes])
def test_projection_and_post_hoc_writing(name: str, tmp_path: Path) -> None:
    key = key_of(parameters(name))
    model = trained(key, steps=3, mode="projection")
    assert found(model, key).verified
    save_file(network(10).state_dict(), tmp_path / "m.safetensors")
    made = neuralmark.embed(
        tmp_path / "m.safetensors",
        key,
        tmp_path / "o.safetensors",
        options=neuralmark.EmbedOptions(tensors=layers(name), strength=2.0),
    )
    assert made.verdict is not None
    assert made.verdict.verified
    assert made.claim is not None
    loose = replace(made.claim, anchor=None)  # it is bound to its anchor
    assert not neuralmark.verify(tmp_path / "o.safetensors", key, claim=loose).verified


@pytest.mark.parametrize("name", [name for name in ALL if not schemes.get(name).writes])
def test_what_cannot_be_written_says_so(name: str, tmp_path: Path) -> None:
    key = key_of(parameters(name))
    save_file(network(10).state_dict(), tmp_path / "m.safetensors")
    with pytest.raises(ParameterError, match=name):
        neuralmark.embed(tmp_path / "m.safetensors", key, tmp_path / "o.safetensors")
    with pytest.raises(ParameterError, match=name):
        neuralmark.imprint(network(10), key, tensors=layers(name))


@pytest.mark.parametrize("name", ALL)
def test_numpy_and_torch_read_the_same(name: str) -> None:
    key = key_of(parameters(name))
    here = placement(name)
    mark = key.at(here)
    carriers = schemes.of(mark).carriers(mark, here)
    pooled = np.random.default_rng(0).standard_normal(carriers.pools)
    scheme = schemes.of(mark)
    ours = scheme.logits(Known.of(mark), pooled)
    tensor = torch.from_numpy(pooled)
    theirs = scheme.logits(Known.of(mark, tensor), tensor).numpy()
    assert ours.shape == (160,)
    np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_the_loss_has_the_gradient_that_training_adds(name: str) -> None:
    key = key_of(parameters(name))
    one, two = network(10), network(10)
    modes: tuple[tuple[torch.nn.Module, Mode], ...] = ((one, "gradient"), (two, "loss"))
    for model, mode in modes:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        mark = neuralmark.attach(
            model,
            optimizer,
            key,
            options=neuralmark.AttachOptions(tensors=layers(name), mode=mode, strength=3.0),
        )
        zero = torch.stack([0.0 * parameter.sum() for parameter in model.parameters()]).sum()
        (zero + mark.loss_term() if mode == "loss" else zero).backward()
        optimizer.step()
    torch.testing.assert_close(one[2].weight, two[2].weight, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ALL)
def test_a_key_file_keeps_the_scheme(name: str, tmp_path: Path) -> None:
    key = Key.new(parameters(name))
    key.save(tmp_path / "k.nmkey", None)
    again = Key.load(tmp_path / "k.nmkey")
    assert again.parameters == key.parameters
    here = placement(name)
    assert (again.at(here).bits == key.at(here).bits).all()
    assert (again.at(here).matrix == key.at(here).matrix).all()


@pytest.mark.parametrize("name", ALL)
def test_everything_shapes_the_mark(name: str) -> None:
    here = placement(name)
    key = key_of(parameters(name))
    bits = key.at(here).bits
    others = (
        key_of(key.parameters, 2).at(here),
        Key(key.parameters, b"owner=B", salt=bytes(32), secret=bytes([1]) * 32).at(here),
        key.at((("other.weight", here[0][1]), *here[1:])),
        key.at(here, bytes(64)),
        key.at(here, bytes([1]) * 64),
    )
    for other in others:
        assert 0.3 < (bits == other.bits).mean() < 0.7


@pytest.mark.parametrize("name", MARKING)
def test_a_freely_chosen_key_never_verifies(name: str, tmp_path: Path) -> None:
    """Whatever the scheme, a key whose arrays were chosen may match but proves nothing."""
    model = network(10)
    chosen = parameters(name)
    here = placement(name)
    mark = key_of(chosen).at(here)
    scheme = schemes.get(name)
    if name == "neuralmark":
        raw = Key.chosen(chosen, mark.matrix)
    else:
        carriers = scheme.carriers(mark, here)
        laid = [model.get_parameter(layer).detach().double().reshape(-1) for layer, _ in here]
        values = torch.cat(laid).numpy()
        pooled = values[carriers.positions()].reshape(-1, carriers.pools).mean(0)
        read = scheme.logits(Known.of(mark), pooled) > 0
        positions = mark.extra.get("filter")
        raw = Key.chosen(chosen, mark.matrix, bits=read.astype(np.uint8), positions=positions)
    raw.save(tmp_path / "raw.nmkey", None)
    loaded = Key.load(tmp_path / "raw.nmkey")
    assert loaded.fingerprint == raw.fingerprint
    assert loaded.kind == "raw"
    verdict = found(model, loaded)
    assert not verdict.verified
    if name not in ("neuralmark", "trapdoor", "votemark"):  # hashed bits; other noise
        assert (verdict.matched, verdict.status) == (160, "matches-unproven")


@pytest.mark.parametrize("name", MARKING)
def test_too_small_a_tensor_is_refused(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    key = key_of(parameters(name))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if name in ("stdm", "vanillamark", "votemark"):  # 4 pools: can be read, but never written
        for mode in ("gradient", "projection"):
            with pytest.raises(neuralmark.errors.InfeasibleError):
                neuralmark.attach(
                    model,
                    optimizer,
                    key,
                    options=neuralmark.AttachOptions(tensors=[LAYER], mode=mode),
                )
        return
    with pytest.raises(TooFewCarriersError):
        neuralmark.attach(model, optimizer, key, options=neuralmark.AttachOptions(tensors=[LAYER]))


def test_unknown_names_and_settings_are_refused() -> None:
    with pytest.raises(UnknownSchemeError, match="did you mean 'votemark'"):
        schemes.get("votmark")
    with pytest.raises(UnknownSchemeError):
        Key.new(Parameters(scheme="nothing"))
    with pytest.raises(ParameterError, match="'nois'"):
        schemes.parameters("votemark", own={"nois": 1.0})
    with pytest.raises(ParameterError, match="odd"):
        schemes.parameters("votemark", own={"votes": 10})
    for name, chosen in (
        ("vanillamark", "secret"),
        ("neuralmark", "private"),
        ("greedymark", "tiled"),
    ):
        with pytest.raises(ParameterError, match=f"the filter of {name} must be"):
            schemes.parameters(name, filter=chosen)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="'filter' is not the name of a setting"):
        schemes.parameters("vanillamark", own={"filter": "private"})
    with pytest.raises(ParameterError, match="without a filter"):
        schemes.parameters("vanillamark", rounds=4)
    with pytest.raises(ParameterError, match="neither pools nor rounds"):
        schemes.parameters("greedymark", pools=4)
    with pytest.raises(ParameterError, match="like"):
        schemes.parameters("greedymark", own={"row": "long"})


@pytest.mark.parametrize("name", schemes.names())
def test_a_setting_that_is_a_whole_number_must_be_one(name: str) -> None:
    scheme = schemes.get(name)
    for setting, usual in scheme.settings.items():
        if type(usual) is not int:
            continue
        for odd in (float(usual), usual + 0.5):
            with pytest.raises(ParameterError, match=f"{setting} must be a whole number") as caught:
                schemes.parameters(name, own={setting: odd})
            one_line(caught.value)
        assert schemes.parameters(name, own={setting: usual}).setting(setting) == usual


def test_a_secret_beyond_the_cap_is_refused() -> None:
    key = key_of(schemes.parameters("vanillamark"))
    with pytest.raises(UnsuitableTensorError, match="cap"):
        key.at((("w", (4096, 4096)),))


def test_a_key_file_of_an_unknown_scheme_is_refused(tmp_path: Path) -> None:
    key = Key.new(parameters("votemark"))
    key.save(tmp_path / "k.nmkey", None)
    text = (tmp_path / "k.nmkey").read_text()
    import base64
    import json

    container = json.loads(text)
    payload = base64.b64decode(container["payload"]).replace(b"votemark", b"votemarx")
    container["payload"] = base64.b64encode(payload).decode()
    (tmp_path / "k.nmkey").write_text(json.dumps(container))
    with pytest.raises(KeyFileError, match="votemarx"):
        Key.load(tmp_path / "k.nmkey")
