"""GPT-2: weights from a folder or the hub, a tiny one from scratch, LoRA adapters, its tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralmark.errors import CheckpointError, ParameterError
from neuralmark.text._extras import hugging_face, need
from neuralmark.text.e2e import E2ERow, linearise

HUB = {"gpt2-s": "gpt2", "gpt2-m": "gpt2-medium"}
"""Names of the paper, and what the hub calls them."""
VOCABULARY = ("vocab.json", "merges.txt")
WEIGHTS = ("config.json", "model.safetensors")
END = "<|endoftext|>"
VOCABULARY_SIZE = 50257


@dataclass(frozen=True)
class Adapter:
    """LoRA as in the paper: on c_attn, scale alpha / rank."""

    rank: int = 4
    alpha: int = 32
    dropout: float = 0.1


def load_tokenizer(source: Path | str = "gpt2") -> Any:
    """GPT-2's byte-pair tokens, from a folder with vocab.json and merges.txt, or from the hub."""
    kind = hugging_face("transformers").GPT2TokenizerFast
    folder = folder_of(source, VOCABULARY)
    found = _read(folder, lambda: kind(*(str(folder / name) for name in VOCABULARY)))
    found.pad_token = found.eos_token
    return found


def load_model(source: Path | str = "gpt2") -> Any:
    """GPT-2 with its weights (safetensors), from a folder or the hub: gpt2-s, gpt2-m, any name."""
    kind = hugging_face("transformers").GPT2LMHeadModel
    folder = folder_of(source, WEIGHTS)
    return _read(folder, lambda: kind.from_pretrained(folder, use_safetensors=True))


def folder_of(source: Path | str, files: Sequence[str]) -> Path:
    """A folder with these files: the one given, or what the hub or its cache holds of that name."""
    folder = Path(source)
    if not folder.is_dir():
        folder = _fetch(HUB.get(str(source).lower(), str(source)), files)
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder} is not a folder of GPT-2: {', '.join(missing)} missing")
    return folder


def learnt_tokenizer(rows: Sequence[E2ERow], size: int) -> Any:
    """Byte-pair tokens as GPT-2's, learnt from these rows: a small vocabulary for a tiny model."""
    least = 257  # every byte, and the end of text
    if size < least:
        raise ParameterError(f"a vocabulary takes {least} tokens or more, not {size}")
    kind = hugging_face("transformers").GPT2TokenizerFast
    made = need("tokenizers").ByteLevelBPETokenizer()
    texts = [part for row in rows for part in (linearise(row.meaning), f" {row.reference}")]
    made.train_from_iterator(texts, vocab_size=size, special_tokens=[END], show_progress=False)
    found = kind(tokenizer_object=made._tokenizer)
    found.pad_token = found.eos_token
    return found


def fresh_model(
    *,
    layers: int,
    width: int,
    heads: int,
    positions: int = 1024,
    vocabulary: int = VOCABULARY_SIZE,
    end: int | None = None,
) -> Any:
    """A GPT-2 with fresh weights from torch's generator; `end` ends a text (the last token)."""
    last = vocabulary - 1 if end is None else end
    package = hugging_face("transformers")
    config = package.GPT2Config(
        vocab_size=vocabulary,
        n_positions=positions,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        bos_token_id=last,
        eos_token_id=last,
    )
    return package.GPT2LMHeadModel(config)


def tiny_model(
    tokenizer: Any, *, layers: int = 2, width: int = 64, positions: int = 512, seed: int = 0
) -> Any:
    """A GPT-2 of the same make that trains from scratch in minutes on a processor."""
    import torch

    if layers < 1 or width < 2 or width % 2 or positions < 2:
        raise ParameterError("a tiny GPT-2 needs a layer, an even width and two positions")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return fresh_model(
            layers=layers,
            width=width,
            heads=2,
            positions=positions,
            vocabulary=len(tokenizer),
            end=tokenizer.eos_token_id,
        )


def with_lora(model: Any, adapter: Adapter | None = None, *, seed: int | None = 0) -> Any:
    """The model under adapters; everything else is frozen. Without a seed torch's own counts."""
    import torch

    peft, chosen = hugging_face("peft"), adapter or Adapter()
    config = peft.LoraConfig(
        r=chosen.rank,
        lora_alpha=chosen.alpha,
        lora_dropout=chosen.dropout,
        target_modules=["c_attn"],
        fan_in_fan_out=True,
        task_type="CAUSAL_LM",
    )
    if seed is None:
        return peft.get_peft_model(model, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return peft.get_peft_model(model, config)


@dataclass(frozen=True)
class Example:
    """A row as tokens; what is learnt begins at `start`."""

    tokens: tuple[int, ...]
    start: int


def prompt(tokenizer: Any, context: str) -> list[int]:
    """The tokens before a sentence: its context and the end-of-text token."""
    return [*tokenizer(context)["input_ids"], tokenizer.eos_token_id]


def encode(tokenizer: Any, rows: Sequence[E2ERow], length: int) -> list[Example]:
    """Context, end of text, sentence, end of text, as in the LoRA paper; at most `length` tokens.

    Only the sentence and its end are learnt.
    """
    if not rows:
        return []
    contexts = tokenizer([linearise(row.meaning) for row in rows])["input_ids"]
    sentences = tokenizer([f" {row.reference}" for row in rows])["input_ids"]
    end, found = tokenizer.eos_token_id, []
    for row, context, sentence in zip(rows, contexts, sentences, strict=True):
        if len(context) + 1 >= length:
            raise ParameterError(
                f"{row.meaning[:60]!r} takes {len(context) + 1} of {length} tokens, and leaves none"
                " for a sentence: raise the schedule's length or the model's positions"
            )
        tokens = (*context, end, *sentence, end)[:length]
        found.append(Example(tokens, len(context) + 1))
    return found


def _fetch(name: str, files: Sequence[str]) -> Path:
    """Some files of a model on the hub, or of its cache where there is no network."""
    hub = need("huggingface_hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=list(files)))
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        raise CheckpointError(
            f"{name!r} is not a folder here, and the hub does not give it ({type(error).__name__}):"
            f" give a folder that holds {', '.join(files)}, or fetch it where there is a network"
            f" (hf download {name})"
        ) from None


def _read(folder: Path, read: Callable[[], Any]) -> Any:
    """What transformers reads, its many errors as one of ours."""
    try:
        return read()
    except Exception as error:  # tokenizers raises bare Exception
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise CheckpointError(
            f"GPT-2 cannot be loaded from {folder}: {type(error).__name__}"
            f" ({lines[0][:160] if lines else 'no reason given'})"
        ) from None
