"""Other copies of the marked tensors in what embedding writes: none may stay unmarked.

A folder may hold the same weights again (pytorch_model.bin beside model.safetensors, a variant in
fp16), and a file of torch a second table (state_dict and state_dict_ema). A copy that is the
original, rounded to its own dtype, becomes the marked weights, rounded: two copies marked apart
would differ exactly where the mark is. A copy of other values (an average) gets the mark by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from neuralmark.checkpoints import Checkpoint, is_shard, open_file, root_of
from neuralmark.checkpoints.readers.dtypes import ITEMSIZE, Raw, decode, encode
from neuralmark.checkpoints.readers.hints import FOREIGN, PARTITIONS
from neuralmark.errors import CheckpointError, NeuralMarkError, OutputError
from neuralmark.marking.drafting import Draft, draft, plan
from neuralmark.marking.placement import Tensor, catalogue
from neuralmark.storage import files
from neuralmark.storage.places import Place

_READABLE = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz", ".onnx", ".pt2")
_SMALL = 1 << 20
"""What is smaller and cannot be read is not a model: the arguments of a training run, say."""
_SAME = 0.1
"""Where a smaller share of the weights has the same names, names do not help."""
_FORMATS = {
    ".safetensors": "safetensors",
    ".npz": "npz",
    ".gguf": "gguf",
    ".onnx": "onnx",
    ".pt2": "pt2",
    **dict.fromkeys((".bin", ".pt", ".pth", ".ckpt"), "torch"),
}
"""What an ending promises."""
_STATES = ("optimizer", "scheduler", "scaler", "rng_state", "training_args")
"""Beginnings of the names of files that keep a training, not weights."""


@dataclass(frozen=True)
class OtherCopy:
    """A set of weights beside the one that is marked, and its tensors of the marked names."""

    name: str
    checkpoint: Checkpoint
    tensors: tuple[Tensor, ...]
    complete: bool
    """Whether all of the marked tensors are there."""


def refuse_unmarkable(source: Checkpoint, root: Path) -> None:
    """Raise where a folder to be copied holds weights that cannot be marked."""
    if not root.is_dir():
        return
    tables = [source, *(other for _, other in source.others())]
    own = {file.resolve() for table in tables for file in table.files()}
    weights = sum(source.info(name).size for name in source.names())
    names = {tensor.entry for tensor in catalogue(source)}
    for file in _files(root):
        if _is_foreign(file) and file.resolve() not in own:
            raise _unmarkable(file, root, "its format cannot be marked")
    for name, checkpoint in _others(root, own):
        known = catalogue(checkpoint)
        same = sum(tensor.info.size for tensor in known if tensor.entry in names)
        if same < _SAME * weights <= _SAME * 2 * sum(tensor.info.size for tensor in known):
            raise _unmarkable(root / name, root, "it holds as many weights under other names")


def _is_foreign(file: Path) -> bool:
    return file.suffix.lower() in FOREIGN or file.name.endswith(PARTITIONS)


def _unmarkable(file: Path, root: Path, why: str) -> OutputError:
    return OutputError(
        f"{file.relative_to(root)} would be published without the mark ({why}): take it out of"
        f" {root}, and make it anew from the marked model"
    )


def other_copies(source: Checkpoint, root: Path, marked: Sequence[Tensor]) -> list[OtherCopy]:
    """Other sets of weights in the file or folder that hold tensors of the marked names."""
    wanted = {tensor.entry for tensor in marked}
    own = {file.resolve() for file in source.files()}
    sets = [(f"{source.path.name} ({table})", other) for table, other in source.others()]
    sets += _others(root, own) if root.is_dir() else []
    done = {_span(source, tensor) for tensor in marked}
    found = []
    for name, checkpoint in sets:
        held = tuple(
            tensor
            for tensor in catalogue(checkpoint)
            if tensor.entry in wanted and _span(checkpoint, tensor) not in done
        )
        if held:
            done |= {_span(checkpoint, tensor) for tensor in held}
            found.append(OtherCopy(name, checkpoint, held, len(held) == len(wanted)))
    return found


def _span(checkpoint: Checkpoint, tensor: Tensor) -> tuple[Place, int]:
    """Where a tensor's bytes are: two sets may hold the very same ones (an index, tied tables)."""
    stored = checkpoint.span(tensor.info.name)
    return stored.file.resolve(), stored.offset


def mark_copies(drafted: Draft, written: Checkpoint, root: Path) -> tuple[str, ...]:
    """Mark all other copies in the output; say which were. `written` is the marked checkpoint."""
    notes = []
    for copy in other_copies(written, root, drafted.tensors):
        _mark(drafted, written, copy)
        notes.append(f"{copy.name} holds the marked tensors too, and was marked with them")
    return tuple(notes)


def _mark(drafted: Draft, written: Checkpoint, copy: OtherCopy) -> None:
    unusable = next((each for each in copy.tensors if each.obstacle or each.info.fixed), None)
    if unusable is not None:
        raise OutputError(
            f"{copy.name} holds {unusable.name!r} in a form that cannot be marked"
            f" ({unusable.obstacle or unusable.info.fixed}): take that file out of the folder"
        )
    originals = {tensor.name: tensor.info for tensor in drafted.tensors}
    streams = {
        tensor.info.name: _Twin(drafted.checkpoint, written, originals[tensor.name].name)
        for tensor in copy.tensors
    }
    alike = all(
        streams[tensor.info.name].rounds_to(copy.checkpoint, tensor) for tensor in copy.tensors
    )
    if alike:
        edits = {
            tensor.info.name: partial(streams[tensor.info.name].marked, tensor.info.dtype)
            for tensor in copy.tensors
        }
        copy.checkpoint.apply(edits, lambda file: file)
        return
    if not copy.complete:
        raise OutputError(
            f"{copy.name} holds other values of some of the marked tensors, which cannot carry the"
            " mark alone: take it out, and make it anew from the marked model"
        )
    names = [tensor.info.name for tensor in copy.tensors]
    try:
        planned = plan(copy.checkpoint, drafted.key, names).bound_to(drafted.plan.anchor)
        planned = replace(planned, alone=drafted.plan.alone, covered=drafted.plan.covered)
        own = draft(planned, strength=drafted.strength)
    except NeuralMarkError as error:
        raise OutputError(f"{copy.name} cannot be marked ({error}): take it out") from None
    new = {name: b"".join(pieces()) for name, pieces in own.edits().items()}
    copy.checkpoint.apply(
        {name: partial(iter, [data]) for name, data in new.items()}, lambda file: file
    )


class _Twin:
    """A marked tensor before and after, read in pieces of any length."""

    def __init__(self, before: Checkpoint, after: Checkpoint, name: str) -> None:
        self._before, self._after, self._name = before, after, name
        self._dtype = before.info(name).dtype

    def rounds_to(self, other: Checkpoint, tensor: Tensor) -> bool:
        """Whether a copy is this tensor as it was before, rounded to the copy's dtype."""
        dtype, itemsize = tensor.info.dtype, ITEMSIZE[tensor.info.dtype]
        given = _Buffer(self._before.read(self._name), ITEMSIZE[self._dtype])
        for raw in other.read(tensor.info.name):
            values = decode(given.take(len(raw) // itemsize), self._dtype)
            if not np.array_equal(encode(values, dtype), raw):
                return False
        return True

    def marked(self, dtype: str) -> Iterator[bytes]:
        """The tensor as it is now, rounded."""
        for raw in self._after.read(self._name):
            yield encode(decode(raw, self._dtype), dtype).tobytes()


class _Buffer:
    """Takes whole elements from a stream of pieces."""

    def __init__(self, pieces: Iterator[Raw], itemsize: int) -> None:
        self._pieces, self._itemsize = pieces, itemsize
        self._rest: Raw = np.empty(0, np.uint8)

    def take(self, count: int) -> Raw:
        """The next elements."""
        parts, missing = [self._rest], count * self._itemsize - len(self._rest)
        while missing > 0:
            piece = next(self._pieces).copy()  # the reader uses its buffer again
            parts.append(piece)
            missing -= len(piece)
        whole = np.concatenate(parts)
        taken, self._rest = np.split(whole, [count * self._itemsize])
        return taken


def _others(root: Path, own: set[Place]) -> Iterator[tuple[str, Checkpoint]]:
    """Every set of weights in a folder besides the one whose files are `own`."""
    seen = set(own)
    every = list(_files(root))
    indices = [file for file in every if file.name.endswith(".index.json")]
    single = [file for file in every if not file.name.startswith(_STATES)]
    for file in (*indices, *single):
        if file.resolve() in seen:
            continue
        try:
            checkpoint = open_file(file)
        except CheckpointError as error:
            if file.suffix.lower() not in _READABLE or file.stat().st_size < _SMALL:
                continue
            raise _unmarkable(file, root, f"it cannot be read: {error}") from None
        held = {each.resolve() for each in checkpoint.files()}
        if held <= seen:
            continue
        seen |= held
        yield str(file.relative_to(root)), checkpoint
        for table, other in checkpoint.others():
            yield f"{file.relative_to(root)} ({table})", other


def _files(root: Path) -> Iterator[Path]:
    for entry in sorted(root.iterdir()):
        if entry.name in files.LEFT_OUT:
            continue
        if entry.is_dir() and not entry.is_symlink():  # copying refuses links to folders
            yield from _files(entry)
        elif entry.is_file():
            yield entry


def check_whole(
    checkpoint: Checkpoint, model: Path, out: str | Path | None, *, named: bool
) -> None:
    """Refuse one shard of several, and an output whose name promises another format."""
    if is_shard(model) and not named:
        raise OutputError(
            f"{model} is one shard of several: give the folder, or the index of its shards"
        )
    ending = "" if out is None else Path(out).suffix.lower()
    kind = checkpoint.format.partition("_")[0]
    alone = model.is_file() and root_of(model) == model and ending != model.suffix.lower()
    promised = _FORMATS.get(ending, "another format" if ending in (*FOREIGN, ".pkl") else kind)
    if alone and promised != kind:
        raise OutputError(
            f"{out} promises {promised}, but the copy is a file of {kind}, as {model.name} is:"
            " choose the same ending, or convert the model first"
        )


def unmarked_in(source: Checkpoint, root: Path) -> tuple[str, ...]:
    """Name what stays unmarked in a folder that was marked in place."""
    if not root.is_dir():
        return ()
    own = {file.resolve() for file in source.files()}
    others = [file for file in _files(root) if file.resolve() not in own]
    foreign = [file for file in others if _is_foreign(file)]
    kept = [entry for entry in root.iterdir() if entry.name in files.LEFT_OUT]
    return tuple(
        f"{path.relative_to(root)} may hold the unmarked weights: do not publish it"
        for path in sorted((*foreign, *kept))
    )


def links_in(root: Path) -> tuple[str, ...]:
    """Name files whose content came from outside the folder; a hub's cache of blobs is meant to."""
    if not root.is_dir():
        return ()
    inside = root.resolve()
    targets = [(file, file.resolve()) for file in _files(root) if file.is_symlink()]
    return tuple(
        f"{file.relative_to(root)} is a link: the content of {target} is in the copy"
        for file, target in targets
        if not target.is_relative_to(inside) and target.parent.name != "blobs"
    )


def left_out_of(root: Path) -> tuple[str, ...]:
    """Say which files of a folder are not copied."""
    gone = sorted(e.name for e in root.rglob("*") if files.left_out(e)) if root.is_dir() else []
    return (f"left out of the copy: {', '.join(dict.fromkeys(gone))}",) if gone else ()
