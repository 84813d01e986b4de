"""Two shards and their index."""

import json
from pathlib import Path

from safetensors.numpy import save_file

from tests.support.makers import Arrays

WRITES = True


def make(arrays: Arrays, where: Path) -> Path:
    path = where / "model"
    path.mkdir()
    table = {}
    for i, (name, array) in enumerate(arrays.items()):
        table[name] = f"model-{i}.safetensors"
        save_file({name: array}, path / table[name])
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    return path


def victim(path: Path) -> Path:
    return path / "model-1.safetensors"
