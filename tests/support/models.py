"""Small checkpoints and keys."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from neuralmark import Embedding, EmbedOptions, Key, Parameters, embed

QUICK = Parameters(bits=160, pools=320, rounds=1)
"""Enough bits to prove something, quick to embed."""

SMALL = Parameters(bits=256, pools=512, rounds=2)
"""For layers of some hundred thousand weights."""


def gaussian(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Weights like those of a trained layer."""
    return (0.05 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def gaussian_model(path: Path, seed: int = 0, rows: int = 128) -> Path:
    """A small safetensors model with two layers that `auto` chooses."""
    tensors = {
        "layer1.weight": gaussian(rows, 128, seed=seed),
        "layer1.bias": gaussian(128, seed=seed + 1),
        "layer2.weight": gaussian(96, 128, seed=seed + 2),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def sharded_model(folder: Path) -> Path:
    """A folder with two shards, an index and a configuration."""
    folder.mkdir()
    shards = {
        "model-00001-of-00002.safetensors": {"a.weight": gaussian(128, 128, seed=1)},
        "model-00002-of-00002.safetensors": {
            "b.weight": gaussian(96, 128, seed=2),
            "b.bias": gaussian(96, seed=3),
        },
    }
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    table = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    index = {"metadata": {"total_size": 0}, "weight_map": table}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    return folder


def plain_key(path: Path, parameters: Parameters = QUICK) -> Path:
    """A fresh key, stored without a passphrase."""
    Key.new(parameters).save(path, None)
    return path


def saved(path: Path, **tensors: npt.NDArray[np.float32]) -> Path:
    """A safetensors file of these tensors; without any, of a layer and a bias."""
    save_file(tensors or {"layer.weight": gaussian(512, 600), "b": gaussian(7)}, path)
    return path


def embed_unbound(
    source: Path, key: Key, out: Path, options: EmbedOptions | None = None
) -> Embedding:
    """Mark without an anchor and take the claim away: what is then found, a search finds."""
    done = embed(source, key, out, replace(options or EmbedOptions(), anchor=False))
    assert done.claim_file is not None
    Path(done.claim_file).unlink()
    return done
