"""GPT-2-S of transformers, with LoRA of peft."""

from dataclasses import dataclass

from neuralmark.zoo.language import GPT2


@dataclass(frozen=True)
class GPT2Small(GPT2):
    """12 blocks, 768 wide; options as of `GPT2`."""

    name = "gpt2"
    title = "GPT-2-S"
    width = 768
    depth = 12
    heads = 12
