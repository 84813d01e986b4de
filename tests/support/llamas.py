"""A small Llama as transformers saves it, and a converter of it to GGUF."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import MODEL_ARCH, GGMLQuantizationType, get_tensor_name_map, quants
from safetensors.numpy import load_file, save_file

from tests.support import kquants
from tests.support.makers import gguf as made
from tests.support.models import gaussian

HEADS, KV_HEADS, WIDTH, INNER, LAYERS = 8, 4, 256, 512, 2
Kind = GGMLQuantizationType
OURS: dict[Kind, Callable[[Any], Any]] = {
    Kind.Q4_K: kquants.q4_k,
    Kind.Q6_K: kquants.q6_k,
    Kind.IQ4_NL: kquants.iq4_nl,
}


def llama_folder(folder: Path, experts: int = 0) -> Path:
    """Weights under the names of LlamaForCausalLM (or MixtralForCausalLM), and a config.json."""
    folder.mkdir()
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (64, WIDTH),
        "model.norm.weight": (WIDTH,),
        "lm_head.weight": (64, WIDTH),
    }
    rows = WIDTH * KV_HEADS // HEADS
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (WIDTH,),
            f"{at}.post_attention_layernorm.weight": (WIDTH,),
            f"{at}.self_attn.q_proj.weight": (WIDTH, WIDTH),
            f"{at}.self_attn.k_proj.weight": (rows, WIDTH),
            f"{at}.self_attn.v_proj.weight": (rows, WIDTH),
            f"{at}.self_attn.o_proj.weight": (WIDTH, WIDTH),
        }
        inner = {"gate": (INNER, WIDTH), "up": (INNER, WIDTH), "down": (WIDTH, INNER)}
        if not experts:
            shapes |= {f"{at}.mlp.{part}_proj.weight": s for part, s in inner.items()}
            continue
        shapes[f"{at}.block_sparse_moe.gate.weight"] = (experts, WIDTH)
        for number in range(experts):
            for part, name in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
                shapes[f"{at}.block_sparse_moe.experts.{number}.{name}.weight"] = inner[part]
    weights = {name: gaussian(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["MixtralForCausalLM" if experts else "LlamaForCausalLM"],
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_size": WIDTH,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def paired(array: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """The rows of each head as llama.cpp's converter puts them."""
    folded = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(folded.swapaxes(1, 2).reshape(array.shape))


def converted(folder: Path, out: Path, kind: Kind, **options: Any) -> Path:
    """A GGUF of the folder; matrices in this type, vectors in float32."""
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, LAYERS)
    arrays: dict[str, npt.NDArray[Any]] = {}
    stacks: dict[str, list[npt.NDArray[Any]]] = {}
    for name, given in load_file(folder / "model.safetensors").items():
        array = given
        if name.endswith("q_proj.weight"):
            array = paired(array, HEADS)
        if name.endswith("k_proj.weight"):
            array = paired(array, KV_HEADS)
        if ".experts." in name:
            before, _, part, _ = name.rsplit(".", 3)
            stack = names.get_name(f"{before}.{part}.weight", (".weight",))
            assert stack is not None
            stacks.setdefault(stack, []).append(array)
            continue
        mapped = names.get_name(name, (".weight",))
        assert mapped is not None
        arrays[mapped] = array
    arrays |= {name: np.stack(stack) for name, stack in stacks.items()}
    kinds = {name: kind for name, array in arrays.items() if array.ndim > 1}
    for name in kinds:
        arrays[name] = (
            OURS[kind](arrays[name]) if kind in OURS else quants.quantize(arrays[name], kind)
        )
    fields = {"llama.attention.head_count": HEADS, "llama.attention.head_count_kv": KV_HEADS}
    fields["llama.block_count"] = LAYERS
    return made.save(out, arrays, "llama", kinds, fields, **options)
