"""Writing an attacked model: the same file with other bytes, or a new one where shapes changed."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from neuralmark.attacks.contract import Array, Weights
from neuralmark.attacks.engine.subject import subject_of
from neuralmark.checkpoints import Checkpoint, open_checkpoint, root_of
from neuralmark.checkpoints.readers.dtypes import encode
from neuralmark.errors import OutputError, ParameterError
from neuralmark.storage import files

PIECE = 1 << 20
"""Weights encoded at a time."""

Stored = tuple[str, tuple[int, ...], bytes]
"""Type, shape and bytes of a tensor."""


def save_attacked(
    model: str | Path, weights: Weights, out: str | Path, *, overwrite: bool = False
) -> str:
    """Write the attacked weights of a checkpoint to `out` and say in which format.

    The format is the model's own; where tensors changed their shape, came or went, it is a
    safetensors file.
    """
    model, out = Path(model), Path(out)
    checkpoint = open_checkpoint(model)
    former = subject_of(model).weights
    changed = {n: w for n, w in weights.items() if not _same(former.get(n), w)}
    fits = set(weights) == set(former) and all(
        w.shape == former[n].shape for n, w in changed.items()
    )
    tied = checkpoint.tied()
    edited = [name for name in changed if name not in tied]
    in_kind = fits and checkpoint.overlap(edited) is None
    _refuse(root_of(model), out, folder=in_kind and root_of(model).is_dir())
    with files.replacing(out, overwrite=overwrite) as temporary:
        if in_kind:
            edits = {
                name: partial(_pieces, changed[name], checkpoint.info(name).dtype)
                for name in edited
            }
            checkpoint.write(temporary, edits)
        else:
            _write_safetensors(temporary, _stored(checkpoint, former, weights))
    return checkpoint.format if in_kind else "safetensors"


def _same(old: Array | None, new: Array) -> bool:
    return old is not None and (old is new or np.array_equal(old, new))


def _refuse(model: Path, out: Path, *, folder: bool) -> None:
    """The input is never the output, nor inside of it."""
    with files.writing(out):
        if out.exists() and out.samefile(model):
            raise OutputError(f"{out} is the input itself: choose another name")
        if out.is_dir() and not folder:
            raise OutputError(f"{out} is a folder: give the name of a file")
        if model.is_dir() and out.resolve().is_relative_to(model.resolve()):
            raise OutputError(f"{out} lies inside the input folder: choose a place outside of it")
        if model.resolve().is_relative_to(out.resolve()):
            raise OutputError(f"{out} holds the input: choose a place outside of it")


def _pieces(values: Array, dtype: str) -> Iterator[bytes]:
    """The bytes of a tensor, a piece at a time."""
    flat = values.reshape(-1)
    for start in range(0, flat.size, PIECE):
        yield encode(flat[start : start + PIECE].astype(np.float64), dtype).tobytes()


def _stored(checkpoint: Checkpoint, former: Weights, weights: Weights) -> dict[str, Stored]:
    """All tensors of the new file: the attacked ones, and the rest (integers) as they are."""
    kept = {name: checkpoint.info(name) for name in checkpoint.names()}
    tensors: dict[str, Stored] = {}
    for name, info in kept.items():
        if name in former:
            continue
        if info.obstacle is not None:
            raise ParameterError(
                f"{name!r} cannot be copied into a safetensors file: {info.obstacle}"
            )
        whole = b"".join(bytes(piece) for piece in checkpoint.read(name))
        tensors[name] = info.dtype, info.shape, whole
    for name, value in weights.items():
        dtype = kept[name].dtype if name in kept else "F32"
        tensors[name] = dtype, value.shape, b"".join(_pieces(value, dtype))
    return tensors


def _write_safetensors(path: Path, tensors: dict[str, Stored]) -> None:
    header: dict[str, object] = {}
    end = 0
    for name, (dtype, shape, data) in tensors.items():
        start, end = end, end + len(data)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("xb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _, _, data in tensors.values():
            file.write(data)
