"""Rebuilding a network so that it computes the same with other weights.

Channels and heads change places, grow and shrink, turn their signs, gain dummies that do nothing;
residual streams and heads are rotated. None of it needs data: a map of the model's structure,
recognised from the names and shapes of its tensors, says which tensors must change together. A
mark that is read by position does not survive; the owner undoes it by aligning the suspect with
his registered reference.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, get_args

import numpy as np

from neuralmark.attacks.contract import Array, Attack, Outcome, Scene, option
from neuralmark.attacks.tools import changes
from neuralmark.attacks.tools.structure import HIDDEN, Group, Structure
from neuralmark.errors import AttackError, ParameterError

Rebuilding = Literal["permute", "rescale", "flip", "dummy", "rotate"]
PERMUTE: Final = "permute"
RESCALE: Final = "rescale"
FLIP: Final = "flip"
DUMMY: Final = "dummy"
ROTATE: Final = "rotate"
HOW: tuple[Rebuilding, ...] = get_args(Rebuilding)
SHARES = (PERMUTE, FLIP, ROTATE)

_SWEEP: dict[Rebuilding, tuple[float, ...]] = {
    PERMUTE: (0.1, 0.5, 1.0),
    FLIP: (0.1, 0.5, 1.0),
    RESCALE: (0.5, 1.0, 3.0),
    DUMMY: (1, 8),
    ROTATE: (0.5, 1.0),
}


@dataclass(frozen=True)
class Restructure(Attack):
    """Change the weights so that the function stays: permute, rescale, flip, dummy or rotate."""

    summary: ClassVar[str] = "rebuild the network: same outputs, other weights"
    expects: ClassVar[str] = (
        "mild rescaling is survived; the rest destroys the mark until the owner aligns the model"
    )
    dial: ClassVar[str] = "amount"
    preserves: ClassVar[bool] = True
    """`launch` compares outputs before and after when there is data."""

    how: Rebuilding = option(PERMUTE, "what is done to channels, heads and streams", choices=HOW)
    amount: float = option(
        1.0,
        "share of channels (permute, flip, rotate), a of e^U(-a,a) (rescale), channels added"
        " to each layer (dummy)",
        low=0,
        high=10_000,
    )
    heads: int = option(
        0, "attention heads, where neither model nor width tells (0: find out)", low=0
    )

    def __post_init__(self) -> None:
        """Refuse amounts that this way of rebuilding has no meaning for."""
        super().__post_init__()
        if self.how in SHARES and not 0 < self.amount <= 1:
            raise ParameterError(f"amount must be a share for {self.how}, over 0 and up to 1")
        if self.how == DUMMY and (self.amount < 1 or self.amount != int(self.amount)):
            raise ParameterError(
                "amount must be a whole number from 1 for dummy: channels per layer"
            )
        if self.how == RESCALE and not 0 < self.amount <= 10:
            raise ParameterError("amount must be over 0 and up to 10 for rescale: a of e^U(-a,a)")

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """Each way at a few strengths."""
        return tuple(cls(how, amount) for how, amounts in _SWEEP.items() for amount in amounts)

    @property
    def variant(self) -> str:
        """The way of rebuilding."""
        return self.how

    def run(self, scene: Scene) -> Outcome:
        """Recognise the structure, change what touches the targets."""
        from neuralmark.attacks.families import structure_of

        structure = structure_of(scene.weights, scene.model, self.heads)
        table = dict(scene.weights)
        work = _Work(structure, frozenset(scene.target), table, scene.rng, self.amount)
        touched, channels = _WAYS[self.how](work)
        if not touched:
            raise AttackError(_nothing(self.how, structure))
        changed = {n: v for n, v in table.items() if v is not scene.weights[n]}
        note = f"{structure.family}: {touched} groups, {channels} channels"
        figures = {"groups": float(touched), "channels": float(channels)}
        note = "; ".join((note, *structure.notes))
        if self.how == DUMMY and scene.model is not None:
            from neuralmark.attacks.tools.resize import resized

            return Outcome(model=resized(scene.model, changed), note=note, figures=figures)
        return Outcome(changed, note=note, figures=figures)


@dataclass(frozen=True, eq=False)
class _Work:
    """One rebuilding: the map, the tensors it is meant for, the table, and how much."""

    structure: Structure
    target: frozenset[str]
    table: dict[str, Array]
    rng: np.random.Generator
    amount: float

    def groups(self, fit: Callable[[Group], bool]) -> list[Group]:
        """The groups that touch a target and can be treated so."""
        return [g for g in self.structure.groups if g.tensors() & self.target and fit(g)]


def _permute(work: _Work) -> tuple[int, int]:
    groups = work.groups(lambda group: group.movable and group.size > 1)
    channels = 0
    for group in groups:
        chosen = changes.pick(work.rng, group.size, max(work.amount, 2 / group.size))
        changes.permute(work.table, group, chosen)
        channels += len(chosen)
    return len(groups), channels


def _rescale(work: _Work) -> tuple[int, int]:
    normed = work.groups(lambda group: any(m.norm and m.norm.direct for m in group.producers))
    for group in normed:
        changes.rescale_norms(work.table, group, work.rng, work.amount)
    scaled = work.groups(changes.scalable)
    for group in scaled:
        changes.rescale(work.table, group, work.rng, work.amount)
    touched = {group.name: group.size for group in (*normed, *scaled)}
    return len(touched), sum(touched.values())


def _flip(work: _Work) -> tuple[int, int]:
    groups = work.groups(lambda _: True)
    turned = [changes.flip(work.table, group, work.rng, work.amount) for group in groups]
    return sum(1 for count in turned if count), sum(turned)


def _dummy(work: _Work) -> tuple[int, int]:
    groups = work.groups(lambda group: group.kind == HIDDEN and group.movable)
    for group in groups:
        changes.add_dummies(work.table, group, work.rng, int(work.amount))
    return len(groups), len(groups) * int(work.amount)


def _rotate(work: _Work) -> tuple[int, int]:
    pairs = [pair for pair in work.structure.pairs if pair.tensors() & work.target]
    if pairs:
        chosen = changes.pick(work.rng, len(pairs), work.amount)
        pairs = [pairs[index] for index in chosen]
    for pair in pairs:
        changes.rotate_pair(work.table, pair, work.rng)
    touched, channels = len(pairs), sum(pair.size for pair in pairs)
    stream = work.structure.stream
    if stream is not None and stream.tensors() & work.target:
        touched += 1
        channels += changes.rotate_stream(work.table, stream, work.rng, work.amount)
    return touched, channels


_WAYS: dict[Rebuilding, Callable[[_Work], tuple[int, int]]] = {
    PERMUTE: _permute,
    RESCALE: _rescale,
    FLIP: _flip,
    DUMMY: _dummy,
    ROTATE: _rotate,
}

_WANTS = {
    PERMUTE: "hidden channels or heads",
    RESCALE: "ReLU or a batch norm behind its layers",
    FLIP: "a batch norm or a gated MLP",
    DUMMY: "hidden channels",
    ROTATE: "attention heads or a residual stream with RMSNorm",
}


def _nothing(how: Rebuilding, structure: Structure) -> str:
    """Why nothing could be done."""
    why = f" ({'; '.join(structure.notes)})" if structure.notes else ""
    return (
        f"{how} needs {_WANTS[how]} beside the tensors to attack, and this {structure.family} has"
        f" none there{why}: use another way, or attack all tensors"
    )
