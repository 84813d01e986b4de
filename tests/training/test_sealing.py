"""The end of a training: a second mark, bound to an anchor of the trained weights."""

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from torch import nn

import neuralmark
from neuralmark import AttachOptions, Claim, EmbedOptions, Key, Parameters, attach, verify
from neuralmark.anchors.building import anchor_from_original
from neuralmark.anchors.sealed import load_anchor
from neuralmark.errors import AnchorMismatchError, OutputError, ParameterError, UsageError
from tests.support import architectures
from tests.support.checks import content_of

SMALL = Parameters(bits=160, pools=320)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    return torch.from_numpy(data.data).float() / 16, torch.from_numpy(data.target)


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 10))
    return nn.Sequential(*layers).to(dtype)


def trained(
    key: Key, options: AttachOptions | None = None, dtype: torch.dtype = torch.float32
) -> tuple[nn.Sequential, Any]:
    model = network(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    mark = attach(model, optimizer, key, options)
    inputs, labels = digits()
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs.to(dtype)).float(), labels).backward()
        optimizer.step()
    return model, mark


def accuracy(model: nn.Module, dtype: torch.dtype = torch.float32) -> float:
    inputs, labels = digits()
    return float((model(inputs.to(dtype)).argmax(1) == labels).double().mean())


def test_both_marks_are_there_afterwards(tmp_path: Path) -> None:
    key = Key.new(SMALL)
    model, mark = trained(key)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    first, before = mark.claim(), accuracy(model)
    out = tmp_path / "model.safetensors"
    done = mark.seal(out)
    assert done.claim_file == f"{out}.claim.json"
    assert done.anchor_file == f"{out}.anchor"
    assert done.output is None
    assert not out.exists()
    assert done.verdict.verified
    assert done.claim.anchor is not None
    assert done.verdict.anchor_digest == done.claim.anchor.digest
    ((then, now),) = done.others
    assert then.verified
    assert now.verified
    assert done.warnings == ()
    save_file(model.state_dict(), out)
    assert Claim.load(done.claim_file) == done.claim
    assert verify(out, key, claim=done.claim_file).matched == 160
    assert verify(out, key).matched == 160  # by the claim beside it
    assert verify(out, key, claim=first).verified  # the mark that was trained in
    anchor = load_anchor(done.anchor_file, key)
    assert anchor.digest == done.claim.anchor_digest
    assert stat.S_IMODE(Path(done.anchor_file).stat().st_mode) == 0o600
    for name, value in weights.items():  # of the weights as training left them
        near = anchor[name]
        assert np.linalg.norm(near - value.numpy()) < 0.25 * np.linalg.norm(value.numpy())
    unsealed = tmp_path / "unsealed.safetensors"
    save_file(weights, unsealed)
    assert anchor_from_original(unsealed, done.claim).digest == anchor.digest
    with pytest.raises(AnchorMismatchError):
        anchor_from_original(out, done.claim)
    assert accuracy(model) > before - 0.02
    renamed = {f"net.{i}": value for i, value in enumerate(model.state_dict().values())}
    assert verify(renamed, key, claim=done.claim).verified  # by the anchor beside its file


def test_sealing_ends_the_marking(tmp_path: Path) -> None:
    model, mark = trained(Key.new(SMALL))
    mark.seal(tmp_path / "m")
    steps = mark.steps
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    assert mark.steps == steps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types(tmp_path: Path, dtype: torch.dtype) -> None:
    key = Key.new(SMALL)
    model, mark = trained(key, dtype=dtype)
    out = tmp_path / "m.safetensors"
    done = mark.seal(out)
    save_file(model.state_dict(), out)
    assert verify(out, key).verified
    assert load_anchor(done.anchor_file, key).digest == done.claim.anchor_digest


def test_a_mark_trained_by_gradient_is_sealed_too(tmp_path: Path) -> None:
    key = Key.new(SMALL)
    _, mark = trained(key, AttachOptions(mode="gradient", strength=2.0))
    done = mark.seal(tmp_path / "m.safetensors", EmbedOptions(strength=2.0))
    assert done.verdict.verified
    assert done.strength == 2.0
    assert done.others[0][1].matched >= done.others[0][0].matched - 8


def test_tensors_and_budget_can_be_chosen(tmp_path: Path) -> None:
    key = Key.new(SMALL)
    model, mark = trained(key)
    frozen = model.state_dict()["4.weight"].clone()
    done = mark.seal(tmp_path / "m", EmbedOptions(tensors=["2.weight"], budget=6))
    assert done.tensors == ("2.weight",)
    assert done.change_relative < 0.0602
    assert torch.equal(model.state_dict()["4.weight"], frozen)


def test_heads_come_from_the_configuration(tmp_path: Path) -> None:
    model = architectures.llama().train()
    key = Key.new(SMALL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mark = attach(model, optimizer, key)
    tokens = architectures.tokens()
    for _ in range(3):
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
    out = tmp_path / "m.safetensors"
    done = mark.seal(out)
    assert done.claim is not None
    assert done.claim.anchor is not None
    assert done.claim.anchor.heads == 8
    save_model(model, str(out))
    assert verify(out, key).verified


def test_tied_weights_of_a_live_model(tmp_path: Path) -> None:
    model = architectures.gpt2().train()
    key = Key.new(SMALL)
    mark = attach(model, torch.optim.SGD(model.parameters(), lr=0.01), key)
    done = mark.seal(tmp_path / "m")
    assert done.anchor_file is not None
    tied = load_anchor(done.anchor_file, key).skeleton.tied
    assert tied == (("lm_head.weight", "transformer.wte.weight"),)


@pytest.mark.parametrize(
    "options",
    [
        EmbedOptions(anchor=False),
        EmbedOptions(base="public.safetensors"),
        EmbedOptions(check=lambda _: True),
        EmbedOptions(other_keys=[Key.new(SMALL)]),
        "strength",
    ],
)
def test_what_only_files_can_do_is_refused(tmp_path: Path, options: Any) -> None:
    _, mark = trained(Key.new(SMALL))
    with pytest.raises(ParameterError):
        mark.seal(tmp_path / "m", options)
    assert content_of(tmp_path) == {}


def test_what_cannot_be_written_leaves_weights_and_disk_alone(tmp_path: Path) -> None:
    key = Key.new(SMALL)
    model, mark = trained(key)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (tmp_path / "m.anchor").write_text("somebody's")
    content = content_of(tmp_path)
    with pytest.raises(OutputError, match="no anchor of this key"):
        mark.seal(tmp_path / "m")
    with pytest.raises(OutputError, match="create it first"):
        mark.seal(tmp_path / "no" / "m")
    with pytest.raises(UsageError):
        mark.seal(tmp_path / "n", EmbedOptions(budget=1e-9))
    assert content_of(tmp_path) == content
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert mark.seal(tmp_path / "m", overwrite=True).verdict.verified


def test_computed_weights_cannot_be_sealed(tmp_path: Path) -> None:
    key = Key.new(SMALL)
    model = network()
    nn.utils.parametrizations.weight_norm(model[2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mark = attach(model, optimizer, key, AttachOptions(tensors=["2.weight"], mode="gradient"))
    with pytest.raises(UsageError, match="computed"):
        mark.seal(tmp_path / "m", EmbedOptions(tensors=["2.weight"]))
    assert content_of(tmp_path) == {}


def test_sealed_again_it_is_renewed(tmp_path: Path) -> None:
    key = Key.new(SMALL)
    model, mark = trained(key)
    out = tmp_path / "m.safetensors"
    first = mark.seal(out)
    again = mark.seal(out)
    assert again.claim.anchor != first.claim.anchor
    save_file(model.state_dict(), out)
    assert verify(out, key).verified
    assert load_file(out).keys() == model.state_dict().keys()


def test_only_the_process_that_writes_writes(tmp_path: Path) -> None:
    _, mark = trained(Key.new(SMALL))
    done = mark.seal(tmp_path / "m", writes=False)
    assert done.verdict.verified
    assert content_of(tmp_path) == {}


def test_a_loose_claim_does_not_find_the_sealed_mark(tmp_path: Path) -> None:
    key = Key.new(SMALL)
    model, mark = trained(key)
    done = mark.seal(tmp_path / "m", EmbedOptions(spread="quick"))
    loose = replace(done.claim, anchor=None)
    assert loose.placement == mark.placement
    found = neuralmark.verify(model, key, claim=loose)
    assert found.anchor_digest is None
    assert found.verified  # the mark that was trained in lies in the same tensors


@pytest.mark.parametrize(("heads", "told"), [(8, False), (7, True)])
def test_heads_that_do_not_fit_are_told(heads: int, told: bool, tmp_path: Path) -> None:
    model, key = architectures.llama(), Key.new(SMALL)
    model.config.num_attention_heads = heads  # type: ignore[union-attr]
    mark = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), key)
    with pytest.raises(ParameterError, match="9 attention heads do not fit"):
        mark.seal(tmp_path / "m", EmbedOptions(heads=9))
    done = mark.seal(tmp_path / "m")
    assert any("7 attention heads" in each for each in done.warnings) is told
    assert done.claim is not None
    assert done.claim.anchor is not None
    assert done.claim.anchor.heads == (0 if told else 8)
