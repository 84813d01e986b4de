"""A pipeline by hand: a component for each first part of a name."""

import json
from pathlib import Path

from safetensors.numpy import save_file

from tests.support.makers import Arrays

WRITES = True


def make(arrays: Arrays, where: Path) -> Path:
    path = where / "pipeline"
    (path / "scheduler").mkdir(parents=True)
    (path / "scheduler" / "scheduler_config.json").write_text("{}")
    index: dict[str, object] = {"_class_name": "P", "scheduler": ["diffusers", "S"]}
    parts: dict[str, Arrays] = {}
    for name, array in arrays.items():
        component, _, own = name.partition(".")
        parts.setdefault(component, {})[own] = array
    for component, tensors in parts.items():
        (path / component).mkdir()
        save_file(tensors, path / component / "diffusion_pytorch_model.safetensors")
        index[component] = ["diffusers", "Model"]
    (path / "model_index.json").write_text(json.dumps(index))
    return path


def victim(path: Path) -> Path:
    return path / "layer" / "diffusion_pytorch_model.safetensors"
