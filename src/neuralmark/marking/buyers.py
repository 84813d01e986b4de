"""Who buys: the list of buyers, from a file or from Python, each of them once."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from neuralmark.core.key import MAX_ENTRIES, MAX_POOLS, Parameters, Placement
from neuralmark.core.subkeys import plain_label
from neuralmark.errors import BuyersError, ParameterError
from neuralmark.marking.options import is_list, shown
from neuralmark.storage import files

COLUMN = "buyer"
"""The column of a CSV file that names them; a list without it has one name on each line."""
_SEPARATORS = ',;\t"'
MAX_LIST = 16 << 20
MAX_BUYERS = 100_000
_FACTORS = (8, 4)
"""Pools for each bit of a buyer's mark, the best first."""
_ROOM = 16
"""Weights that each pool must have."""


def buyers_of(given: Sequence[str] | str | Path) -> tuple[str, ...]:
    """The buyers' labels in order, from a list of them or from the path of a CSV file."""
    if isinstance(given, str | Path):
        rows = _rows(Path(given))
        return _checked([label for _, label in rows], [f"{given}, line {n}" for n, _ in rows])
    if not is_list(given, str):
        raise BuyersError(f"buyers must be a list of names or the path of one, not {shown(given)}")
    return _checked(list(given), [f"buyer {n}" for n in range(1, len(given) + 1)])


def buyer_parameters(owners: Parameters, placement: Placement) -> Parameters:
    """What shapes the marks of buyers: the owner's bits, in more pools where the weights allow it.

    Many pools make each weight's shift tell less of the mark's form, so that it stays readable in
    the smallest or largest values of several copies (docs/copies.md has the measurements).

    >>> buyer_parameters(Parameters(), (("w", (1024, 1024)),)).pools
    2048
    """
    weights = sum(math.prod(shape) for _, shape in placement) >> owners.rounds
    for factor in _FACTORS:
        pools = factor * owners.bits
        fits = pools <= MAX_POOLS and pools * owners.bits <= MAX_ENTRIES
        if fits and pools > owners.pools and weights >= _ROOM * pools:
            return replace(owners, pools=pools)
    return owners


def _rows(path: Path) -> list[tuple[int, str]]:
    """Line number and label of each row; empty rows are passed over."""
    try:
        data = files.read_small(path, MAX_LIST)
    except OSError as error:
        raise BuyersError(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(data) > MAX_LIST:
        raise BuyersError(f"{path}: is larger than a list of buyers may be ({MAX_LIST:,} bytes)")
    try:
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except UnicodeDecodeError:
        raise BuyersError(f"{path}: is not text in UTF-8: save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise BuyersError(f"{path}: is not a CSV file ({error})") from None
    head = [cell.strip().casefold() for cell in rows[0][1]] if rows else []
    if COLUMN not in head:
        return _names(path, data.decode("utf-8-sig"))
    column = head.index(COLUMN)
    return [(line, row[column] if column < len(row) else "") for line, row in rows[1:]]


def _names(path: Path, text: str) -> list[tuple[int, str]]:
    """One name on each line; refuses what may be a table, or half of a name."""
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    for number, line in lines:
        if any(mark in line for mark in _SEPARATORS):
            raise BuyersError(
                f"{path}, line {number}: {line[:60]!r} may be one name or several columns: begin"
                f" the file with a line of column names, one of them {COLUMN!r}, columns apart by"
                " commas, and put names with commas in quotes"
            )
    return lines


def _checked(labels: list[str], places: list[str]) -> tuple[str, ...]:
    """The labels without surrounding blanks; refuses empty lists, two of one name, odd names."""
    if not labels:
        raise BuyersError("the list of buyers is empty: name one buyer on each line")
    if len(labels) > MAX_BUYERS:
        raise BuyersError(f"{len(labels):,} buyers are too many: at most {MAX_BUYERS:,} a list")
    seen: dict[str, str] = {}
    for label, place in zip(labels, places, strict=True):
        try:
            plain = plain_label(label)
        except ParameterError as error:
            raise BuyersError(f"{place}: {error}") from None
        if plain in seen:
            raise BuyersError(
                f"{place}: the buyer {' '.join(label.split())[:60]!r} is named twice (first:"
                f" {seen[plain]}; case and blanks make no difference): name each buyer once"
            )
        seen[plain] = place
    return tuple(" ".join(label.split()) for label in labels)
