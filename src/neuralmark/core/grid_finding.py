"""Finding the grid of a tensor from its values alone (docs/method.md, section 4).

Few mantissa bits show in the bit patterns. Multiples of a scale are looked for in `core.steps`,
and win when they hold, since they are coarser. A mere list of values is not a grid and is refused.
"""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from neuralmark.core.grid import DOUBLE, SINGLE, Grid
from neuralmark.core.key import Float
from neuralmark.core.steps import find_steps
from neuralmark.errors import NonFiniteError, UnsuitableTensorError

SHARE = 0.999
"""The share of the non-zero values that a grid has to hold for."""

_PIECE = 1 << 20
_SAMPLE = 1 << 16
_ENOUGH = 256
_CHANCE_FEW = 8
_CUT = 1e-3
"""From this share of zeros on, pruning may have cut away all weights below a size."""
_SUBNORMALS = 64
_CROWD = 16
_GROUP = 64
_GROUPS = 64
_RUN, _BLOCKS = 16, 16
_COARSEST_SCALED = 7
_FIXED_POINT = 2.0**20
"""Numbers of full precision span more steps than this; fewer are a fixed point."""
_ODD = 0.2
"""The least share of large values that are odd multiples of a fixed point (half by chance)."""
_LEAST = {10: (2.0**-24,), 3: (2.0**-9, 2.0**-10), 2: (2.0**-16, 2.0**-17)}
_UNREPEATABLE = "multiples of scales, rounded in a way that cannot be repeated"
_NAMES = {DOUBLE: "float64", SINGLE: "float32", 7: "bfloat16"}
_SMALL_NAMES = {10: "float16", 3: "float8 e4m3", 2: "float8 e5m2"}

Values = npt.NDArray[np.floating]


def find_grid(values: Values, row: int, file_mantissa: int) -> Grid:
    """The grid of a whole tensor; `row` is the length of a row, `file_mantissa` the file's bits.

    `values` are the tensor's, flat, float32 or float64, as decoded. Raises UnsuitableTensorError
    with a reason for tensors that cannot carry a mark without showing it.
    """
    values = np.ascontiguousarray(values).reshape(-1)
    top = _require_spread(values, file_mantissa)
    sample = _sample(values)
    mantissa = _mantissa(values, sample, file_mantissa)
    least = _least(values, sample, mantissa)
    fixed = _fixed_point(values, sample)
    fixed = 0.0 if fixed == least else fixed
    if fixed:
        mantissa, least = file_mantissa, fixed
    name = f"multiples of 2^{math.frexp(fixed)[1] - 1}" if fixed else _name(mantissa, least)
    grid = Grid(name, mantissa, top, least)
    if len(values) >= _ENOUGH:
        grid = _with_steps(grid, values, max(row, 1), file_mantissa)
        if grid.multiples is not None:
            return grid
        _require_no_list(grid, values, sample, row)
    return _settled(grid, values, file_mantissa)


def _require_spread(values: Values, file_mantissa: int) -> float:
    """The largest absolute value; refuses tensors in which nothing can be told apart."""
    if not len(values):
        raise UnsuitableTensorError("the tensor is empty")
    low, high = float(values.min()), float(values.max())
    top = max(high, -low)
    if not math.isfinite(top):
        raise NonFiniteError("NaN or infinity among the values")
    if top == 0:
        raise UnsuitableTensorError("all values are zero")
    if low == high:
        raise UnsuitableTensorError("all values are the same")
    kind = np.float64 if file_mantissa == DOUBLE else np.float32
    if top * top < float(np.finfo(kind).tiny):
        raise UnsuitableTensorError("the values are so small that their squares vanish")
    return top


def _sample(values: Values) -> Values:
    """Some of the non-zero values, spread over the tensor."""
    if len(values) > _SAMPLE:
        values = values[np.random.default_rng(0).integers(0, len(values), _SAMPLE)]
    return np.asarray(values[values != 0])


def _pieces(values: Values) -> Iterator[Values]:
    for start in range(0, len(values), _PIECE):
        yield values[start : start + _PIECE]


def _words(values: Values) -> tuple[npt.NDArray[np.signedinteger], int]:
    """Bit patterns, and the mantissa bits of their type."""
    if values.dtype == np.float64:
        return values.view(np.int64), DOUBLE
    return values.view(np.int32), SINGLE


def _mantissa(values: Values, sample: Values, file_mantissa: int) -> int:
    """The fewest mantissa bits that all but a thousandth of the values use."""
    words, width = _words(sample)
    field = words & ((1 << width) - 1) | (1 << width)
    lowest = np.log2((field & -field).astype(np.float64)).astype(np.int64)
    used = np.sort(width - lowest)
    if not len(used):
        return file_mantissa
    bits = int(used[math.ceil(SHARE * len(used)) - 1])
    if bits >= file_mantissa or not _holds(values, bits):
        return file_mantissa
    return bits


def _holds(values: Values, bits: int) -> bool:
    """Whether all but a thousandth of the non-zero values use at most this many mantissa bits."""
    words, width = _words(values)
    mask = (1 << (width - bits)) - 1
    if not int(np.bitwise_or.reduce(words)) & mask:
        return True
    off = sum(int(np.count_nonzero(_words(piece)[0] & mask)) for piece in _pieces(values))
    return off <= (1 - SHARE) * int(np.count_nonzero(values))


def _least(values: Values, sample: Values, mantissa: int) -> float:
    """The step of the values around zero, if they have one of their own."""
    if mantissa >= SINGLE:
        return 0.0
    words, width = _words(sample)
    field = words & ((1 << width) - 1) | (1 << width)
    unit = np.ldexp((field & -field).astype(np.float64), -width)
    lowest = float(np.min(unit * _binade(sample.astype(np.float64)), initial=np.inf))
    seen: tuple[float, ...] = ()
    few = np.count_nonzero(np.abs(sample) < 2.0**mantissa * lowest) < _SUBNORMALS
    if mantissa < _COARSEST_SCALED and not few:
        seen = (lowest,)
    for step in (*seen, *_LEAST.get(mantissa, ())):
        if _has_least(values, mantissa, step):
            return step
    return 0.0


def _fixed_point(values: Values, sample: Values) -> float:
    """The power of two that all values are multiples of, large ones down to the last; else 0."""
    words, width = _words(sample)
    size = np.abs(sample.astype(np.float64))
    large = size > size.max(initial=0) / 4
    small = size < size.max(initial=0) / 16  # within few binades every float is a fixed point
    if min(np.count_nonzero(large), np.count_nonzero(small)) < _CROWD:
        return 0.0
    field = words & ((1 << width) - 1) | (1 << width)
    last = np.ldexp((field & -field).astype(np.float64), -width) * _binade(size)
    step = float(last.min())
    odd = np.count_nonzero(last[large] == step) / np.count_nonzero(large)
    if odd < _ODD or size.max() > _FIXED_POINT * step:
        return 0.0
    off = sum(int(np.count_nonzero(np.rint(p / step) * step != p)) for p in _pieces(values))
    return step if off <= (1 - SHARE) * np.count_nonzero(values) else 0.0


def _binade(values: Float) -> Float:
    """The power of two at or below each absolute value."""
    return (values.view(np.int64) & (0x7FF << DOUBLE)).view(np.float64)


def _has_least(values: Values, mantissa: int, step: float) -> bool:
    """Whether the values around zero are multiples of this step (or there are none)."""
    small = on = 0
    for piece in _pieces(values):
        near = piece[np.abs(piece) < 2.0**mantissa * step]
        near = near[near != 0] / step
        small += len(near)
        on += int(np.count_nonzero(near == np.rint(near)))
    return on >= 0.99 * small


def _name(mantissa: int, least: float) -> str:
    if least and least in _LEAST.get(mantissa, ()):
        return _SMALL_NAMES[mantissa]
    return _NAMES.get(mantissa, f"{mantissa} bit{'s' * (mantissa != 1)} of mantissa")


def _with_steps(grid: Grid, values: Values, row: int, file_mantissa: int) -> Grid:
    """The grid of multiples, if these are multiples of a scale and no float format is coarser."""
    if file_mantissa < _COARSEST_SCALED:
        return grid
    exact = grid.mantissa < _COARSEST_SCALED
    formats = [bits for bits in (7, 10, SINGLE) if bits >= grid.mantissa and not exact]
    rounding = min([*formats, SINGLE])
    found = find_steps(values, row, rounding, 0.0 if exact else grid.least)
    if found is None:
        return grid
    if exact and found.largest >= 2 << grid.mantissa and (grid.mantissa > 1 or found.whole):
        step = float(found.multiples.steps[0])
        if found.whole and math.frexp(step)[0] == 0.5 and not grid.least:
            return Grid(_name(grid.mantissa, step), grid.mantissa, grid.top, step)
        return grid
    if found.gaps:
        raise UnsuitableTensorError("the values are from a short list (a codebook)")
    if found.unclear:
        raise UnsuitableTensorError(_UNREPEATABLE)
    zeros, ones = found.count(0), found.count(1) + found.count(-1)
    made = Grid(
        found.name,
        min(file_mantissa, SINGLE) if exact else max(rounding, grid.mantissa),
        grid.top,
        0.0 if exact else grid.least,
        zeros > 2 * ones + _CHANCE_FEW,
        found.multiples,
    )
    if made.mantissa > SINGLE and not _repeats(made, values):
        raise UnsuitableTensorError(_UNREPEATABLE)
    return made


def _repeats(grid: Grid, values: Values) -> bool:
    """Whether the scales found give the values themselves, to the last digit of a double."""
    assert grid.multiples is not None
    at = np.random.default_rng(0).integers(0, len(values), _SAMPLE)
    steps, some = grid.multiples.at(at).steps, values[at].astype(np.float64)
    same = grid.nearest(np.rint(some / steps) * steps) == some
    return bool(same.mean() >= SHARE)


def _require_no_list(grid: Grid, values: Values, sample: Values, row: int) -> None:
    """Refuse values from a list: of the tensor, or of each group of weights."""
    codes, counts = np.unique(_codes(grid, sample), return_counts=True)
    gaps = np.diff(codes, prepend=codes[:1] - 2, append=codes[-1:] + 2) > 1
    alone = gaps[:-1] & gaps[1:] & (counts >= _CROWD)
    if counts[alone].sum() > 0.5 * counts.sum():
        raise UnsuitableTensorError("the values are from a short list (a codebook)")
    if grid.mantissa <= 3 or len(values) < _GROUP * _GROUPS:
        return
    rng = np.random.default_rng(0)
    share = 0.9 if grid.mantissa >= 15 else 0.5
    for together in _neighbours(values, row, rng):
        apart = values[rng.integers(0, len(values), together.shape)]
        if _distinct(together) < share * _distinct(apart):
            raise UnsuitableTensorError(
                "groups of weights hold values from a short list (a codebook)"
            )


def _neighbours(values: Values, row: int, rng: np.random.Generator) -> Iterator[Values]:
    """Weights that might share a scale: short runs, longer ones, columns, square blocks."""
    for length in (_RUN, _GROUP):
        if row % length == 0:
            groups = len(values) // length
            yield values.reshape(-1, length)[rng.integers(0, groups, _GROUPS)]
    rows = len(values) // row
    if row < 2 or rows < _GROUP:
        return
    matrix = values[: rows * row].reshape(rows, row)
    some = rng.choice(rows, min(rows, 4 * _GROUP), replace=False)
    yield matrix[np.ix_(some, rng.integers(0, row, _GROUPS))].T
    if row >= _GROUP:
        corners = zip(
            rng.integers(0, rows // _GROUP, _BLOCKS) * _GROUP,
            rng.integers(0, row // _GROUP, _BLOCKS) * _GROUP,
            strict=True,
        )
        yield np.stack([matrix[a : a + _GROUP, b : b + _GROUP].reshape(-1) for a, b in corners])


def _codes(grid: Grid, values: Values) -> npt.NDArray[np.int64]:
    """Numbers of the grid's points, so that neighbours differ by one; signs apart."""
    words, width = _words(values)
    size = np.abs(values)
    shift = width - grid.mantissa
    codes = (words & ((1 << (words.itemsize * 8 - 1)) - 1)).astype(np.int64) >> shift
    if grid.least:
        edge = 2.0**grid.mantissa * grid.least
        first = int(_words(np.array([edge], values.dtype))[0][0]) >> shift
        fixed = np.rint(size / grid.least).astype(np.int64) + first - (1 << grid.mantissa)
        codes = np.where(size < edge, fixed, codes)
    return np.where(values < 0, -codes - 2, codes)


def _distinct(groups: Values) -> float:
    """The share of different values among the non-zero ones of a group, on average."""
    shares = [len(np.unique(group)) / len(group) for row in groups if len(group := row[row != 0])]
    return float(np.mean(shares)) if shares else 1.0


def _settled(grid: Grid, values: Values, file_mantissa: int) -> Grid:
    """The grid with its zeros looked at, and with a top that lies on it."""
    zeros, top = len(values) - int(np.count_nonzero(values)), grid.top
    if zeros > _CHANCE_FEW:
        pieces = _pieces(values) if grid.least else ()
        ones = sum(int(np.count_nonzero(np.abs(piece) == grid.least)) for piece in pieces)
        zeros -= 2 * ones
    if grid.mantissa < file_mantissa and not grid.holds(np.array([top], values.dtype))[0]:
        pieces = (piece[grid.holds(piece)] for piece in _pieces(values))
        top = max(float(np.abs(piece).max(initial=0)) for piece in pieces)
    pruned = zeros > _CHANCE_FEW
    bottom = 0.0
    if pruned and zeros > _CUT * len(values):
        sizes = (np.abs(piece[piece != 0]) for piece in _pieces(values))
        bottom = min(float(size.min(initial=math.inf)) for size in sizes)
    return Grid(grid.name, grid.mantissa, top, grid.least, pruned, bottom=bottom)
