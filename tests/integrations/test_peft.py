"""LoRA: the paper's mark in scale·B·A, and the recommended ones in base or merged weights."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

import neuralmark
from neuralmark import Claim, Key, Parameters
from neuralmark.core.carriers import Carriers
from neuralmark.errors import NeuralMarkWarning, UnsuitableTensorError
from neuralmark.training.derived import derived_of
from tests.support.tiny import Rows, gpt2

PAPER = Parameters(bits=160, pools=320, rounds=10, filter="tiled")
"""The paper's ten rounds; fewer pools, as a tiny model leaves few carriers."""
WIDTH = 192

NAME = "transformer.h.1.attn.c_attn"


def paper_key(width: int = WIDTH) -> Key:
    """A key with carriers enough after ten rounds: some keys leave none."""
    for seed in range(2000):
        key = Key(PAPER, salt=bytes(32), secret=seed.to_bytes(32, "little"))
        placement = ((f"{NAME}.lora_delta", (width, 3 * width)),)
        if Carriers.of(key.at(placement), 3 * width * width).per_pool >= 2:
            return key
    raise AssertionError("no key with carriers enough")


def lora(model: Any, *, seed: int = 0, targets: list[str] | None = None, **options: Any) -> Any:
    torch.manual_seed(seed)
    config = LoraConfig(
        r=4,
        lora_alpha=32,
        target_modules=targets or ["c_attn"],
        fan_in_fan_out=not targets,
        **options,
    )
    return get_peft_model(model, config)


def stir(model: torch.nn.Module, seed: int = 0) -> None:
    """B is zero at first; give it values."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data.copy_(0.02 * noise)


class Plain(torch.nn.Module):
    """A Linear layer, stored [out, in]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.proj = torch.nn.Linear(48, 80)


def layer(kind: str, dtype: torch.dtype) -> tuple[Any, str, Any]:
    """A model, the name of its product, and the layer of PEFT that can form it."""
    if kind == "conv1d":
        model = lora(gpt2()).to(dtype)
        module = model.base_model.model.transformer.h[1].attn.c_attn
        name = f"base_model.model.{NAME}.lora_delta"
    else:
        model = lora(Plain(), targets=["proj"], use_rslora=True).to(dtype)
        module = model.base_model.model.proj
        name = "base_model.model.proj.lora_delta"
    stir(model)
    return model, name, module


@pytest.mark.parametrize("kind", ["conv1d", "linear"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_carriers_of_the_product_equal_the_formed_ones(kind: str, dtype: torch.dtype) -> None:
    model, name, module = layer(kind, dtype)
    made = derived_of(model)[name]
    formed = module.get_delta_weight("default")
    assert made.shape == tuple(formed.shape) == tuple(module.base_layer.weight.shape)
    index = torch.randperm(formed.numel(), generator=torch.Generator().manual_seed(0))[:500]
    chosen = made.at(index)
    expected = formed.reshape(-1)[index]
    rounding = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(chosen, expected.float(), rtol=rounding, atol=rounding * 0.1)
    torch.testing.assert_close(
        made.whole().float(), formed.float(), rtol=rounding, atol=rounding * 0.1
    )


@pytest.mark.parametrize("kind", ["conv1d", "linear"])
def test_the_gradient_equals_autograd_through_the_formed_product(kind: str) -> None:
    model, name, module = layer(kind, torch.float64)
    parameters = Parameters(bits=32, pools=64, rounds=2)
    key = Key(parameters, salt=bytes(32), secret=bytes(32))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.0)
    mark = neuralmark.attach(
        model,
        optimizer,
        key,
        options=neuralmark.AttachOptions(target="lora-delta", tensors=[name], strength=7),
    )
    optimizer.step()
    down, up = module.lora_A["default"].weight, module.lora_B["default"].weight
    found = (down.grad.clone(), up.grad.clone())
    mark.detach()

    at = key.at(mark.placement)
    carriers = Carriers.of(at, made_size := module.base_layer.weight.numel())
    assert made_size >= carriers.size
    values = module.get_delta_weight("default").reshape(-1)[torch.from_numpy(carriers.positions())]
    z = values.reshape(-1, carriers.pools).mean(0) @ torch.from_numpy(at.matrix.copy()).double()
    bits = torch.from_numpy(at.bits.copy()).double()
    sharp = 2.0  # √2 for each round below the paper's four
    loss = 7 * torch.nn.functional.binary_cross_entropy_with_logits(sharp * z, bits)
    for ours, theirs in zip(found, torch.autograd.grad(loss, (down, up)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-15)


def test_the_papers_setting_trains_to_every_bit() -> None:
    """GPT-2's form, r=4, α=32, ten rounds, the last block's c_attn by default; task and mark."""
    model, key = lora(gpt2(width=WIDTH)), paper_key()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    mark = neuralmark.attach(
        model, optimizer, key, options=neuralmark.AttachOptions(target="lora-delta")
    )
    assert (mark.settings.mode, mark.settings.strength) == ("gradient", 1.0)
    assert mark.placement == ((f"{NAME}.lora_delta", (WIDTH, 3 * WIDTH)),)
    rows = torch.stack([Rows()[i]["input_ids"] for i in range(8)])
    steps = 0
    while mark.rate < 1 and steps < 200:
        optimizer.zero_grad()
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
        steps += 1
    assert mark.rate == 1, (steps, mark.rate)
    claim = mark.claim()
    mark.detach()
    verdict = neuralmark.verify(model, key, claim=claim)
    assert verdict.verified
    assert verdict.matched == 160
    assert verdict.placement == mark.placement


def test_a_reloaded_adapter_still_carries_the_papers_mark(tmp_path: Path) -> None:
    from peft import PeftModel

    base = gpt2(width=WIDTH)
    base.save_pretrained(tmp_path / "base")
    model, key = lora(base), paper_key()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    mark = neuralmark.attach(
        model, optimizer, key, options=neuralmark.AttachOptions(target="lora-delta")
    )
    for _ in range(150):
        optimizer.zero_grad()
        optimizer.step()
    assert mark.rate == 1
    model.save_pretrained(tmp_path / "adapter")
    again = PeftModel.from_pretrained(gpt2(width=WIDTH), tmp_path / "adapter")
    assert neuralmark.verify(again, key, claim=mark.claim()).verified


def test_products_cannot_be_projected() -> None:
    model = lora(gpt2(width=WIDTH))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    with pytest.raises(UnsuitableTensorError, match="gradient"):
        neuralmark.attach(
            model,
            optimizer,
            paper_key(),
            options=neuralmark.AttachOptions(target="lora-delta", mode="projection"),
        )


def test_the_recommended_way_marks_the_merged_weights(tmp_path: Path, key: Key) -> None:
    """Train the adapter as always, merge, imprint; no warning, and the file is verified."""
    model = lora(gpt2())
    stir(model)
    merged = model.merge_and_unload()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = neuralmark.imprint(merged, key)
    merged.save_pretrained(tmp_path)
    assert done.claim is not None
    assert neuralmark.verify(tmp_path, key, claim=done.claim).verified
    assert neuralmark.verify(tmp_path, key).verified


@pytest.mark.parametrize("way", ["imprint", "projection"])
def test_a_mark_in_the_frozen_base_warns_that_an_adapter_loses_it(
    tmp_path: Path, key: Key, way: str
) -> None:
    base = gpt2()
    model = lora(base)
    name = f"{NAME}.weight"
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)

    def mark() -> Claim | None:
        if way == "imprint":
            return neuralmark.imprint(model, key, tensors=[name]).claim
        live = neuralmark.attach(
            model,
            optimizer,
            key,
            options=neuralmark.AttachOptions(tensors=[name], mode="projection"),
        )
        rows = torch.stack([Rows()[i]["input_ids"] for i in range(4)])
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
        return live.claim()

    with pytest.warns(NeuralMarkWarning, match="loses the mark"):
        claim = mark()
    assert neuralmark.verify(model, key, claim=claim).verified
    model.save_pretrained(tmp_path / "adapter")
    assert neuralmark.verify(tmp_path / "adapter", key, claim=claim).status == "unreadable"
    model.unload().save_pretrained(tmp_path / "base")
    assert neuralmark.verify(tmp_path / "base", key, claim=claim).verified


def test_marking_the_base_before_the_adapter_survives_a_merge(tmp_path: Path, key: Key) -> None:
    base = gpt2()
    claim = neuralmark.imprint(base, key, strength=4).claim
    model = lora(base)
    stir(model)
    model.merge_and_unload().save_pretrained(tmp_path)
    assert neuralmark.verify(tmp_path, key, claim=claim).verified


def test_full_training_below_an_adapter_does_not_warn(key: Key) -> None:
    model = lora(gpt2())
    weight = model.base_model.model.transformer.h[1].attn.c_attn.base_layer.weight
    weight.requires_grad_(True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for mode in ("gradient", "projection"):
        neuralmark.attach(
            model,
            optimizer,
            key,
            options=neuralmark.AttachOptions(tensors=[f"{NAME}.weight"], mode=mode),
        ).detach()
