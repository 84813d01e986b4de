"""Tiny models, rows and keys that the integration tests share. Nothing is downloaded."""

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def gpt2(*, seed: int = 0, width: int = 64) -> GPT2LMHeadModel:
    """Two blocks; c_attn has 3·width² weights."""
    torch.manual_seed(seed)
    config = GPT2Config(  # type: ignore[no-untyped-call]
        vocab_size=128,
        n_positions=16,
        n_embd=width,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """64 rows of 16 tokens."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.rows = torch.randint(128, (64, 16), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}
