"""Tiny transformers of every family that is known, named as their libraries name them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import neuralmark.torchvision_loading  # noqa: F401
from tests.support.architectures import gpt2, lived_in, llama

_SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "max_position_embeddings": 32,
}


def _built(name: str, config: str, more: dict[str, Any]) -> nn.Module:
    import transformers

    torch.manual_seed(1)
    model = getattr(transformers, name)(getattr(transformers, config)(**more))
    return lived_in(model)


def decoder(family: str, **more: Any) -> nn.Module:
    """A causal language model of Llama's kind: grouped queries, its own output layer."""
    sizes = _SIZES | {"num_key_value_heads": 4, "tie_word_embeddings": False, "pad_token_id": 0}
    return _built(f"{family}ForCausalLM", f"{family}Config", sizes | more)


def encoder(name: str, **more: Any) -> nn.Module:
    """BERT or RoBERTa with something on top."""
    family = name.partition("For")[0].removesuffix("Model")
    return _built(name, f"{family}Config", _SIZES | {"pad_token_id": 0} | more)


def vision(name: str) -> nn.Module:
    """ViT or DeiT on images of 32 x 32."""
    family = name.partition("For")[0].removesuffix("Model")
    sizes = {k: v for k, v in _SIZES.items() if k not in ("vocab_size", "max_position_embeddings")}
    return _built(name, f"{family}Config", sizes | {"image_size": 32, "patch_size": 8})


def torchvision_vit() -> nn.Module:
    """torchvision's ViT."""
    from torchvision.models import VisionTransformer  # type: ignore[import-untyped]

    torch.manual_seed(1)
    model = VisionTransformer(
        image_size=32,
        patch_size=8,
        num_layers=2,
        num_heads=8,
        hidden_dim=64,
        mlp_dim=160,
        num_classes=10,
    )
    nn.init.normal_(model.heads.head.weight, std=0.1)
    model.config = type("config", (), {"num_attention_heads": 8})
    return lived_in(model)


LANGUAGE: dict[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2,
    "llama": llama,
    "tied llama": lambda: llama(tied=True),
    "mistral": lambda: decoder("Mistral"),
    "qwen2": lambda: decoder("Qwen2"),
    "qwen3": lambda: decoder("Qwen3", head_dim=16),
    "gemma": lambda: decoder("Gemma", head_dim=16),
    "gemma2": lambda: decoder("Gemma2", head_dim=16),
    "gemma3": lambda: _built(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        _SIZES | {"num_key_value_heads": 4, "head_dim": 16, "tie_word_embeddings": False},
    ),
    "bert words": lambda: encoder("BertForMaskedLM"),
    "bert untied": lambda: encoder("BertForMaskedLM", tie_word_embeddings=False),
    "bert pretraining": lambda: encoder("BertForPreTraining"),
    "bert classes": lambda: encoder("BertForSequenceClassification"),
    "bert tokens": lambda: encoder("BertForTokenClassification"),
    "bert answers": lambda: encoder("BertForQuestionAnswering"),
    "roberta words": lambda: encoder("RobertaForMaskedLM", max_position_embeddings=40),
    "roberta classes": lambda: encoder(
        "RobertaForSequenceClassification", max_position_embeddings=40
    ),
}
VISION: dict[str, Callable[[], nn.Module]] = {
    "vit": lambda: vision("ViTForImageClassification"),
    "deit": lambda: vision("DeiTForImageClassificationWithTeacher"),
    "torchvision vit": torchvision_vit,
}
FAMILIES = LANGUAGE | VISION


def inputs(name: str) -> Tensor:
    """What a model of this name reads."""
    generator = torch.Generator().manual_seed(3)
    if name in VISION:
        return torch.randn(4, 3, 32, 32, generator=generator)
    return torch.randint(1, 97, (4, 16), generator=generator)


def scores(model: nn.Module, given: Tensor) -> Tensor:
    """The scores of tokens or labels."""
    made = model(given)
    found: Tensor = made if isinstance(made, Tensor) else made["logits"]
    return found


def outputs(model: nn.Module, given: Tensor) -> list[Tensor]:
    """Everything that a model says of its inputs."""
    with torch.no_grad():
        made = model.eval()(given)
    if isinstance(made, Tensor):
        return [made]
    return [value for value in made.values() if isinstance(value, Tensor)]
