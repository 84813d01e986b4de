"""Trainer and LoRA: the paper's mark in scale·B·A, then the recommended one in merged weights.

python examples/trainer_lora.py --data DIR     (DIR/e2e/**/trainset.csv, DIR/gpt2/vocab.json, …)
"""

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import neuralmark.torchvision_loading  # isort: skip - first: others import torchvision
import transformers
from peft import LoraConfig, get_peft_model
from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode

from neuralmark.integrations.transformers import AttachOptions, NeuralMarkCallback

HF: Any = transformers  # most of its functions have no types
ROWS = [{"mr": "name[Aromi], eatType[pub]", "ref": "Aromi is a pub by the river."}] * 200


def load(data: Path | None, folder: Path) -> tuple[int, list[dict[str, list[int]]]]:
    """E2E rows in GPT-2's vocabulary; without data, one toy row in a vocabulary of bytes."""
    rows, words = ROWS, [*bytes_to_unicode().values(), "<|endoftext|>"]
    if data is None:
        (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
        (folder / "merges.txt").write_text("#version: 0.2\n")
    else:
        folder, found = data / "gpt2", next((data / "e2e").rglob("trainset.csv"))
        rows = list(csv.DictReader(found.read_text(encoding="utf-8").splitlines()))[:4000]
    tokenizer = HF.GPT2TokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"))
    stream = [i for row in rows for i in tokenizer(f"{row['mr']} | {row['ref']}\n")["input_ids"]]
    blocks = [stream[i : i + 48] for i in range(0, len(stream) - 47, 48)]
    return len(tokenizer), [{"input_ids": block, "labels": block} for block in blocks]


def main() -> None:
    """Train an adapter with the mark in it, verify it live; merge, mark and verify the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("lora-output"))
    options = parser.parse_args()
    (out := options.output).mkdir(parents=True, exist_ok=True)
    size, blocks = load(options.data, out)
    base = HF.GPT2LMHeadModel(HF.GPT2Config(size, n_positions=48, n_embd=192, n_layer=2, n_head=4))
    lora = LoraConfig(r=4, lora_alpha=32, target_modules=["c_attn"], fan_in_fan_out=True)
    model: Any = get_peft_model(base, lora)
    key = neuralmark.Key.new(neuralmark.Parameters(bits=160, pools=320, rounds=6), owner="Acme")
    args = HF.TrainingArguments(out, max_steps=150, learning_rate=4e-3, logging_steps=25)
    mark = NeuralMarkCallback(key, options=AttachOptions(target="lora-delta"))  # in c_attn
    HF.Trainer(model, args, train_dataset=blocks, callbacks=[mark]).train()
    print("adapter:", neuralmark.verify(model, key, claim=f"{out}.claim.json").reason)
    done = neuralmark.imprint(merged := model.merge_and_unload(), key)
    merged.save_pretrained(out / "merged")
    print("merged:", neuralmark.verify(out / "merged", key, claim=done.claim).reason)


if __name__ == "__main__":
    main()
