"""Rows of E2E's layout and a byte-level tokenizer of GPT-2's; nothing is downloaded."""

import json
from pathlib import Path

from neuralmark.text.e2e import E2ERow

PLACES = ("Aromi", "Zizzi", "Cotto", "Fitzbillies")
KINDS = ("pub", "coffee shop", "restaurant")
ROWS = tuple(
    E2ERow(f"name[{name}], eatType[{kind}], area[riverside]", f"{name} is a {kind} by the river.")
    for name in PLACES
    for kind in KINDS
)


def write_tokenizer(folder: Path) -> Path:
    """GPT-2's 256 letters for bytes, a few merges, and the end-of-text token."""
    from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode

    folder.mkdir(parents=True, exist_ok=True)
    pairs = ["Ġ i", "Ġi s", "Ġ :", "Ġ |", "Ġ a", "r i", "v e", "ri ve", "rive r", "n a", "m e"]
    words = [*bytes_to_unicode().values(), *("".join(pair.split()) for pair in pairs)]
    words = [*dict.fromkeys(words), "<|endoftext|>"]
    table = {word: number for number, word in enumerate(words)}
    (folder / "vocab.json").write_text(json.dumps(table), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs, ""]), encoding="utf-8")
    return folder
