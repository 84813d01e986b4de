"""What the tensors of GGUF files are called in the Hugging Face models that they were made from.

The `gguf` package maps the names of many models to one; the way back depends on the architecture,
so it is written down here, for the architectures that are met most. The tests send each name
through the package's map again. Of other architectures the names are kept as they are stored.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

_NAME = re.compile(r"(?:blk\.(\d{1,6})\.)?(\w+)\.(weight|bias)")


@dataclass(frozen=True)
class NameFamily:
    """The names of one kind of network: of a layer's parts, and of what is outside of layers."""

    layer: str
    inner: Mapping[str, str]
    outer: Mapping[str, str]
    experts: Mapping[str, str]
    """Parts that hold the same matrix of all experts, and the name of one of them."""

    def but(self, **inner: str) -> "NameFamily":
        """The same with some parts of a layer called otherwise."""
        return replace(self, inner={**self.inner, **inner})

    def renamed(self, ending: str, part: str, layer: str | None) -> str | None:
        """The name of a part; None where it is not known."""
        if layer is None:
            known = self.outer.get(part)
            return None if known is None else f"{known}.{ending}"
        known = self.inner.get(part)
        return None if known is None else f"{self.layer.format(int(layer))}.{known}.{ending}"

    def expert(self, ending: str, part: str, layer: str | None) -> str | None:
        """The name of one expert's matrix, with a gap for its number; None of other parts."""
        known = self.experts.get(part)
        if layer is None or known is None:
            return None
        return f"{self.layer.format(int(layer))}.{known}.{ending}"


_LLAMA = NameFamily(
    "model.layers.{}",
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "ffn_gate_inp": "mlp.gate",
    },
    {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"},
    {
        "ffn_gate_exps": "mlp.experts.{}.gate_proj",
        "ffn_up_exps": "mlp.experts.{}.up_proj",
        "ffn_down_exps": "mlp.experts.{}.down_proj",
    },
)
_MIXTRAL = replace(
    _LLAMA.but(ffn_gate_inp="block_sparse_moe.gate"),
    experts={
        "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    },
)
_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_SHARED = {
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_QWEN_MOE = _LLAMA.but(
    ffn_gate_inp_shexp="mlp.shared_expert_gate",
    ffn_gate_shexp="mlp.shared_expert.gate_proj",
    ffn_up_shexp="mlp.shared_expert.up_proj",
    ffn_down_shexp="mlp.shared_expert.down_proj",
)
_DEEPSEEK2 = _LLAMA.but(
    **_SHARED,
    attn_q_a="self_attn.q_a_proj",
    attn_q_b="self_attn.q_b_proj",
    attn_q_a_norm="self_attn.q_a_layernorm",
    attn_kv_a_mqa="self_attn.kv_a_proj_with_mqa",
    attn_kv_a_norm="self_attn.kv_a_layernorm",
)
_PHI2 = replace(
    _LLAMA.but(attn_output="self_attn.dense", ffn_up="mlp.fc1", ffn_down="mlp.fc2"),
    outer={**_LLAMA.outer, "output_norm": "model.final_layernorm"},
)
_GPT2 = NameFamily(
    "transformer.h.{}",
    {
        "attn_norm": "ln_1",
        "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    },
    {
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
    },
    {},
)
_FALCON = replace(
    _GPT2,
    inner={
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attention.query_key_value",
        "attn_output": "self_attention.dense",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
    outer={
        "token_embd": "transformer.word_embeddings",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
    },
)
_NEOX = NameFamily(
    "gpt_neox.layers.{}",
    {
        "attn_norm": "input_layernorm",
        "attn_qkv": "attention.query_key_value",
        "attn_output": "attention.dense",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
    {
        "token_embd": "gpt_neox.embed_in",
        "output_norm": "gpt_neox.final_layer_norm",
        "output": "embed_out",
    },
    {},
)
_MPT = NameFamily(
    "transformer.blocks.{}",
    {
        "attn_norm": "norm_1",
        "attn_qkv": "attn.Wqkv",
        "attn_output": "attn.out_proj",
        "ffn_norm": "norm_2",
        "ffn_up": "ffn.up_proj",
        "ffn_down": "ffn.down_proj",
    },
    {"token_embd": "transformer.wte", "output_norm": "transformer.norm_f"},
    {},
)
_BERT = NameFamily(
    "encoder.layer.{}",
    {
        "attn_q": "attention.self.query",
        "attn_k": "attention.self.key",
        "attn_v": "attention.self.value",
        "attn_output": "attention.output.dense",
        "attn_output_norm": "attention.output.LayerNorm",
        "ffn_up": "intermediate.dense",
        "ffn_down": "output.dense",
        "layer_output_norm": "output.LayerNorm",
    },
    {
        "token_embd": "embeddings.word_embeddings",
        "position_embd": "embeddings.position_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "embeddings.LayerNorm",
    },
    {},
)

FAMILIES: Mapping[str, NameFamily] = {
    "llama": _MIXTRAL,
    **dict.fromkeys(("mistral3", "qwen2", "qwen2vl", "qwen3", "qwen3vl", "gemma"), _LLAMA),
    **dict.fromkeys(("stablelm", "granite", "command-r", "cohere2", "smollm3", "arcee"), _LLAMA),
    **dict.fromkeys(("olmo", "xverse", "deci", "minicpm", "nemotron", "orion", "seed_oss"), _LLAMA),
    **dict.fromkeys(("qwen3moe", "olmoe"), _LLAMA),
    "qwen2moe": _QWEN_MOE,
    "deepseek": _LLAMA.but(**_SHARED),
    "deepseek2": _DEEPSEEK2,
    **dict.fromkeys(
        ("gemma2", "gemma3"), _LLAMA.but(**_AFTER, ffn_norm="pre_feedforward_layernorm")
    ),
    "olmo2": _LLAMA.but(**_AFTER),
    "phi3": _LLAMA.but(attn_qkv="self_attn.qkv_proj", ffn_up="mlp.gate_up_proj"),
    "phi2": _PHI2,
    "starcoder2": _LLAMA.but(ffn_up="mlp.c_fc", ffn_down="mlp.c_proj"),
    "gpt2": _GPT2,
    **dict.fromkeys(("falcon", "bloom"), _FALCON),
    "gptneox": _NEOX,
    "mpt": _MPT,
    "bert": _BERT,
}
"""By the name of the architecture."""

PAIRED = {
    *("llama", "mistral3", "granite", "granitemoe", "granitehybrid", "smollm3", "arcee", "olmo"),
    *("xverse", "deci", "minicpm", "deepseek", "arctic", "llada"),
}
"""Architectures whose rows of query and key the converter puts in pairs."""

SHIFTED = {"gemma", "gemma2", "gemma3"}
"""Architectures to whose norms the converter adds 1."""


@dataclass(frozen=True)
class GgufName:
    """A stored name taken apart, and what it is called elsewhere."""

    stored: str
    layer: int | None = None
    part: str = ""
    ending: str = ""
    """Weight or bias."""
    name: str | None = None
    """The Hugging Face name; None where it is not known."""
    expert: str | None = None
    """The Hugging Face name of one expert's matrix, with a gap for its number."""


def taken_apart(stored: str, architecture: str) -> GgufName:
    """What a stored name says.

    >>> taken_apart("blk.3.attn_q.weight", "llama").name
    'model.layers.3.self_attn.q_proj.weight'
    """
    match = _NAME.fullmatch(stored)
    if match is None:
        return GgufName(stored)
    layer, part, ending = match.groups()
    number = None if layer is None else int(layer)
    family = FAMILIES.get(architecture)
    if family is None:
        return GgufName(stored, number, part, ending)
    name, expert = family.renamed(ending, part, layer), family.expert(ending, part, layer)
    return GgufName(stored, number, part, ending, name, expert)
