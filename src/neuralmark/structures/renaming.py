"""A map under other names: that of a suspect, told in the names of its anchor (pure)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from neuralmark.structures.structure import Group, Norm, Producer, Side, Structure


def renamed(structure: Structure, names: Mapping[str, str]) -> Structure:
    """The same groups of channels; tensors that have no new name are left out."""
    return Structure(structure.family, tuple(_group(each, names) for each in structure.groups))


def _group(group: Group, names: Mapping[str, str]) -> Group:
    producers = tuple(_producer(each, names) for each in group.producers)
    return replace(
        group,
        producers=tuple(each for each in producers if each.sides),
        consumers=_sides(group.consumers, names),
        riders=_sides(group.riders, names),
    )


def _producer(producer: Producer, names: Mapping[str, str]) -> Producer:
    return Producer(_sides(producer.sides, names), _norm(producer.norm, names))


def _norm(norm: Norm | None, names: Mapping[str, str]) -> Norm | None:
    if norm is None or any(side.tensor not in names for side in norm.sides()):
        return None
    return replace(
        norm,
        gamma=names[norm.gamma],
        beta=names[norm.beta],
        mean=names[norm.mean],
        var=names[norm.var],
    )


def _sides(sides: Iterable[Side], names: Mapping[str, str]) -> tuple[Side, ...]:
    return tuple(replace(s, tensor=names[s.tensor]) for s in sides if s.tensor in names)
