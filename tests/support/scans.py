"""Models, keys and claims for scans, and what became of them."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from neuralmark import EmbedOptions, Key, RemoteOptions, ScanOptions, ScanResult, embed
from neuralmark.checkpoints import place_of
from neuralmark.scanning.contract import ScanRow
from neuralmark.storage.places import Place
from tests.support.far import MirrorPlace
from tests.support.models import QUICK, gaussian_model


class MirroredAddress(MirrorPlace):
    """Behind mirror://PATH lies a file or folder of this machine, as if it were far."""

    def __str__(self) -> str:
        return f"mirror://{self.path}"


def mirrored(target: str, options: RemoteOptions | None = None) -> Place:
    """In the place of `place_of`: knows the kind of addresses above."""
    if target.startswith("mirror://"):
        return MirroredAddress(Path(target.removeprefix("mirror://")))
    return place_of(target, options)


PLAIN = EmbedOptions(anchor=False)
ONE = ScanOptions(jobs=1)


def keys_of(*names: str) -> dict[str, Key]:
    """New keys by name."""
    return {f"{name}.nmkey": Key.new(QUICK) for name in names}


def models_in(folder: Path, count: int) -> list[Path]:
    """Unmarked models with one header."""
    folder.mkdir(parents=True, exist_ok=True)
    return [gaussian_model(folder / f"{i:02}.safetensors", 10 * i) for i in range(count)]


def mark(model: Path, key: Key, claims: Path | None = None, options: EmbedOptions = PLAIN) -> Path:
    """Mark a model where it is; its claim goes into a folder, or away."""
    out = model.with_name(f"marked-{model.name}")
    embed(model, key, out, options=options)
    model.unlink()
    for beside in out.parent.glob(f"{out.name}.*"):
        if claims is None:
            beside.unlink()
        else:
            claims.mkdir(exist_ok=True)
            beside.rename(claims / beside.name)
    return out


def by_name(result: ScanResult) -> dict[str, list[ScanRow]]:
    """Rows by the last part of their target."""
    found: dict[str, list[ScanRow]] = {}
    for row in result.rows():
        found.setdefault(Path(row.target).name, []).append(row)
    return found


def statuses(result: ScanResult) -> dict[str, str]:
    """The status of each target that has one row."""
    return {name: rows[0].status for name, rows in by_name(result).items() if len(rows) == 1}


def same(rows: Any) -> list[dict[str, Any]]:
    """Rows without what differs from run to run: when they were found."""
    told = []
    for row in rows:
        plain = row.to_dict()
        if plain["verdict"]:
            plain["verdict"] = {**plain["verdict"], "date": None}
        told.append(plain)
    return told


def permuted(model: Path, out: Path, seed: int = 0) -> Path:
    """A copy whose hidden channels are in another order, under other names."""
    tensors = load_file(model)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(tensors["layer1.weight"]))
    one = np.ascontiguousarray(tensors["layer1.weight"][order])
    save_file({"a.weight": one, "b.weight": tensors["layer2.weight"]}, out)
    return out
