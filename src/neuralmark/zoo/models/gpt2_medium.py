"""GPT-2-M of transformers, with LoRA of peft."""

from dataclasses import dataclass

from neuralmark.zoo.language import GPT2


@dataclass(frozen=True)
class GPT2Medium(GPT2):
    """24 blocks, 1024 wide; options as of `GPT2`."""

    name = "gpt2-medium"
    title = "GPT-2-M"
    width = 1024
    depth = 24
    heads = 16
