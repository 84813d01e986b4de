"""What channels look like, without their order, signs and factors (pure).

A tensor is taken as rows x columns x kernel positions. Rows and columns are first brought to one
size. A *profile* of a channel does not see the order or the signs of the other axis: how the
positions of its kernels go together, how its values are spread (characteristic function, which a
coarse anchor blurs less than quantiles), and where it stands in the tensor's main directions. An
*outline* sees the order of the other axis but no signs.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]

_SWEEPS = 10
_EXACT = 1 << 21
"""Up to so many weights everything is computed in float64."""
_POSITIONS = 9
"""Kernels with more positions are seen in so many main directions."""
_MANY_POSITIONS = 1024
_FREQUENCIES = np.arange(1, 9) * 0.5
_DIRECTIONS = 16
_POWERS = 8
_FLOOR = 1e-3
_TINY = 1e-30


def laid(values: npt.NDArray[np.floating]) -> Floats:
    """Rows x columns x positions; what is not finite counts as nothing."""
    shape = values.shape if values.ndim > 1 else (*values.shape, 1)
    cube = values.reshape(shape[0], shape[1], int(np.prod(shape[2:])))
    kind = np.float64 if values.size <= _EXACT else np.float32
    kept: Floats = cube.astype(kind, copy=False)
    return np.asarray(np.where(np.isfinite(kept), kept, 0)) if _spoilt(kept) else kept


def balanced(cube: Floats) -> Floats:
    """Rows and columns scaled in turn to one size, which cancels positive factors (Sinkhorn).

    Channels that are all zeros stay so.
    """
    peak = np.abs(cube).max(initial=0)
    if not peak > 0:
        return cube
    cube = cube / peak
    energy = np.einsum("ijk,ijk->ij", cube, cube, dtype=np.float64)
    rows: Floats = np.ones(len(energy))
    columns: Floats = np.ones(energy.shape[1])
    for _ in range(_SWEEPS):
        rows = _inverse(energy @ columns / max(np.count_nonzero(columns), 1))
        columns = _inverse(rows @ energy / max(np.count_nonzero(rows), 1))
    cube *= np.sqrt(rows)[:, None, None].astype(cube.dtype)
    cube *= np.sqrt(columns * cube.shape[2])[None, :, None].astype(cube.dtype)
    return cube


def main_positions(anchor: Floats) -> Floats:
    """A basis in which kernels are seen: all positions, or the anchor's main directions."""
    size = anchor.shape[2]
    if size <= _POSITIONS:
        return np.eye(size, dtype=anchor.dtype)
    if size > _MANY_POSITIONS:
        chosen = np.linspace(0, size - 1, _POSITIONS).astype(np.intp)
        return np.asarray(np.arange(size)[:, None] == chosen, anchor.dtype)
    flat = anchor.reshape(-1, size)
    _, vectors = np.linalg.eigh(np.asarray(flat.T @ flat, np.float64))
    return np.asarray(vectors[:, : -_POSITIONS - 1 : -1], anchor.dtype)


def seen_in(cube: Floats, basis: Floats) -> Floats:
    """Kernels in a basis of positions."""
    return cube if basis.shape[0] == basis.shape[1] else np.asarray(cube @ basis)


def outlines(cube: Floats) -> Floats:
    """Each kernel without its sign: |w|, or the products of its positions over its length."""
    size = cube.shape[2]
    if size == 1:
        return np.abs(cube)
    one, two = np.triu_indices(size)
    weights = np.where(one == two, 1.0, np.sqrt(2.0)).astype(cube.dtype)
    products = cube[:, :, one] * cube[:, :, two] * weights
    lengths = np.sqrt(np.einsum("ijk,ijk->ij", cube, cube))
    products /= np.maximum(lengths, _TINY)[:, :, None]
    return np.asarray(products)


def profiles(anchor: Floats, suspect: Floats, axis: int) -> tuple[Floats, Floats]:
    """Numbers of each channel that see neither order nor signs of the other axis."""
    basis = main_positions(anchor)
    one, two = (seen_in(np.moveaxis(cube, axis, 0), basis) for cube in (anchor, suspect))
    looks = _spread if anchor.shape[2] == 1 else _kernels
    pairs = (_standing(one, two), looks(one, two))
    return np.concatenate([a for a, _ in pairs], 1), np.concatenate([b for _, b in pairs], 1)


def unit_rows(rows: Floats) -> Floats:
    """Each row at length 1; rows of zeros stay so."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return np.asarray(rows / np.maximum(lengths, _TINY)[:, None])


def _spoilt(values: Floats) -> bool:
    return not np.isfinite(values).all()


def _inverse(sizes: Floats) -> Floats:
    return np.divide(1.0, sizes, out=np.zeros_like(sizes), where=sizes > _TINY)


def _standardised(features: Floats) -> Floats:
    spread = features.std(axis=0)
    return np.asarray((features - features.mean(axis=0)) / np.where(spread > 1e-9, spread, 1))


def _kernels(anchor: Floats, suspect: Floats) -> tuple[Floats, Floats]:
    """How the positions of a channel's kernels go together, at length 1."""
    one, two = np.triu_indices(anchor.shape[2])

    def looks(cube: Floats) -> Floats:
        products = np.matmul(cube.transpose(0, 2, 1), cube)[:, one, two]
        return np.asarray(_standardised(unit_rows(products)) / np.sqrt(len(one)))

    return looks(anchor), looks(suspect)


def _spread(anchor: Floats, suspect: Floats) -> tuple[Floats, Floats]:
    """How a channel's values are spread, in numbers that are uncorrelated in the anchor."""
    one, two = _waves(anchor), _waves(suspect)
    values, vectors = np.linalg.eigh(one.T @ one / len(one))
    scale = np.sqrt(np.maximum(values, 0) + _FLOOR * max(values.max(), _TINY))
    onto = vectors / scale / np.sqrt(len(_FREQUENCIES))
    return np.asarray(one @ onto), np.asarray(two @ onto)


def _waves(cube: Floats) -> Floats:
    flat = np.abs(cube[:, :, 0])
    flat = flat[:, flat.any(axis=0)]
    if not flat.size:
        return np.zeros((len(cube), len(_FREQUENCIES)))
    waves = np.stack([np.cos(f * flat).mean(axis=1, dtype=np.float64) for f in _FREQUENCIES], 1)
    return np.asarray(waves - waves.mean(axis=0))


def _standing(anchor: Floats, suspect: Floats) -> tuple[Floats, Floats]:
    """Shares of each channel in the main directions, as far as those stand out of noise."""
    flat = anchor.reshape(len(anchor), -1)
    one, sizes = _main_directions(flat)
    two, _ = _main_directions(suspect.reshape(len(suspect), -1))
    noise = np.sqrt(np.mean(np.square(flat, dtype=np.float64)))
    edge = noise * (np.sqrt(flat.shape[0]) + np.sqrt(flat.shape[1]))
    weight = np.maximum(1 - (edge / np.maximum(sizes, _TINY)) ** 2, 0) / np.sqrt(_DIRECTIONS)
    return _standardised(np.abs(one)) * weight, _standardised(np.abs(two)) * weight


def _main_directions(flat: Floats) -> tuple[Floats, Floats]:
    """Left singular vectors of the largest singular values, and these; always as many."""
    vectors, sizes = np.zeros((len(flat), _DIRECTIONS)), np.zeros(_DIRECTIONS)
    count = min(_DIRECTIONS, *flat.shape)
    width = min(2 * count, *flat.shape)
    start = np.random.default_rng(0).standard_normal((flat.shape[1], width))
    found, left = start.astype(flat.dtype), flat[:, :0]
    for _ in range(_POWERS):
        left, _ = np.linalg.qr(flat @ found)
        found = flat.T @ left
    small, values, _ = np.linalg.svd(np.asarray(found.T, np.float64), full_matrices=False)
    vectors[:, :count] = (left @ small)[:, :count]
    sizes[:count] = values[:count]
    return vectors, sizes
