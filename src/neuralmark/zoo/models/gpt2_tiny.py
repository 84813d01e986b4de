"""A GPT-2 small enough to be trained from scratch on a processor."""

from dataclasses import dataclass

from neuralmark.core.key import TILED, Parameters
from neuralmark.zoo.language import GPT2


@dataclass(frozen=True)
class GPT2Tiny(GPT2):
    """4 blocks, 128 wide, 2,000 tokens of its own; its c_attn holds a key of five rounds."""

    name = "gpt2-tiny"
    title = "tiny GPT-2"
    parameters = Parameters(rounds=5, filter=TILED)
    input_size = (256,)
    width = 128
    depth = 4
    heads = 4
    vocabulary = 2000
