"""A Hugging Face folder, or the index of its shards: several files as one checkpoint."""

import re
from pathlib import Path
from typing import Any

from neuralmark.checkpoints.contract import MAX_TENSORS, Checkpoint, Patch, StoredTensor
from neuralmark.core.encoding import strict_json
from neuralmark.errors import (
    AmbiguousFolderError,
    MalformedError,
    UnknownFormatError,
    UnsafeError,
)
from neuralmark.storage.places import Place

MAX_INDEX = 16 << 20
MAX_SHARDS = 10_000
INDEX_SUFFIX = ".index.json"
WHOLE = ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "model.pt")
CONVERTED = ("flax_model.msgpack", "flax_model.msgpack.index.json", "tf_model.h5")
"""Taken where a folder holds nothing of the above: loaders take them last."""
INDEXED = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def matches(path: Place, head: bytes) -> bool:
    """A folder, or a file named like an index."""
    return path.is_dir() or path.name.endswith(INDEX_SUFFIX)


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Open all shards of the folder (an index file stands for its folder)."""
    if path.is_file():
        return open_index(path.parent, path)
    name = _only(path)
    if name.endswith(INDEX_SUFFIX):
        return open_index(path, path / name)
    return _Folder(path, [_open_shard(path / name)])


def _only(path: Place) -> str:
    """The one file that stands for the model of this folder; refuses to choose between two.

    All loaders take safetensors before files of torch. Of two of one kind, loaders differ in what
    they prefer, so a verdict on one would be none on the other.
    """
    indexes = sorted(e.name for e in path.glob(f"*{INDEX_SUFFIX}") if _of_weights(e.name))
    found = [name for name in (*indexes, *WHOLE) if (path / name).is_file()]
    found = [name for name in found if ".safetensors" in name] or found
    if len(found) > 1:
        raise AmbiguousFolderError(
            f"{path}: holds {found[0]} and {found[1]}, and loaders differ in which they take:"
            f" name one of them ({path / found[0]}), or take the others out"
        )
    if found:
        return found[0]
    names = sorted(entry.name for entry in path.glob("*.safetensors"))
    made = [] if names else _converted(path)
    if len(names or made) == 1:
        return (names or made)[0]
    if made:
        raise AmbiguousFolderError(
            f"{path}: holds {made[0]} and {made[1]}: name one of them ({path / made[0]})"
        )
    words = f"{len(names)} safetensors files but no index" if names else "no model file"
    raise UnknownFormatError(f"{path}: {words}; expected one of {', '.join((*INDEXED, *WHOLE))}")


def _converted(path: Place) -> list[str]:
    """Models in formats that others are converted to; of one in several parts, the first."""
    known = [name for name in CONVERTED if (path / name).is_file()]
    names = [] if known else sorted(entry.name for entry in path.glob("*.gguf"))
    parts = {name: re.search(r"-(\d{5})-of-\d{5}\.gguf$", name) for name in names}
    return known + [name for name, part in parts.items() if part is None or part[1] == "00001"]


def _of_weights(name: str) -> bool:
    stem = name.removesuffix(INDEX_SUFFIX)
    return stem.endswith((".safetensors", ".bin"))


class _Folder(Checkpoint):
    """The shards' tensors in one table; each shard keeps its own way to repair checksums."""

    def __init__(
        self, path: Place, shards: list[Checkpoint], wanted: dict[str, str] | None = None
    ) -> None:
        tensors: dict[str, StoredTensor] = {}
        self._shard_of: dict[str, Checkpoint] = {}
        for shard in shards:
            for name in shard.names():
                if wanted is not None and wanted.get(name) != shard.path.name:
                    continue
                tensors[name] = shard.span(name)
                self._shard_of[name] = shard
        super().__init__(path, f"folder of {shards[0].format}", tensors)
        self.metadata = {k: text for shard in shards for k, text in shard.metadata.items()}

    def others(self) -> list[tuple[str, Checkpoint]]:
        return [
            (f"{shard.path.name}: {table}", other)
            for shard in dict.fromkeys(self._shard_of.values())
            for table, other in shard.others()
        ]

    def repairs(self, names: list[str], target: Any) -> list[Patch]:
        return [
            patch
            for shard, mine in self._by_shard(names).items()
            for patch in shard.repairs(mine, target)
        ]

    def in_place_ranges(self, names: list[str]) -> list[tuple[Path, int, int]]:
        return [
            span
            for shard, mine in self._by_shard(names).items()
            for span in shard.in_place_ranges(mine)
        ]

    def _by_shard(self, names: list[str]) -> dict[Checkpoint, list[str]]:
        groups: dict[Checkpoint, list[str]] = {}
        for name in names:
            groups.setdefault(self._shard_of[name], []).append(name)
        return groups


def open_index(folder: Place, index: Place) -> Checkpoint:
    """Open the shards that an index names, as they are stored."""
    wanted = _weight_map(index)
    if index.name.endswith(".msgpack" + INDEX_SUFFIX):  # Flax puts slashes into names
        wanted = {name.replace("/", "."): file for name, file in wanted.items()}
    suffix = index.name.partition(".index.")[0].rpartition(".")[2]
    files = list(dict.fromkeys(wanted.values()))
    if len(files) > MAX_SHARDS:
        raise MalformedError(f"{index}: names {len(files):,} shards, over {MAX_SHARDS:,}")
    shards = [_open_shard(_shard_path(folder, index, name, suffix)) for name in files]
    present = {shard.path.name: set(shard.names()) for shard in shards}
    for tensor, file in wanted.items():
        if tensor not in present[file]:
            raise MalformedError(f"{index}: says {tensor[:80]!r} is in {file}, but it is not there")
    return _Folder(folder, shards, wanted)


def _weight_map(index: Place) -> dict[str, str]:
    if index.stat().st_size > MAX_INDEX:
        raise MalformedError(f"{index}: is larger than an index may be ({MAX_INDEX:,} bytes)")
    try:
        content = strict_json(index.read_bytes())
    except ValueError as error:
        raise MalformedError(f"{index}: is not valid JSON ({error})") from None
    table = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(table, dict) or not table or len(table) > MAX_TENSORS:
        raise MalformedError(f"{index}: has no weight_map")
    if not all(isinstance(name, str) for name in table.values()):
        raise MalformedError(f"{index}: its weight_map does not map names to files")
    return table


def _shard_path(folder: Place, index: Place, name: str, suffix: str) -> Place:
    """Only a bare file name with the right ending; links are allowed, hub caches use them."""
    bare = Path(name).name == name and "\\" not in name and name.isprintable()
    if not bare or not name.endswith("." + suffix) or name.endswith(INDEX_SUFFIX):
        raise UnsafeError(f"{index}: refers to {name[:120]!r}, which is not a file beside it")
    path = folder / name
    if not path.is_file():
        raise MalformedError(f"{index}: the shard {name} is missing")
    return path


def _open_shard(path: Place) -> Checkpoint:
    from neuralmark.checkpoints import open_stored

    return open_stored(path)
