"""Rows to files: JSON lines or Parquet, in the order of the targets, within bounded memory."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from neuralmark.errors import MissingExtraError
from neuralmark.scanning.contract import PARQUET, ScanForm, ScanRow, readable
from neuralmark.storage import files

ROWS = "rows"
_GROUP = 10_000
_TEXT = ("target", "status", "why", "key", "key_name", "claim", "format", "stamp", "error")
_COUNTS = ("matched", "bits", "boundary", "trials", "weights", "round")


def rows_file(folder: Path, form: ScanForm) -> Path:
    """Where the rows of a scan are written."""
    return folder / f"{ROWS}.{form}"


def require_form(form: ScanForm) -> None:
    """Refuse a form whose package is not there, before anything is read."""
    if form == PARQUET:
        _arrow()


def write_rows(folder: Path, form: ScanForm, rows: Iterable[ScanRow]) -> Path:
    """Write all rows anew, in one step."""
    out = rows_file(folder, form)
    with files.replacing(out, overwrite=True) as temporary:
        if form == PARQUET:
            _parquet(temporary, rows)
        else:
            with files.create(temporary) as file:
                for row in rows:
                    file.write(
                        json.dumps(readable(row.to_dict()), allow_nan=False).encode() + b"\n"
                    )
    return out


def read_rows(path: Path) -> Iterator[ScanRow]:
    """The rows that `write_rows` wrote."""
    if path.suffix == f".{PARQUET}":
        _, parquet = _arrow()
        for batch in parquet.ParquetFile(path).iter_batches(_GROUP):
            for row in batch.to_pylist():
                verdict = row["verdict"]
                row["verdict"] = None if verdict is None else json.loads(verdict)
                yield ScanRow.from_dict(row)
        return
    with path.open("rb") as file:
        for line in file:
            yield ScanRow.from_dict(json.loads(line))


def _parquet(path: Path, rows: Iterable[ScanRow]) -> None:
    arrow, parquet = _arrow()
    kinds = {
        **dict.fromkeys(_TEXT, arrow.string()),
        **dict.fromkeys(_COUNTS, arrow.int64()),
        **{"bound_log2": arrow.float64(), "verdict": arrow.string()},
    }
    names = list(ScanRow("", "nothing", "").to_dict())
    schema = arrow.schema([(name, kinds[name]) for name in names])
    left = iter(rows)
    with parquet.ParquetWriter(path, schema) as writer:
        while group := list(islice(left, _GROUP)):
            table = [_flat(row) for row in group]
            writer.write_table(arrow.Table.from_pylist(table, schema=schema))


def _flat(row: ScanRow) -> dict[str, Any]:
    told: dict[str, Any] = readable(row.to_dict())
    if row.verdict is not None:
        told["verdict"] = json.dumps(told["verdict"], allow_nan=False)
    return told


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError(
            "rows as Parquet need pyarrow: pip install 'neuralmark[parquet]'"
        ) from None
    return pyarrow, parquet
