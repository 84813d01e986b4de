"""Conversions of names, layouts and types: what loaders, frameworks and formats do to a model.

Each takes a table of weights and what steers it, and gives a new table; arrays are never written
to. All tensors take part: a converter that left some as they are would not give a model.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from neuralmark.attacks.contract import Array
from neuralmark.checkpoints.readers.dtypes import rounded
from neuralmark.errors import AttackError

Made = Mapping[str, Array]

_EMBEDDING = re.compile(r"(^|[._])(embed\w*|wte|wpe|\w*embeddings?|lm_head|score)($|[._])")
_LAYER = re.compile(r"(?P<before>(?:.*?[._])?)(?P<number>\d+)\.(?P<rest>.+)$")


@dataclass(frozen=True, eq=False)
class Conversion:
    """What a conversion works with."""

    table: Made
    target: frozenset[str]
    """Stored names of the tensors that are meant; others are converted only along with them."""
    rng: np.random.Generator
    heads: int = 0
    pieces: int = 4
    rank: int = 8

    def each(self, change: Callable[[str, Array], Array | None]) -> dict[str, Array]:
        """The table with some tensors changed; None leaves one alone."""
        made = {name: change(name, value) for name, value in self.table.items()}
        if all(value is None for value in made.values()):
            raise AttackError("no tensor of this model can be converted so: use another way")
        return {n: self.table[n] if v is None else _packed(v) for n, v in made.items()}


def _packed(value: Array) -> Array:
    return np.ascontiguousarray(value, np.float32)


def is_embedding(name: str) -> bool:
    """Whether a tensor is a table of tokens or positions, or tied to one."""
    return _EMBEDDING.search(name) is not None


def rename(work: Conversion) -> dict[str, Array]:
    """Random names for everything, in random order."""
    names = list(work.table)
    codes = work.rng.choice(1 << 40, len(names), replace=False)
    order = work.rng.permutation(len(names))
    return {f"t{codes[i]:x}": work.table[names[i]] for i in order}


def prefix(work: Conversion) -> dict[str, Array]:
    """The model as a part of a larger one."""
    return {f"student.backbone.{name}": value for name, value in work.table.items()}


def transpose(work: Conversion) -> dict[str, Array]:
    """Every matrix turned."""
    return work.each(lambda _, value: value.T if value.ndim == 2 else None)


def conv1d(work: Conversion) -> dict[str, Array]:
    """Linear layers from [out, in] to [in, out] or back; embeddings stay."""
    return work.each(
        lambda name, value: value.T if value.ndim == 2 and not is_embedding(name) else None
    )


def ohwi(work: Conversion) -> dict[str, Array]:
    """Kernels with their inputs last."""
    return work.each(lambda _, value: np.moveaxis(value, 1, -1) if value.ndim > 2 else None)


def hwio(work: Conversion) -> dict[str, Array]:
    """Kernels with inputs and outputs last; matrices turned, as such frameworks have them."""

    def change(name: str, value: Array) -> Array | None:
        if value.ndim > 2:
            return np.moveaxis(value, (1, 0), (-2, -1))
        return value.T if value.ndim == 2 and not is_embedding(name) else None

    return work.each(change)


def flatten(work: Conversion) -> dict[str, Array]:
    """Kernels as matrices, a row for each output."""
    return work.each(lambda _, value: value.reshape(len(value), -1) if value.ndim > 2 else None)


def half(work: Conversion) -> dict[str, Array]:
    """All weights rounded to bfloat16."""

    def change(_: str, value: Array) -> Array:
        flat = rounded(value.reshape(-1).astype(np.float64), "BF16")
        return flat.astype(np.float32).reshape(value.shape)

    return work.each(change)


@dataclass(frozen=True)
class Container:
    """Layers that are numbered one after the other."""

    before: str
    """What stands before the number."""
    layers: Mapping[int, Mapping[str, str]]
    """Stored names by number, and by what stands behind it."""

    def named(self, number: int, rest: str) -> str:
        """The name of a tensor in a layer of this number."""
        return f"{self.before}{number}.{rest}"


def containers(table: Made) -> list[Container]:
    """All rows of at least two layers, those with the most layers first."""
    found: dict[str, dict[int, dict[str, str]]] = {}
    for name in table:
        match = _LAYER.match(name)
        if match:
            layers = found.setdefault(match["before"], {})
            layers.setdefault(int(match["number"]), {})[match["rest"]] = name
    rows = [Container(before, layers) for before, layers in found.items() if len(layers) > 1]
    return sorted(rows, key=lambda row: (-len(row.layers), row.before))


def stack(work: Conversion) -> dict[str, Array]:
    """Tensors of the same name in every layer as one, with the layers along a first axis."""
    made = dict(work.table)
    for row in containers(work.table):
        for rest in dict.fromkeys(rest for layer in row.layers.values() for rest in layer):
            names = [layer[rest] for _, layer in sorted(row.layers.items()) if rest in layer]
            shapes = {work.table[name].shape for name in names}
            if len(names) > 1 and len(shapes) == 1:
                made[f"{row.before}{rest}"] = np.stack([made.pop(name) for name in names])
    if made.keys() == work.table.keys():
        raise AttackError("the model has no layers of equal shapes that could be stacked")
    return made


def renumber(work: Conversion) -> dict[str, Array]:
    """Every layer gets another number: they count from 7, backwards."""
    return _relabelled(
        work, lambda numbers: {n: 6 + len(numbers) - i for i, n in enumerate(numbers)}
    )


def insert(work: Conversion) -> dict[str, Array]:
    """A new random layer before each second one; all behind it move up."""
    made = _relabelled(work, lambda numbers: {n: n + 1 + i // 2 for i, n in enumerate(numbers)})
    for row, numbers in _rows(work):
        labels = {n: n + 1 + i // 2 for i, n in enumerate(numbers)}
        for like in numbers[::2]:
            for rest, name in row.layers[like].items():
                old = work.table[name]
                fresh = work.rng.standard_normal(old.shape) * float(old.std()) + float(old.mean())
                made[row.named(labels[like] - 1, rest)] = fresh.astype(np.float32)
    return made


def duplicate(work: Conversion) -> dict[str, Array]:
    """Every second layer twice, as models are grown; those behind it move up."""
    made = _relabelled(work, lambda numbers: {n: n + i // 2 for i, n in enumerate(numbers)})
    for row, numbers in _rows(work):
        for i, n in enumerate(numbers):
            if i % 2:
                for rest, name in row.layers[n].items():
                    made[row.named(n + i // 2 + 1, rest)] = work.table[name]
    return made


def drop(work: Conversion) -> dict[str, Array]:
    """Every third layer (at least one) is left out; those behind it move down."""
    made = dict(work.table)
    for row, numbers in _rows(work):
        gone = set(numbers[1::3])
        kept = [n for n in numbers if n not in gone]
        for n in numbers:
            for name in row.layers[n].values():
                del made[name]
        for new, old in zip(numbers, kept, strict=False):
            for rest, name in row.layers[old].items():
                made[row.named(new, rest)] = work.table[name]
    return made


def _rows(work: Conversion) -> Iterator[tuple[Container, list[int]]]:
    """The rows that hold targets, with their numbers in order."""
    some = False
    for row in containers(work.table):
        names = {name for layer in row.layers.values() for name in layer.values()}
        if names & work.target:
            some = True
            yield row, sorted(row.layers)
    if not some:
        raise AttackError("the model has no numbered layers with tensors to attack")


def _relabelled(
    work: Conversion, labels: Callable[[list[int]], Mapping[int, int]]
) -> dict[str, Array]:
    new: dict[str, str] = {}
    for row, numbers in _rows(work):
        to = labels(numbers)
        for number, layer in row.layers.items():
            new |= {name: row.named(to[number], rest) for rest, name in layer.items()}
    return {new.get(name, name): value for name, value in work.table.items()}
