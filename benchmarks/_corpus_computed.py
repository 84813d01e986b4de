"""Seeds whose weights are computed as they are read: quantised, adapters; and pipelines.

The codes are random: a layout is sound whatever they stand for.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _tensors
from benchmarks._seed import Seed

Parts = dict[str, tuple[str, tuple[int, ...]]]
OUT, IN, GROUP = 32, 64, 32

QUANTISED: dict[str, Parts] = {
    "bnb int8": {
        "l.weight": ("I8", (OUT, IN)),
        "l.SCB": ("F32", (OUT,)),
        "l.weight_format": ("U8", ()),
    },
    "gptq": {
        "l.qweight": ("I32", (IN // 8, OUT)),
        "l.qzeros": ("I32", (IN // GROUP, OUT // 8)),
        "l.scales": ("F16", (IN // GROUP, OUT)),
        "l.g_idx": ("I32", (IN,)),
    },
    "gptq 3-bit": {
        "l.qweight": ("I32", (IN // 32 * 3, OUT)),
        "l.qzeros": ("I32", (IN // GROUP, OUT // 32 * 3)),
        "l.scales": ("F16", (IN // GROUP, OUT)),
    },
    "awq": {
        "l.qweight": ("I32", (IN, OUT // 8)),
        "l.qzeros": ("I32", (IN // GROUP, OUT // 8)),
        "l.scales": ("F16", (IN // GROUP, OUT)),
    },
    "compressed-tensors int4": {
        "l.weight_packed": ("I32", (OUT, IN // 8)),
        "l.weight_scale": ("BF16", (OUT, IN // GROUP)),
        "l.weight_zero_point": ("I32", (OUT // 8, IN // GROUP)),
        "l.weight_shape": ("I64", (2,)),
    },
    "compressed-tensors nvfp4": {
        "l.weight_packed": ("U8", (OUT, IN // 2)),
        "l.weight_scale": ("F8_E4M3", (OUT, IN // 16)),
        "l.weight_global_scale": ("F32", (1,)),
    },
    "float8 in blocks": {
        "l.weight": ("F8_E4M3", (OUT, IN)),
        "l.weight_scale_inv": ("F32", (1, 1)),
        "m.weight": ("F8_E5M2", (OUT, IN)),
        "m.scale_weight": ("F32", (1,)),
    },
    "mxfp4 experts": {
        "e_blocks": ("U8", (2, 8, 2, 16)),
        "e_scales": ("U8", (2, 8, 2)),
    },
    "torchao": {
        "l._weight_qdata": ("I8", (OUT, IN)),
        "l._weight_scale": ("F32", (OUT, IN // GROUP)),
        "l._weight_zero_point": ("I8", (OUT, IN // GROUP)),
    },
    "nf4": {
        "l.weight": ("U8", (OUT * IN // 2, 1)),
        "l.weight.absmax": ("U8", (OUT * IN // 64,)),
        "l.weight.quant_map": ("F32", (16,)),
        "l.weight.nested_absmax": ("F32", (1,)),
        "l.weight.nested_quant_map": ("F32", (256,)),
    },
}
_STATE = "l.weight.quant_state.bitsandbytes__nf4"
_TYPE = json.dumps({"_type": "IntxUnpackedToInt8Tensor", "_data": {}})
_GIVEN: dict[str, bytes] = {
    "l.weight_shape": np.array([OUT, IN], np.int64).tobytes(),
    "l.g_idx": (np.arange(IN, dtype=np.int32) // GROUP).tobytes(),
    "l.weight_format": b"\0",
    _STATE: json.dumps(
        {
            "quant_type": "nf4",
            "blocksize": 64,
            "dtype": "float32",
            "shape": [OUT, IN],
            "nested_blocksize": 256,
            "nested_dtype": "float32",
            "nested_offset": 0.25,
        }
    ).encode(),
}
"""What is not left to chance."""


def computed_seeds(folder: Path) -> list[Seed]:
    """All of them; folders that are needed whole stay in `folder`."""
    made = [
        Seed(f"quantised {name}", "computed", ".safetensors", _quantised(parts))
        for name, parts in QUANTISED.items()
    ]
    return [*made, *_gptq_folder(folder), *_adapter(folder), *_pipeline(folder)]


def _quantised(parts: Parts) -> bytes:
    if "l.weight.absmax" in parts:
        parts = parts | {_STATE: ("U8", (len(_GIVEN[_STATE]),))}
    rng = np.random.default_rng(4)
    metadata = {"l.weight": _TYPE} if "l._weight_qdata" in parts else {}
    data = _tensors.header(parts, metadata)
    for name, (dtype, shape) in parts.items():
        size = int(np.prod(shape, dtype=np.int64))
        if name in _GIVEN:
            data += _GIVEN[name]
        elif dtype in ("F32", "F16", "BF16"):
            kind = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[dtype]
            data += (rng.random(size) + 0.5).astype(kind).tobytes()
        else:
            data += rng.integers(0, 100, size * _tensors.SIZES[dtype], np.uint8).tobytes()
    return data


def _gptq_folder(folder: Path) -> list[Seed]:
    config = {"quantization_config": {"bits": 4, "group_size": GROUP, "checkpoint_format": "gptq"}}
    files = {
        "gptq/model.safetensors": _quantised(QUANTISED["gptq"]),
        "gptq/config.json": json.dumps(config).encode(),
    }
    return _within(folder, "gptq", files, ("gptq/config.json",))


def _adapter(folder: Path) -> list[Seed]:
    rng = np.random.default_rng(5)
    base = _plain({"l.weight": (OUT, IN), "head.weight": (4, OUT)}, rng)
    own = _plain(
        {
            "base_model.model.l.lora_A.weight": (4, IN),
            "base_model.model.l.lora_B.weight": (OUT, 4),
            "base_model.model.l.lora_magnitude_vector": (OUT,),
            "base_model.model.head.weight": (4, OUT),
        },
        rng,
    )
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": "acme/base",
        "r": 4,
        "lora_alpha": 8,
        "use_rslora": False,
        "alpha_pattern": {r".*\.l": 4},
        "fan_in_fan_out": False,
    }
    files = {
        "adapters/base/model.safetensors": base,
        "adapters/a/adapter_model.safetensors": own,
        "adapters/a/adapter_config.json": json.dumps(config).encode(),
    }
    changed = [name for name in files if "/a/" in name]
    return _within(folder, "adapters/a", files, changed)


def _pipeline(folder: Path) -> list[Seed]:
    rng = np.random.default_rng(6)
    index: dict[str, Any] = {
        "_class_name": "P",
        "unet": ["diffusers", "U"],
        "vae": ["diffusers", "V"],
    }
    files = {
        "pipeline/model_index.json": json.dumps(index).encode(),
        "pipeline/unet/diffusion_pytorch_model.safetensors": _plain({"w": (OUT, IN)}, rng),
        "pipeline/unet/diffusion_pytorch_model.fp16.safetensors": _plain({"w": (OUT, IN)}, rng),
        "pipeline/vae/diffusion_pytorch_model.safetensors": _plain({"v": (8, 8)}, rng),
    }
    changed = ["pipeline/model_index.json", "pipeline/vae/diffusion_pytorch_model.safetensors"]
    return _within(folder, "pipeline", files, changed)


def _plain(shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> bytes:
    data = _tensors.header({name: ("F32", shape) for name, shape in shapes.items()})
    for shape in shapes.values():
        data += rng.standard_normal(shape, dtype=np.float32).tobytes()
    return data


def _within(
    folder: Path, opens: str, files: dict[str, bytes], changed: "list[str] | tuple[str, ...]"
) -> list[Seed]:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return [
        Seed(f"{opens.split('/')[0]} {Path(n).name}", "within", Path(n).suffix, files[n], n, opens)
        for n in changed
    ]
