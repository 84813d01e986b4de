"""The ways of rebuilding a network: which groups, heads and streams each of them changes.

A way takes the work at hand and says how many groups it touched, and how many channels in all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from neuralmark.attacks.contract import Array, Outcome, Scene
from neuralmark.attacks.tools import changes, equalising, growing
from neuralmark.structures.structure import HIDDEN, Group, Indices, Structure

_ROUNDS = 3
"""Rows of one layer are columns of the next: norms are equal after a few rounds."""
_REACH = 1.0
"""How far `everything` rescales: e^U(-1,1)."""

Touched = tuple[int, int]
"""Groups, and channels in all."""


@dataclass(frozen=True, eq=False)
class Rebuilding:
    """A network that is being rebuilt: its map, the tensors it is meant for, and its table."""

    structure: Structure
    target: frozenset[str]
    table: dict[str, Array]
    rng: np.random.Generator
    groups: list[Group] = field(default_factory=list)
    """As they are by now: some ways change how many channels there are."""
    numbers: list[Indices] = field(default_factory=list)
    """The new number of every token, for each time that they were numbered anew."""

    @classmethod
    def on(cls, scene: Scene, heads: int) -> "Rebuilding":
        """Recognise the structure of a scene's model."""
        from neuralmark.structures import structure_of

        structure = structure_of(scene.weights, scene.model, heads or scene.heads)
        target, groups = frozenset(scene.target), list(structure.groups)
        return cls(structure, target, dict(scene.weights), scene.rng, groups)

    def outcome(self, scene: Scene, note: str, figures: Mapping[str, float]) -> Outcome:
        """What was made of the scene's model; a live one where shapes or numbers changed."""
        changed = {n: v for n, v in self.table.items() if v is not scene.weights[n]}
        same = all(v.shape == scene.weights[n].shape for n, v in changed.items())
        if scene.model is None or (same and not self.numbers):
            return Outcome(changed, note=note, figures=figures)
        from neuralmark.attacks.tools.resize import renumbered, resized

        model = resized(scene.model, changed)
        for numbers in self.numbers:
            assert self.structure.vocabulary is not None
            model = renumbered(model, self.structure.vocabulary, numbers)
        return Outcome(model=model, note=note, figures=figures)

    def places(self, fit: Callable[[Group], bool]) -> list[int]:
        """Which groups touch a target and can be treated so."""
        found = enumerate(self.groups)
        return [i for i, group in found if group.tensors() & self.target and fit(group)]

    def each(self, fit: Callable[[Group], bool]) -> list[Group]:
        """The groups that touch a target and can be treated so."""
        return [self.groups[i] for i in self.places(fit)]

    def grow(
        self,
        fit: Callable[[Group], bool],
        grown: Callable[[changes.Table, Group, np.random.Generator, int], Group],
        count: float,
    ) -> Touched:
        """Let groups have more channels."""
        places, added = self.places(fit), 0
        for i in places:
            before = self.groups[i].size
            self.groups[i] = grown(self.table, self.groups[i], self.rng, int(count))
            added += self.groups[i].size - before
        return len(places), added


def permute(work: Rebuilding, share: float) -> Touched:
    """Channels and heads change places."""
    groups = work.each(lambda group: group.movable and group.size > 1)
    channels = 0
    for group in groups:
        chosen = changes.pick(work.rng, group.size, max(share, 2 / group.size))
        changes.permute(work.table, group, chosen)
        channels += len(chosen)
    return len(groups), channels


def rescale(work: Rebuilding, reach: float) -> Touched:
    """Channels grow and shrink."""
    normed = work.each(lambda group: any(m.norm and m.norm.direct for m in group.producers))
    for group in normed:
        changes.rescale_norms(work.table, group, work.rng, reach)
    scaled = work.each(changes.scalable)
    for group in scaled:
        changes.rescale(work.table, group, work.rng, reach)
    touched = {group.name: group.size for group in (*normed, *scaled)}
    return len(touched), sum(touched.values())


def flip(work: Rebuilding, share: float) -> Touched:
    """Channels turn their signs."""
    groups = work.each(lambda _: True)
    turned = [changes.flip(work.table, group, work.rng, share) for group in groups]
    return sum(1 for count in turned if count), sum(turned)


def dummy(work: Rebuilding, count: float) -> Touched:
    """Channels come in that do nothing."""
    return work.grow(
        lambda group: group.kind == HIDDEN and group.movable and not group.rigid,
        changes.add_dummies,
        count,
    )


def split(work: Rebuilding, count: float) -> Touched:
    """Channels become several that add up."""
    return work.grow(growing.resizable, growing.split, count)


def duplicate(work: Rebuilding, count: float) -> Touched:
    """Channels get near-duplicates that cancel each other."""
    return work.grow(growing.resizable, growing.add_decoys, count)


def rotate(work: Rebuilding, share: float) -> Touched:
    """Heads are given other axes, and so are streams that are normed by their length only."""
    pairs = [pair for pair in work.structure.pairs if pair.tensors() & work.target]
    if pairs:
        chosen = changes.pick(work.rng, len(pairs), share)
        pairs = [pairs[index] for index in chosen]
    for pair in pairs:
        changes.rotate_pair(work.table, pair, work.rng)
    touched, channels = len(pairs), sum(pair.size for pair in pairs)
    stream = work.structure.stream
    if stream is not None and stream.tensors() & work.target:
        touched += 1
        channels += changes.rotate_stream(work.table, stream, work.rng, share)
    return touched, channels


def equalise(work: Rebuilding, extent: float) -> Touched:
    """Channels get equal norms, and heads axes of equal size."""
    touched: dict[str, int] = {}
    step = 1 - (1 - extent) ** (1 / _ROUNDS)
    for _ in range(_ROUNDS):
        for group in work.each(lambda _: True):
            if equalising.equalise(work.table, group, step):
                touched[group.name] = group.size
    for pair in work.structure.pairs:
        if pair.tensors() & work.target:
            equalising.whiten(work.table, pair, extent)
            touched[pair.name] = pair.size
    return len(touched), sum(touched.values())


def renumber(work: Rebuilding, share: float) -> Touched:
    """Tokens get other numbers; their tokenizer has to be renumbered alike."""
    tokens = work.structure.vocabulary
    if tokens is None or not tokens.tensors() & work.target:
        return 0, 0
    chosen = changes.pick(work.rng, tokens.size, max(share, 2 / tokens.size))
    changes.move(work.table, tokens.sides(), chosen)
    numbers = np.arange(tokens.size)
    numbers[np.roll(chosen, 1)] = chosen
    work.numbers.append(numbers)
    return 1, len(chosen)


def narrow(work: Rebuilding, share: float, *, compensate: bool = True) -> Touched:
    """The least important channels go; the function does not stay quite the same."""
    places, gone = work.places(growing.resizable), 0
    for i in places:
        group = work.groups[i]
        chosen = growing.least_important(work.table, group, share)
        if compensate:
            growing.make_up(work.table, work.groups, group, chosen)
        work.groups[i] = growing.remove(work.table, group, chosen)
        gone += len(chosen)
    return len(places), gone


def everything(work: Rebuilding, dummies: float) -> Touched:
    """Dummies come in, everything is permuted, rescaled, flipped and rotated."""
    done = [dummy(work, dummies)] if dummies else []
    done += [permute(work, 1.0), rescale(work, _REACH), flip(work, 1.0), rotate(work, 1.0)]
    return max(groups for groups, _ in done), sum(channels for _, channels in done)
