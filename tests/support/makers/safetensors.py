"""What the safetensors package writes."""

from pathlib import Path

from safetensors.numpy import save_file

from tests.support.makers import Arrays

WRITES = True


def make(arrays: Arrays, where: Path) -> Path:
    save_file(arrays, where / "model.safetensors")
    return where / "model.safetensors"


def victim(path: Path) -> Path:
    return path
