"""An adapter of PEFT's layout beside its base: one layer merged, one tensor replaced.

B is 0 and A is not, so that the merged model has exactly these values.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.support.makers import Arrays

WRITES = False


def make(arrays: Arrays, where: Path) -> Path:
    path, base = where / "adapter", where / "base-model"
    path.mkdir()
    base.mkdir()
    save_file(arrays | {"layer.bias": arrays["layer.bias"] + 1}, base / "model.safetensors")
    out, columns = arrays["layer.weight"].shape
    rng = np.random.default_rng(0)
    stem = "base_model.model.layer"
    own = {
        f"{stem}.lora_A.weight": rng.standard_normal((4, columns)).astype(np.float32),
        f"{stem}.lora_B.weight": np.zeros((out, 4), np.float32),
        "base_model.model.layer.bias": arrays["layer.bias"],
    }
    save_file(own, path / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "base_model_name_or_path": "x/base-model",
    }
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


def victim(path: Path) -> Path:
    return path / "adapter_model.safetensors"
