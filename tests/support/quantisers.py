"""A layer quantised in every way that is read: what is stored, and what it stands for.

By the package itself where it installs without a GPU; GPTQ, AWQ, DeepSeek's and ComfyUI's float8 by
the definition of their layout, bit by bit.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

import neuralmark.torchvision_loading  # noqa: F401 - before transformers, which packages import
from tests.support.makers import Arrays

State = dict[str, torch.Tensor]
GROUP = 32


@dataclass(frozen=True)
class Quantised:
    """One layer."""

    state: State
    value: npt.NDArray[np.float32]
    metadata: dict[str, str] = field(default_factory=dict)


Quantiser = Callable[[str, torch.Tensor], Quantised]


def _floats(tensor: torch.Tensor) -> npt.NDArray[np.float32]:
    return tensor.detach().to(torch.float32).numpy()


def bnb_int8(name: str, weight: torch.Tensor) -> Quantised:
    from bitsandbytes import functional

    codes, scale, _ = functional.int8_vectorwise_quant(weight.half())
    state = {
        f"{name}.weight": codes,
        f"{name}.SCB": scale,
        f"{name}.weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return Quantised(state, _floats(functional.int8_vectorwise_dequant(codes, scale)))


def bnb_4bit(kind: str, nested: bool, name: str, weight: torch.Tensor) -> Quantised:
    from bitsandbytes import functional

    packed, told = functional.quantize_4bit(
        weight, blocksize=64, compress_statistics=nested, quant_type=kind
    )
    state = {f"{name}.weight": packed}
    state |= {f"{name}.weight.{end}": part for end, part in told.as_dict(packed=True).items()}
    told.shape = torch.Size([weight.numel()])  # its CPU kernel begins a block with each row
    value = functional.dequantize_4bit(packed, told).reshape(weight.shape)
    return Quantised(state, _floats(value))


def nf4_in_bfloat16(name: str, weight: torch.Tensor) -> Quantised:
    made = bnb_4bit("nf4", True, name, weight)
    codes = made.state[f"{name}.weight"].reshape(-1).view(torch.bfloat16)
    made.state[f"{name}.weight"] = codes.reshape(-1, 1)
    return made


def _affine(
    weight: torch.Tensor, bits: int, groups: torch.Tensor, *, symmetric: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [out, in], zero points and scales [groups, out]."""
    top = (1 << bits) - 1
    count = int(groups.max()) + 1
    zeros, scales = torch.zeros(count, len(weight)), torch.zeros(count, len(weight))
    for group in range(count):
        part = weight[:, groups == group]
        low, high = part.amin(1), part.amax(1)
        if symmetric:
            high = part.abs().amax(1)
            low = -high
        scales[group] = ((high - low) / top).half().float()
        zeros[group] = (-low / scales[group]).round().clamp(1, top)
        if symmetric:
            zeros[group] = 1 << (bits - 1)
    codes = (weight / scales[groups].T + zeros[groups].T).round().clamp(0, top)
    return codes.to(torch.int64), zeros.to(torch.int64), scales


def _bits(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """32-bit words along the first axis: one bit after the other, lowest first."""
    flat = [(codes >> bit) & 1 for bit in range(bits)]
    stream = torch.stack(flat, 1).reshape(-1, *codes.shape[1:])
    assert len(stream) % 32 == 0
    stream = stream.reshape(-1, 32, *codes.shape[1:])
    words = sum(stream[:, place] << place for place in range(32))
    assert isinstance(words, torch.Tensor)
    return words.to(torch.uint32).view(torch.int32)


def gptq(
    bits: int, ordered: bool, second: bool, symmetric: bool, name: str, weight: torch.Tensor
) -> Quantised:
    columns = weight.shape[1]
    groups = torch.arange(columns) // GROUP
    if ordered:
        groups = groups[torch.randperm(columns, generator=torch.Generator().manual_seed(7))]
    codes, zeros, scales = _affine(weight, bits, groups, symmetric=symmetric)
    value = (codes - zeros[groups].T).float() * scales[groups].T
    stored = zeros if second else zeros - 1
    state = {
        f"{name}.qweight": _bits(codes.T.contiguous(), bits).contiguous(),
        f"{name}.qzeros": _bits(stored.T.contiguous(), bits).T.contiguous(),
        f"{name}.scales": scales.half(),
        f"{name}.g_idx": groups.to(torch.int32),
    }
    return Quantised(state, _floats(value))


def gptq_without_order(name: str, weight: torch.Tensor) -> Quantised:
    made = gptq(4, False, False, False, name, weight)
    del made.state[f"{name}.g_idx"]
    return made


def awq(name: str, weight: torch.Tensor) -> Quantised:
    groups = torch.arange(weight.shape[1]) // GROUP
    codes, zeros, scales = _affine(weight, 4, groups)

    def words(rows: torch.Tensor) -> torch.Tensor:
        packed = torch.zeros(rows.shape[0], rows.shape[1] // 8, dtype=torch.int64)
        for place, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            packed |= rows[:, output::8] << (4 * place)
        return packed.to(torch.uint32).view(torch.int32)

    state = {
        f"{name}.qweight": words(codes.T),
        f"{name}.qzeros": words(zeros),
        f"{name}.scales": scales.half(),
    }
    return Quantised(state, _floats((codes - zeros[groups].T) * scales[groups].T))


def compressed(form: str, args: Mapping[str, Any], name: str, weight: torch.Tensor) -> Quantised:
    """By the compressors of compressed-tensors."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    told = QuantizationArgs(**args)
    scheme = QuantizationScheme(targets=["Linear"], weights=told)
    rows, columns = weight.shape
    shape = {
        "tensor": (1, 1, rows, columns),
        "channel": (rows, 1, 1, columns),
        "group": (rows, columns // (told.group_size or columns), 1, told.group_size or columns),
        "tensor_group": (rows, columns // (told.group_size or columns), 1, told.group_size or 1),
        "block": (rows // 32, columns // 32, 32, 32),
    }[str(told.strategy.value if hasattr(told.strategy, "value") else told.strategy)]
    tiles = weight.reshape(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)
    low, high = tiles.amin((2, 3)), tiles.amax((2, 3))
    state: State = {"weight": weight}
    whole = None
    if form.startswith("nvfp4"):
        whole = generate_gparam(weight.amin(), weight.amax())
        state["weight_global_scale"] = whole.float()
    scale, zero = calculate_qparams(low, high, told, global_scale=whole)
    state |= {"weight_scale": scale, "weight_zero_point": zero}
    compressor = BaseCompressor.get_value_from_registry(form)
    packed = compressor.compress(state, scheme)
    if told.symmetric:
        packed.pop("weight_zero_point", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = compressor.decompress(dict(packed), scheme)["weight"]
        if form.startswith("nvfp4"):  # its compressor computes in bfloat16
            codes = unpack_fp4_from_uint8(packed["weight_packed"], rows, columns, torch.float32)
            scale = packed["weight_scale"].float()
            value = dequantize(codes, scale, args=told, dtype=torch.float32, global_scale=whole)
    return Quantised({f"{name}.{end}": part for end, part in packed.items()}, _floats(value))


def block_fp8(name: str, weight: torch.Tensor) -> Quantised:
    """DeepSeek: a scale for each block of 128 by 128, the last ones cut off."""
    rows, columns = weight.shape
    tall, wide = -(-rows // 128), -(-columns // 128)
    scales = torch.empty(tall, wide)
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    value = torch.empty(rows, columns)
    for i in range(tall):
        for j in range(wide):
            at = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            scales[i, j] = weight[at].abs().max() / 448
            codes[at] = (weight[at] / scales[i, j]).to(torch.float8_e4m3fn)
            value[at] = codes[at].float() * scales[i, j]
    state = {f"{name}.weight": codes, f"{name}.weight_scale_inv": scales}
    return Quantised(state, _floats(value))


def comfy_fp8(name: str, weight: torch.Tensor) -> Quantised:
    scale = weight.abs().max().reshape(1) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    state = {f"{name}.weight": codes, f"{name}.scale_weight": scale}
    return Quantised(state, _floats(codes.float() * scale))


def modelopt_nvfp4(name: str, weight: torch.Tensor) -> Quantised:
    args = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    made = compressed("nvfp4-pack-quantized", args, name, weight)
    state = {
        f"{name}.weight": made.state[f"{name}.weight_packed"],
        f"{name}.weight_scale": made.state[f"{name}.weight_scale"],
        f"{name}.weight_scale_2": 1 / made.state[f"{name}.weight_global_scale"].reshape(()),
        f"{name}.input_scale": torch.tensor(0.5),
    }
    return Quantised(state, made.value)


def torchao(config: str, name: str, weight: torch.Tensor) -> Quantised:
    import torchao.quantization as ao
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight.clone()
    model = torch.nn.Sequential(layer)
    four = torch.int4  # type: ignore[attr-defined]
    choice = {
        "float8": ao.Float8WeightOnlyConfig,
        "int8": ao.Int8WeightOnlyConfig,
        "intx": partial(ao.IntxWeightOnlyConfig, four, ao.PerGroup(GROUP)),
    }[config]
    ao.quantize_(model, choice())
    kept = model.state_dict()["0.weight"]
    state, metadata = flatten_tensor_state_dict({f"{name}.weight": kept})
    return Quantised(state, _floats(kept.dequantize()), metadata)


_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
_CHANNEL = {"num_bits": 8, "strategy": "channel"}

QUANTISERS: dict[str, Quantiser] = {
    "bnb_int8": bnb_int8,
    "nf4": partial(bnb_4bit, "nf4", False),
    "nf4 nested": partial(bnb_4bit, "nf4", True),
    "nf4 in bfloat16": nf4_in_bfloat16,
    "fp4": partial(bnb_4bit, "fp4", False),
    **{f"gptq {bits}": partial(gptq, bits, False, False, False) for bits in (2, 3, 4, 8)},
    "gptq act-order": partial(gptq, 4, True, False, False),
    "gptq v2": partial(gptq, 4, False, True, True),
    "gptq without g_idx": gptq_without_order,
    "awq": awq,
    "ct int4": partial(compressed, "pack-quantized", _INT4 | {"symmetric": True}),
    "ct int4 zero points": partial(compressed, "pack-quantized", _INT4 | {"symmetric": False}),
    "ct int3": partial(compressed, "pack-quantized", _INT4 | {"num_bits": 3, "symmetric": False}),
    "ct int8": partial(compressed, "int-quantized", _CHANNEL | {"type": "int"}),
    "ct int8 zero points": partial(
        compressed, "int-quantized", _CHANNEL | {"type": "int", "symmetric": False}
    ),
    "ct fp8": partial(compressed, "float-quantized", _CHANNEL | {"type": "float"}),
    "ct fp8 tensor": partial(
        compressed, "float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}
    ),
    "ct nvfp4": partial(
        compressed,
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
    ),
    "ct mxfp4": partial(
        compressed,
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
        | {"scale_dtype": "torch.uint8"},
    ),
    "ct mxfp8": partial(
        compressed,
        "mxfp8-quantized",
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}
        | {"scale_dtype": "torch.uint8"},
    ),
    "block fp8": block_fp8,
    "comfy fp8": comfy_fp8,
    "modelopt nvfp4": modelopt_nvfp4,
    **{f"torchao {kind}": partial(torchao, kind) for kind in ("float8", "int8", "intx")},
}
"""By a name of their own."""


def quantised_folder(
    folder: Path, arrays: Arrays, quantiser: Quantiser, config: Mapping[str, Any] | None = None
) -> Arrays:
    """Write a Hugging Face folder with all matrices `X.weight` quantised; what they stand for."""
    state: State = {}
    values: Arrays = {}
    metadata: dict[str, str] = {"format": "pt"}
    for name, array in arrays.items():
        tensor = torch.from_numpy(array)
        if array.ndim == 2 and name.endswith(".weight"):
            made = quantiser(name.removesuffix(".weight"), tensor)
            state |= {key: part.contiguous() for key, part in made.state.items()}
            values[name] = made.value
            metadata |= made.metadata
        else:
            state[name], values[name] = tensor, array
    if len(metadata) > 1:
        metadata["tensor_names"] = json.dumps([name for name in metadata if name != "format"])
    folder.mkdir()
    save_file(state, folder / "model.safetensors", metadata)
    if config is not None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": dict(config)}))
    return values


def expert_blocks(folder: Path) -> Arrays:
    """Experts in mxfp4, as gpt-oss stores them; what transformers makes of them."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(3)
    blocks = torch.randint(0, 256, (3, 40, 4, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(120, 130, (3, 40, 4), dtype=torch.uint8, generator=generator)
    folder.mkdir()
    name = "mlp.experts.gate_up_proj"
    save_file({f"{name}_blocks": blocks, f"{name}_scales": scales}, folder / "model.safetensors")
    value = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return {name: _floats(value)}
