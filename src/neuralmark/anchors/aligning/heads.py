"""Attention heads: which is which, and what was done inside each (pure).

Along the stream, which is the anchor's already, values and outputs of a head make a product that no
matrix between them alters, and so do queries and keys (rotary ones too). Heads are matched by these
products; then the matrix inside each head is found by joint least squares, or, where positions turn
queries and keys, one complex factor for each frequency.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from neuralmark.anchors.aligning.assigning import assigned, on_grid
from neuralmark.anchors.aligning.sides import Floats, Two, cosine
from neuralmark.anchors.moves import MISSING, Move
from neuralmark.structures.structure import Array, Attention, Indices

QUERY, KEY, VALUE, OUTPUT = "query", "key", "value", "output"
Parts = dict[str, Two]
"""Rows along the stream of the layers that both models have."""

_TINY = 1e-12
_WORST = 1e-4
"""Matrices that stretch less in some direction than this are not inverted."""


@dataclass(frozen=True, eq=False)
class HeadMoves:
    """Where the heads of one layer lie in the suspect, part by part."""

    moves: dict[str, Move]
    likeness: float


@dataclass(frozen=True, eq=False)
class _HeadOrder:
    """For each query head and each key head of the anchor the suspect's."""

    queries: Indices
    keys: Indices
    share: int

    def of(self, part: str) -> Indices:
        return self.queries if part in (QUERY, OUTPUT) else self.keys


def align_heads(layer: Attention, parts: Parts, size: int) -> HeadMoves:
    """The heads of a layer, each of `size` values."""
    order = _order(layer, parts, size)
    found = _inside(parts, order, size, VALUE, OUTPUT)
    if layer.rotary:
        found |= _rotary(parts, order, size)
    else:
        found |= _inside(parts, order, size, KEY, QUERY)
    alike = [cosine(parts[part][0], move.of(parts[part][1], 0)) for part, move in found.items()]
    return HeadMoves(found, float(np.mean(alike)) if alike else 0.0)


def _order(layer: Attention, parts: Parts, size: int) -> _HeadOrder:
    """Which head is which, by all that is there to tell."""
    share = layer.share
    queries, keys = layer.queries // size, layer.keys // size
    alike = head_likeness(parts, size, (queries, keys))
    if alike is None:
        return _HeadOrder(np.arange(queries), np.arange(keys), share)
    their_keys = _count(parts, size, KEY, VALUE) or keys
    if alike.shape[1] == share * their_keys:
        order = assigned(on_grid(_grouped(alike, share))).index
        return _HeadOrder(_within(alike, order, share), order, share)
    index = assigned(on_grid(alike)).index
    theirs = max(1, alike.shape[1] // their_keys)
    first = index.reshape(keys, share)[:, 0]
    return _HeadOrder(index, np.where(first == MISSING, MISSING, first // theirs), share)


def _count(parts: Parts, size: int, *names: str) -> int:
    return next((len(parts[name][1]) // size for name in names if name in parts), 0)


def _grouped(alike: Floats, share: int) -> Floats:
    """Likeness of key heads: of the queries that read them, in their best order."""
    rows, columns = (count // share for count in alike.shape)
    blocks = alike.reshape(rows, share, columns, share)
    sums = np.zeros((rows, columns))
    for i, j in np.ndindex(rows, columns):
        sums[i, j] = assigned(on_grid(blocks[i, :, j])).alike.sum()
    return sums


def _within(alike: Floats, keys: Indices, share: int) -> Indices:
    """Query heads, each in the group that its key head goes to."""
    queries = np.full(len(keys) * share, MISSING, np.intp)
    for i, j in enumerate(keys):
        if j != MISSING:
            block = alike[i * share : (i + 1) * share, j * share : (j + 1) * share]
            queries[i * share : (i + 1) * share] = j * share + assigned(on_grid(block)).index
    return queries


def head_likeness(parts: Parts, size: int, counts: tuple[int, int]) -> Floats | None:
    """Query heads of the anchor against those of the suspect, by products; None: nothing known."""
    found = []
    for asks, gives in ((QUERY, KEY), (OUTPUT, VALUE)):
        if asks in parts and gives in parts:
            found.append(_products(parts[asks], parts[gives], size))
        elif asks in parts or gives in parts:
            found.append(_subspaces(parts[asks if asks in parts else gives], size, counts))
    shapes = {x.shape for x in found}
    if len(shapes) != 1:
        return None
    return np.asarray(np.mean(found, axis=0))


def _products(asks: Two, gives: Two, size: int) -> Floats:
    """Cosines of the products of two layers, head by head; grouped ones are read several times."""
    heads = [[x.reshape(-1, size, x.shape[1]) for x in two] for two in (asks, gives)]
    (q_one, q_two), (k_one, k_two) = heads
    share, theirs = len(q_one) // len(k_one), max(1, len(q_two) // max(len(k_two), 1))
    found = np.zeros((len(q_one), len(q_two)))
    for i, query in enumerate(q_one):
        upper = np.einsum("sd,htd->hst", query, q_two, optimize=True)
        lower = np.einsum("sd,htd->hst", k_one[i // share], k_two, optimize=True)
        lower = np.repeat(lower, theirs, axis=0)[: len(upper)]
        found[i] = np.einsum("hst,hst->h", upper, lower, dtype=np.float64)
    one = [_square(q, k_one[i // share]) for i, q in enumerate(q_one)]
    two = [_square(q, k_two[i // theirs]) for i, q in enumerate(q_two)]
    return np.asarray(found / np.maximum(np.sqrt(np.outer(one, two)), _TINY))


def _square(query: Array | Floats, key: Array | Floats) -> float:
    """Squared size of the product of two layers of one head."""
    return max(float(np.vdot(query @ query.T, key @ key.T)), 0.0)


def _subspaces(two: Two, size: int, counts: tuple[int, int]) -> Floats:
    """How much of the space of one head lies in that of another."""
    bases = [
        np.stack([np.linalg.qr(head.T)[0] for head in x.reshape(-1, size, x.shape[1])]) for x in two
    ]
    inner = np.einsum("hds,gdt->hgst", *bases, optimize=True)
    alike = np.sqrt(np.square(inner, dtype=np.float64).sum(axis=(2, 3)) / size)
    share = max(1, counts[0] // len(alike))
    return np.asarray(np.repeat(np.repeat(alike, share, axis=0), share, axis=1))


def _inside(parts: Parts, order: _HeadOrder, size: int, made: str, read: str) -> dict[str, Move]:
    """One invertible matrix for each key head between what makes its values and what reads them."""
    count = len(order.keys)
    ahead, behind = np.stack([np.eye(size)] * count), np.stack([np.eye(size)] * count)
    turned = False
    for head in range(count):
        pairs = _levelled(list(_pairs(parts, order, size, (made, read), head)))
        if not pairs:
            continue
        matrix, inverse = joint(pairs)
        if not _idle(pairs, matrix, inverse):
            ahead[head], behind[head], turned = matrix, inverse, True
    blocks = {made: ahead, read: np.repeat(behind, order.share, axis=0)}
    return {
        part: _move(order.of(part), size, blocks[part] if turned else None)
        for part in (made, read)
        if part in parts
    }


@dataclass(frozen=True, eq=False)
class _HeadPair:
    """Rows of one head in one layer, and whether the matrix itself or its inverse acts on them."""

    one: Floats
    two: Floats
    inverse: bool


def _pairs(
    parts: Parts, order: _HeadOrder, size: int, names: tuple[str, str], head: int
) -> Iterator[_HeadPair]:
    for name, inverse in zip(names, (False, True), strict=True):
        if name not in parts:
            continue
        index = order.of(name)
        mine = range(head * order.share, (head + 1) * order.share) if inverse else [head]
        for here in mine:
            if index[here] != MISSING:
                one, two = parts[name]
                yield _HeadPair(
                    one[here * size : (here + 1) * size].astype(np.float64),
                    two[index[here] * size : (index[here] + 1) * size].astype(np.float64),
                    inverse,
                )


def _levelled(pairs: list[_HeadPair]) -> list[_HeadPair]:
    """With products of one size: a stream that was scaled as a whole must not tear them apart."""
    sizes = [0.0, 0.0]
    for one in pairs:
        for two in pairs:
            if one.inverse and not two.inverse:
                sizes[0] += _square(one.one, two.one)
                sizes[1] += _square(one.two, two.two)
    if min(sizes) < _TINY:
        return pairs
    scale = (sizes[0] / sizes[1]) ** 0.5
    return [replace(x, two=x.two * scale) if x.inverse else x for x in pairs]


def joint(pairs: list[_HeadPair]) -> tuple[Floats, Floats]:
    """The matrix M with one = M·two, and one = M⁻ᵀ·two where inverse: a Sylvester equation."""
    size = len(pairs[0].one)
    left, right, known = (np.zeros((size, size)) for _ in range(3))
    for pair in pairs:
        target = pair.two if pair.inverse else pair.one
        weight = 1 / max(float(np.vdot(target, target)), _TINY)
        if pair.inverse:
            left += weight * pair.one @ pair.one.T
        else:
            right += weight * pair.two @ pair.two.T
        known += weight * pair.one @ pair.two.T
    a, u = np.linalg.eigh(left)
    b, v = np.linalg.eigh(right)
    sums = a[:, None] + b[None, :]
    matrix = u @ ((u.T @ known @ v) / np.maximum(sums, 1e-9 * max(sums.max(), _TINY))) @ v.T
    return matrix, _inverse(matrix)


def _inverse(matrix: Floats) -> Floats:
    """The inverse transposed; directions that nearly vanish stay small."""
    left, stretch, right = np.linalg.svd(matrix)
    least = _WORST * max(float(stretch[0]), _TINY)
    return np.asarray((left / np.maximum(stretch, least)) @ right)


def _idle(pairs: list[_HeadPair], matrix: Floats, inverse: Floats) -> bool:
    """Whether no matrix suits as well, apart from what so many numbers fit by chance."""
    turned = [(inverse if pair.inverse else matrix) @ pair.two for pair in pairs]
    plain = sum(_unlike(pair.one, pair.two) for pair in pairs)
    fitted = sum(_unlike(pair.one, two) for pair, two in zip(pairs, turned, strict=True))
    size, width = pairs[0].one.shape
    return bool(plain <= fitted * (1 + 2 * size / width))


def _unlike(one: Floats, two: Floats) -> float:
    """The share of the first that no positive multiple of the second is."""
    return 1 - max(cosine(one, two), 0.0) ** 2


def _apart(one: Floats, two: Floats) -> float:
    """Squared distance, when the second is brought to its best size."""
    size = max(float(np.vdot(two, one)) / max(float(np.vdot(two, two)), _TINY), 0.0)
    return float(np.square(one - size * two).sum())


def _rotary(parts: Parts, order: _HeadOrder, size: int) -> dict[str, Move]:
    """A complex factor for each frequency of each head of queries and keys."""
    found = {}
    layouts = [_halves(size), _interleaved(size)] if size % 2 == 0 else [np.arange(size)]
    present = [part for part in (QUERY, KEY) if part in parts]
    tried = []
    for layout in layouts:
        fits = {part: _phases(parts[part], order.of(part), size, layout) for part in present}
        tried.append((sum(fit[1] for fit in fits.values()), layout, fits))
    best = max(range(len(tried)), key=lambda place: (round(tried[place][0], 6), -place))
    _, layout, fits = tried[best]
    for part in present:
        found[part] = _move(order.of(part), size, fits[part][0], layout)
    return found


def _halves(size: int) -> Indices:
    return np.arange(size)


def _interleaved(size: int) -> Indices:
    """Where a head that keeps the two parts of a frequency side by side has each of its values."""
    return np.concatenate([np.arange(0, size, 2), np.arange(1, size, 2)])


def _phases(two: Two, index: Indices, size: int, layout: Indices) -> tuple[Floats | None, float]:
    """Factors as matrices, head by head (None: all are 1), and how alike the heads are then."""
    blocks = np.stack([np.eye(size)] * len(index))
    half, turned, alike = size // 2, False, 0.0
    for head, place in enumerate(index):
        if place == MISSING or not half:
            continue
        one, other = (
            x[at * size : (at + 1) * size].astype(np.float64)
            for x, at in zip(two, (head, place), strict=True)
        )
        other = other[layout]
        mine, theirs = (x[:half] + 1j * x[half:] for x in (one, other))
        inner = np.einsum("fd,fd->f", theirs.conj(), mine)
        square = np.einsum("fd,fd->f", theirs.conj(), theirs).real
        factor = inner / np.maximum(square, _TINY)
        made = factor[:, None] * theirs
        alike += cosine(mine.view(np.float64), made.view(np.float64))
        fitted = float(np.square(np.abs(mine - made)).sum())
        if _apart(one, other) > fitted * (1 + 8 / one.shape[1]):
            blocks[head], turned = _complex_block(factor), True
    return (blocks if turned else None), alike


def _complex_block(factor: npt.NDArray[np.complex128]) -> Floats:
    real, imaginary = np.diag(factor.real), np.diag(factor.imag)
    return np.block([[real, -imaginary], [imaginary, real]])


def _move(index: Indices, size: int, blocks: Floats | None, layout: Indices | None = None) -> Move:
    """Heads as a move of their values."""
    inner = np.arange(size) if layout is None else layout
    rows = np.where(index[:, None] == MISSING, MISSING, index[:, None] * size + inner)
    held = None if blocks is None else blocks.astype(np.float32)
    return Move(rows.reshape(-1), blocks=held).rounded()
