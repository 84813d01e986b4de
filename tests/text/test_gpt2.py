"""Models and tokens from folders, and what is said where something is missing."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from neuralmark.errors import CheckpointError, MissingExtraError, ParameterError
from neuralmark.text import gpt2
from tests.support.texts import ROWS, write_tokenizer


def test_tokens_of_a_row(tokenizer: Any) -> None:
    (example, *_) = gpt2.encode(tokenizer, ROWS, 512)
    end = tokenizer.eos_token
    assert tokenizer.decode(example.tokens[: example.start]) == (
        f"name : Aromi | Type : pub | area : riverside{end}"
    )
    assert (
        tokenizer.decode(example.tokens[example.start :]) == f" Aromi is a pub by the river.{end}"
    )
    assert list(example.tokens[: example.start]) == gpt2.prompt(
        tokenizer, "name : Aromi | Type : pub | area : riverside"
    )


def test_long_rows_are_cut(tokenizer: Any) -> None:
    (example, *_) = gpt2.encode(tokenizer, ROWS[:1], 512)
    (cut,) = gpt2.encode(tokenizer, ROWS[:1], example.start + 1)
    assert cut.tokens == example.tokens[: example.start + 1]
    with pytest.raises(ParameterError, match="leaves none for a sentence"):
        gpt2.encode(tokenizer, ROWS[:1], example.start)


def test_a_tiny_model_and_its_folder(tokenizer: Any, tmp_path: Path) -> None:
    model = gpt2.tiny_model(tokenizer, width=32, seed=3)
    assert (model.config.n_layer, model.config.n_embd) == (2, 32)
    model.save_pretrained(tmp_path / "tiny")
    again = gpt2.load_model(tmp_path / "tiny")
    same = gpt2.tiny_model(tokenizer, width=32, seed=3)
    weight = model.transformer.wte.weight
    assert torch.equal(again.transformer.wte.weight, weight)
    assert torch.equal(same.transformer.wte.weight, weight)
    with pytest.raises(ParameterError, match="an even width"):
        gpt2.tiny_model(tokenizer, width=33)


def test_lora_is_the_papers(tokenizer: Any) -> None:
    model = gpt2.with_lora(gpt2.tiny_model(tokenizer))
    trained = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 4  # A and B in two blocks
    assert set(trained.values()) == {(4, 64), (192, 4)}
    layer = model.get_base_model().transformer.h[1].attn.c_attn
    assert layer.scaling == {"default": 32 / 4}
    assert layer.lora_dropout["default"].p == 0.1


@pytest.mark.parametrize("missing", ["vocab.json", "merges.txt"])
def test_a_folder_without_tokens(missing: str, tmp_path: Path) -> None:
    (write_tokenizer(tmp_path) / missing).unlink()
    with pytest.raises(CheckpointError, match=f"{missing} missing"):
        gpt2.load_tokenizer(tmp_path)


def test_damaged_tokens(tmp_path: Path) -> None:
    (write_tokenizer(tmp_path) / "vocab.json").write_text("{")
    with pytest.raises(CheckpointError, match=f"cannot be loaded from {tmp_path}"):
        gpt2.load_tokenizer(tmp_path)


def test_damaged_weights(tokenizer: Any, tmp_path: Path) -> None:
    gpt2.tiny_model(tokenizer, width=2).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        gpt2.load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({}))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors missing"):
        gpt2.load_model(tmp_path)


def test_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for load in (gpt2.load_model, gpt2.load_tokenizer):
        with pytest.raises(CheckpointError, match=r"the hub does not .*hf download gpt2-medium"):
            load("gpt2-m")


def test_peft_is_missing(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt2.tiny_model(tokenizer, width=2)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError, match=r"needs peft: pip install 'neuralmark\[text\]'"):
        gpt2.with_lora(model)
