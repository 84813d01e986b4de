"""Tensors of a network whose structure is known, put in order together (ANCHORS.md, section 3).

Channels of a group get one order from all tensors that make or read them: a residual stream from
dozens of them. Parts of the network that share no channels are treated one by one. Groups that the
map calls immovable are put in order all the same: they only start where they are.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from neuralmark.anchors.aligning.contents import balanced, laid
from neuralmark.anchors.aligning.contract import Aligned
from neuralmark.anchors.aligning.finishing import finished
from neuralmark.anchors.aligning.fitting import Bundle, Fit, Order, Piece, Puzzle, fit, guessed
from neuralmark.anchors.anchor import Anchor
from neuralmark.structures.structure import HEADS, Array, Group, Structure, Weights

_GOOD = 0.9
"""A start that ends so alike needs no other."""

Shapes = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""Of the anchor's and the suspect's tensor."""


@dataclass(frozen=True)
class Channels:
    """What lies along one axis of a tensor: whose channels, in runs of how many entries."""

    owner: str
    block: int = 1
    movable: bool = False


Layout = dict[tuple[str, int], Channels]
"""By tensor and axis."""


def align_groups(
    suspects: Weights, anchor: Anchor, names: Collection[str], limit: int
) -> dict[str, Aligned]:
    """What the structure tells of these tensors; nothing where it is not known."""
    structure = anchor.skeleton.structure
    if structure is None:
        return {}
    shapes = _shapes(suspects, anchor, limit)
    layout = _layout(structure, shapes)
    found: dict[str, Aligned] = {}
    for part in _parts(layout, shapes):
        if not part.isdisjoint(names):
            puzzle = _puzzle(part, layout, suspects, anchor)
            best = _best(puzzle, _in_place(part, layout))
            found.update(finished(puzzle, best, suspects, anchor))
    return {name: aligned for name, aligned in found.items() if name in names}


def _shapes(suspects: Weights, anchor: Anchor, limit: int) -> Shapes:
    """Tensors of two axes or more that both have whole, with the same kernel positions."""
    found = {}
    for entry in anchor.entries:
        if entry.rows is not None or len(entry.shape) < 2 or entry.name not in suspects:
            continue
        one, two = entry.shape, suspects[entry.name].shape
        fits = len(one) == len(two) and one[2:] == two[2:] and 0 not in (*one, *two)
        if fits and all(a * b <= limit for a, b in zip(one[:2], two[:2], strict=True)):
            found[entry.name] = (one, two)
    return found


def _layout(structure: Structure, shapes: Shapes) -> Layout:
    """Whose channels lie along which axis; axes of no group have channels of their own."""
    layout = {(name, axis): Channels(f"{name} {axis}") for name in shapes for axis in (0, 1)}
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
    return {
        (side.tensor, side.axis): Channels(group.name, side.block, group.movable)
        for side, count in counts.items()
        if count == common
    }


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


def _owners(part: set[str], layout: Layout) -> list[str]:
    return sorted({layout[name, axis].owner for name in part for axis in (0, 1)})


def _in_place(part: set[str], layout: Layout) -> set[int]:
    """Numbers of the bundles that cannot have moved without changing the function."""
    moved = {channels.owner for channels in layout.values() if channels.movable}
    return {n for n, owner in enumerate(_owners(part, layout)) if owner not in moved}


def _puzzle(part: set[str], layout: Layout, suspects: Weights, anchor: Anchor) -> Puzzle:
    owners = {owner: number for number, owner in enumerate(_owners(part, layout))}
    pieces: list[Piece] = []
    sides: dict[int, list[tuple[int, int]]] = {number: [] for number in owners.values()}
    for name in sorted(part):
        block = layout[name, 1].block
        one, two = (balanced(laid(_in_runs(w[name], block))) for w in (anchor, suspects))
        rows, columns = (owners[layout[name, axis].owner] for axis in (0, 1))
        sides[rows].append((len(pieces), 0))
        sides[columns].append((len(pieces), 1))
        pieces.append(Piece(name, one, two, (rows, columns)))
    bundles = []
    for touched in sides.values():
        piece, axis = pieces[touched[0][0]], touched[0][1]
        sizes = piece.anchor.shape[axis], piece.suspect.shape[axis]
        bundles.append(Bundle(*sizes, tuple(touched)))
    return Puzzle(tuple(pieces), tuple(bundles))


def _in_runs(values: Array, block: int) -> Array:
    """Columns of several entries each (a flattened map) as kernel positions."""
    return values.reshape(values.shape[0], values.shape[1] // block, -1)


def _best(puzzle: Puzzle, in_place: set[int]) -> Fit:
    """From what cannot have moved, and from profiles; the likest end."""
    sizes = {n: puzzle.bundles[n] for n in in_place}
    start = {n: Order.same(b.anchor) for n, b in sizes.items() if b.anchor == b.suspect}
    best = fit(puzzle, start) if start else None
    if best is None or best.score < _GOOD:
        other = fit(puzzle, {n: guessed(puzzle, n) for n in range(len(puzzle.bundles))})
        best = other if best is None or other.score > best.score else best
    return best
