"""Tensors of a network whose structure is known, put in order together (ANCHORS.md, section 3).

Channels of a group get one order from all tensors that make or read them: a residual stream from
dozens of them. Parts of the network that share no channels are treated one by one. Groups that the
map calls immovable are put in order all the same: they only start where they are.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from neuralmark.anchors.aligning.contents import balanced, laid
from neuralmark.anchors.aligning.contract import Aligned, Progress
from neuralmark.anchors.aligning.finishing import Axis, aligned, kept_orders
from neuralmark.anchors.aligning.fitting import fit, fits, guessed
from neuralmark.anchors.aligning.joining import Joints, find_copies
from neuralmark.anchors.aligning.puzzle import Bundle, Fit, Floats, Order, Puzzle, PuzzlePiece
from neuralmark.anchors.aligning.single import can_be
from neuralmark.anchors.aligning.vectors import follow, followers
from neuralmark.anchors.anchor import Anchor
from neuralmark.structures.structure import HEADS, Array, Group, Structure, Weights

_GOOD = 0.9
"""A start that ends so alike needs no other."""

Shapes = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""Of the anchor's and the suspect's tensor."""


@dataclass(frozen=True)
class Lane:
    """What lies along one axis of a tensor: whose channels, in runs of how many entries."""

    owner: str
    block: int = 1
    reads: bool = False
    movable: bool = False
    count: int = 0
    """How many channels the suspect has."""


Layout = dict[tuple[str, int], Lane]
"""By tensor and axis."""


def align_groups(
    suspects: Weights,
    anchor: Anchor,
    names: Collection[str],
    structure: Structure,
    limit: int,
    progress: Progress | None = None,
) -> dict[str, Aligned]:
    """What the structure tells of these tensors."""
    shapes = _shapes(suspects, anchor, limit)
    layout = _layout(structure, shapes)
    beside = followers(structure, set(shapes))
    wanted = {beside[name][0] if name in beside else name for name in names}
    parts = [part for part in _parts(layout, shapes) if part & wanted]
    tell = progress or (lambda *_: None)
    found = _in_order(structure, layout, parts, suspects, anchor, tell)
    for name in names:
        leader, turns = beside.get(name, ("", False))
        if leader in found and name in suspects and name in anchor:
            aside = follow(name, found[leader], suspects, anchor, turns=turns)
            found.update({} if aside is None else {name: aside})
    return {name: aligned for name, aligned in found.items() if name in names}


def _in_order(
    structure: Structure,
    layout: Layout,
    parts: list[set[str]],
    suspects: Weights,
    anchor: Anchor,
    tell: Progress,
) -> dict[str, Aligned]:
    """All tensors of some parts of the network; with copies joined where that is likelier."""
    copies = _copies(structure, layout, suspects, anchor)
    found: dict[str, Aligned] = {}
    whole = sum(map(len, parts))
    for part in parts:
        tell(f"aligning {min(part)}{' and others' * (len(part) > 1)}", len(found), whole)
        work = _GroupWork(sorted(part), layout, suspects, anchor)
        found.update(work.done({}))
        if any(lane.owner in copies for lane in work.lanes()):
            joined = work.done(copies)
            found.update({n: a for n, a in joined.items() if a.cosine > found[n].cosine})
    return found


@dataclass(frozen=True, eq=False)
class _GroupWork:
    """Tensors that share channels, to be put in order together."""

    names: list[str]
    layout: Layout
    suspects: Weights
    anchor: Weights

    def lanes(self) -> list[Lane]:
        return [self.layout[name, axis] for name in self.names for axis in (0, 1)]

    def owners(self) -> list[str]:
        return sorted({lane.owner for lane in self.lanes()})

    def in_place(self) -> set[int]:
        """Bundles that cannot have moved without changing the function."""
        moved = {lane.owner for lane in self.layout.values() if lane.movable}
        return {n for n, owner in enumerate(self.owners()) if owner not in moved}

    def done(self, copies: Mapping[str, Joints]) -> dict[str, Aligned]:
        """Everything in order, with these copies joined before."""
        puzzle = self.puzzle(copies)
        best = _best(puzzle, self.in_place())
        kept = kept_orders(puzzle, best)
        found = {}
        for piece, signs in zip(puzzle.pieces, best.signs, strict=True):
            axes = []
            for axis in (0, 1):
                lane = self.layout[piece.name, axis]
                joints = copies.get(lane.owner)
                index = kept[piece.bundles[axis]]
                axes.append(Axis(index, signs[axis], lane.block, joints, lane.reads))
            found[piece.name] = aligned(axes, self.suspects[piece.name], self.anchor[piece.name])
        return found

    def puzzle(self, copies: Mapping[str, Joints]) -> Puzzle:
        """All tensors as pieces."""
        owners = {owner: number for number, owner in enumerate(self.owners())}
        pieces: list[PuzzlePiece] = []
        sides: dict[int, list[tuple[int, int]]] = {number: [] for number in owners.values()}
        for name in self.names:
            rows, columns = (owners[self.layout[name, axis].owner] for axis in (0, 1))
            sides[rows].append((len(pieces), 0))
            sides[columns].append((len(pieces), 1))
            one = self._cube(self.anchor[name], name)
            two = self._cube(self._joined(name, copies), name)
            pieces.append(PuzzlePiece(name, one, two, (rows, columns)))
        bundles = []
        for touched in sides.values():
            piece, axis = pieces[touched[0][0]], touched[0][1]
            sizes = piece.anchor.shape[axis], piece.suspect.shape[axis]
            bundles.append(Bundle(*sizes, tuple(touched)))
        return Puzzle(tuple(pieces), tuple(bundles))

    def _joined(self, name: str, copies: Mapping[str, Joints]) -> Array:
        """The suspect's tensor with copies joined."""
        values = self.suspects[name]
        for axis in (0, 1):
            lane = self.layout[name, axis]
            joints = copies.get(lane.owner)
            if joints is not None:
                treat = joints.summed if lane.reads else joints.kept
                values = treat(values, axis, lane.block)
        return values

    def _cube(self, values: Array, name: str) -> Floats:
        """Columns of several entries each (a flattened map) count as kernel positions."""
        width = values.shape[1] // self.layout[name, 1].block
        return balanced(laid(values.reshape(values.shape[0], width, -1)))


def _shapes(suspects: Weights, anchor: Anchor, limit: int) -> Shapes:
    """Tensors of two axes or more that both have whole, with the same kernel positions."""
    found = {}
    for entry in anchor.entries:
        if entry.rows is not None or entry.name not in suspects:
            continue
        one, two = entry.shape, suspects[entry.name].shape
        if can_be(two, one) and all(a * b <= limit for a, b in zip(one[:2], two[:2], strict=True)):
            found[entry.name] = (one, two)
    return found


def _layout(structure: Structure, shapes: Shapes) -> Layout:
    """Whose channels lie along which axis; axes of no group have channels of their own."""
    layout = {(name, axis): Lane(f"{name} {axis}") for name in shapes for axis in (0, 1)}
    for group in structure.groups:
        if group.kind != HEADS:
            layout.update(_sides(group, shapes))
    return layout


def _sides(group: Group, shapes: Shapes) -> Layout:
    """The axes of one group, as far as the suspect has the same number of channels there."""
    counts = {}
    for side in group.sides():
        if side.tensor not in shapes or side.offset or (side.axis == 0 and side.block > 1):
            continue
        one, two = (shape[side.axis] for shape in shapes[side.tensor])
        if one == group.size * side.block and two % side.block == 0:
            counts[side] = two // side.block
    if not counts:
        return {}
    common = max(Counter(counts.values()).items(), key=lambda item: (item[1], item[0]))[0]
    reads = set(group.consumers)
    return {
        (side.tensor, side.axis): Lane(group.name, side.block, side in reads, group.movable, common)
        for side, count in counts.items()
        if count == common
    }


def _copies(
    structure: Structure, layout: Layout, suspects: Weights, anchor: Weights
) -> dict[str, Joints]:
    """Of every group whose channels are in the layout, its copies, where it has some."""
    counts = {lane.owner: lane.count for lane in layout.values()}
    found = {}
    for group in structure.groups:
        joints = find_copies(group, suspects, anchor) if group.name in counts else None
        if joints is not None and len(joints.whole) == counts[group.name]:
            found[group.name] = joints
    return found


def _parts(layout: Layout, shapes: Shapes) -> list[set[str]]:
    """Tensors that share channels, directly or through others."""
    parts: list[tuple[set[str], set[str]]] = []
    for name in shapes:
        names, owners = {name}, {layout[name, 0].owner, layout[name, 1].owner}
        apart = []
        for part in parts:
            if part[1].isdisjoint(owners):
                apart.append(part)
            else:
                names, owners = names | part[0], owners | part[1]
        parts = [*apart, (names, owners)]
    return [names for names, _ in parts]


def _best(puzzle: Puzzle, in_place: set[int]) -> Fit:
    """From what cannot have moved, and from profiles; the likest end."""
    sizes = {n: puzzle.bundles[n] for n in in_place}
    start = {n: Order.same(b.anchor) for n, b in sizes.items() if b.anchor == b.suspect}
    best = fit(puzzle, start) if start and fits(puzzle, start) else None
    if best is None or best.score < _GOOD:
        other = fit(puzzle, {n: guessed(puzzle, n) for n in range(len(puzzle.bundles))})
        best = other if best is None or other.score > best.score else best
    return best
