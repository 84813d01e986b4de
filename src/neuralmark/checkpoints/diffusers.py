"""diffusers pipelines: model_index.json, and a folder for each component (unet, vae, …).

One checkpoint, in which a component's tensors have its name before their own. Variants (`.fp16.`)
and second copies of a component in another format are further tables of the same names.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neuralmark.checkpoints.contract import MAX_TENSORS, Checkpoint, Patch, StoredTensor
from neuralmark.checkpoints.folder import open_index
from neuralmark.checkpoints.readers.quantised import dequantised
from neuralmark.core.encoding import strict_json
from neuralmark.errors import AmbiguousFolderError, MalformedError, UnknownFormatError
from neuralmark.storage import places
from neuralmark.storage.places import Place

INDEX = "model_index.json"
PARTS, DEEP = (INDEX,), True
MAX_INDEX = 1 << 20
MAX_COMPONENTS = 100
_STEM = r"(?:diffusion_pytorch_model|pytorch_model|model)"
_WEIGHTS = re.compile(
    rf"{_STEM}(?:\.(?P<variant>\w+))?\.(?P<suffix>safetensors|bin)"
    rf"|{_STEM}\.(?P<of>safetensors|bin)\.index(?:\.(?P<sharded>\w+))?\.json"
)
_NAME = re.compile(r"[A-Za-z0-9_]{1,80}")


def matches(path: Place, head: bytes) -> bool:
    """A folder with the index of a pipeline."""
    return path.is_dir() and (path / INDEX).is_file()


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Open the weights of every component that the index names."""
    tables: dict[str, dict[str, Checkpoint]] = {}
    for component in _components(path / INDEX):
        found = sorted(_sets(path / component), key=lambda each: each.rank)
        for place, each in enumerate(found):
            tables.setdefault(each.label if place else "", {})[component] = each.open()
    if "" not in tables:
        raise UnknownFormatError(f"{path}: none of the components of its {INDEX} has weights")
    main = tables.pop("")
    return _Pipeline(path, main, {label: _Pipeline(path, t) for label, t in tables.items()})


def _components(index: Place) -> list[str]:
    data = places.read_small(index, MAX_INDEX)
    try:
        if len(data) > MAX_INDEX:
            raise ValueError("too long")
        told = strict_json(data)
        if not isinstance(told, dict) or len(told) > MAX_COMPONENTS:
            raise ValueError("not a table of components")
    except ValueError as error:
        raise MalformedError(f"{index}: is not valid ({error})") from None
    return [
        name
        for name, value in told.items()
        if isinstance(value, list) and len(value) == 2 and all(value) and _NAME.fullmatch(name)
    ]


@dataclass(frozen=True)
class _WeightSet:
    """A file, or an index of shards, that holds all weights of a component."""

    file: Place
    suffix: str
    variant: str

    @property
    def rank(self) -> tuple[bool, bool, str]:
        """What loaders take first: no variant, safetensors."""
        return bool(self.variant), self.suffix != "safetensors", self.variant

    @property
    def label(self) -> str:
        """What to call it beside the first."""
        return self.variant + (" " * bool(self.variant)) + self.suffix

    def open(self) -> Checkpoint:
        """Its tensors; quantised ones as the model's own."""
        from neuralmark.checkpoints import open_file

        if self.file.name.endswith(".json"):
            return dequantised(open_index(self.file.parent, self.file))
        return open_file(self.file)


def _sets(folder: Place) -> list[_WeightSet]:
    """The sets of weights in a component's folder; nothing for what has none (a scheduler)."""
    found: dict[tuple[str, str], _WeightSet] = {}
    entries: list[Place] = list(folder.iterdir()) if folder.is_dir() else []
    for entry in sorted(entries, key=lambda each: each.name):
        match = _WEIGHTS.fullmatch(entry.name)
        if match is None or not entry.is_file():
            continue
        suffix = match["suffix"] or match["of"]
        variant = match["variant"] or match["sharded"] or ""
        other = found.get((suffix, variant))
        if other is not None:
            raise AmbiguousFolderError(
                f"{folder}: holds {other.file.name} and {entry.name}, and loaders differ in which"
                " they take: take one of them out"
            )
        found[suffix, variant] = _WeightSet(entry, suffix, variant)
    return list(found.values())


class _Pipeline(Checkpoint):
    """The components' tensors in one table; each keeps its own way to repair checksums."""

    def __init__(
        self,
        path: Place,
        components: Mapping[str, Checkpoint],
        variants: "Mapping[str, _Pipeline] | None" = None,
    ) -> None:
        tensors: dict[str, StoredTensor] = {}
        self._home: dict[str, tuple[Checkpoint, str]] = {}
        self._components, self._variants = components, variants or {}
        for component, checkpoint in components.items():
            for own in checkpoint.names():
                name = f"{component}.{own}"
                stored = checkpoint.span(own)
                tensors[name] = replace(stored, info=replace(stored.info, name=name))
                self._home[name] = (checkpoint, own)
        if len(tensors) > MAX_TENSORS:
            raise MalformedError(f"{path}: has more than {MAX_TENSORS:,} tensors")
        kinds = dict.fromkeys(c.format.removeprefix("folder of ") for c in components.values())
        super().__init__(path, f"diffusers of {', '.join(kinds)}", tensors)

    def others(self) -> list[tuple[str, Checkpoint]]:
        tables: list[tuple[str, Checkpoint]] = list(self._variants.items())
        for component, checkpoint in self._components.items():
            for table, other in checkpoint.others():
                tables.append((f"{component}: {table}", _Pipeline(self.path, {component: other})))
        return tables

    def repairs(self, names: list[str], target: Callable[[Path], Path]) -> list[Patch]:
        return [
            patch
            for checkpoint, mine in self._by_component(names)
            for patch in checkpoint.repairs(mine, target)
        ]

    def in_place_ranges(self, names: list[str]) -> list[tuple[Path, int, int]]:
        return [
            span
            for checkpoint, mine in self._by_component(names)
            for span in checkpoint.in_place_ranges(mine)
        ]

    def _by_component(self, names: list[str]) -> list[tuple[Checkpoint, list[str]]]:
        groups: dict[Any, list[str]] = {}
        for name in names:
            checkpoint, own = self._home[name]
            groups.setdefault(checkpoint, []).append(own)
        return list(groups.items())
