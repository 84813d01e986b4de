"""Where runs live: one folder per run, named by the hash of its specification.

    RESULTS/lab.json                  which version of the lab wrote this folder
    RESULTS/data/NAME.json            the digest of a data set that runs were made with
    RESULTS/runs/HASH/spec.json       the specification
    RESULTS/runs/HASH/state.pt        how far an unfinished run is (removed at the end)
    RESULTS/runs/HASH/model.safetensors, claim.json     what a training leaves for others
    RESULTS/runs/HASH/row.json        the result; a run is finished when it is there

Every file is written under another name and renamed, so a killed run leaves no half of one.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralmark.errors import ResultsError
from neuralmark.lab.plan.spec import LAB_VERSION, RunKind, Spec, from_dict, identity, to_dict
from neuralmark.storage import files

Row = dict[str, Any]
MODEL = "model.safetensors"
"""What a run that makes a model leaves for others."""
MAKERS: tuple[RunKind, ...] = ("training", "tuning", "imprint")
AGAIN = "again"
"""In the row of a model: what came out, where making it again gave something else."""
COMPARED = ("accuracy", "rate")


@dataclass(frozen=True)
class Store:
    """A folder of runs."""

    root: Path

    @classmethod
    def open(cls, root: str | Path) -> "Store":
        """Make the folder, or check that this version of the lab wrote it."""
        root = Path(root)
        head = root / "lab.json"
        if head.exists():
            found = _read(head, "choose another folder (results=DIR)").get("lab")
            if found != LAB_VERSION:
                raise ResultsError(
                    f"{root} was written by version {found!r} of the lab, this is {LAB_VERSION}:"
                    " results are never mixed; choose another folder (results=DIR)"
                )
            return cls(root)
        if root.exists() and any(root.iterdir()):
            raise ResultsError(f"{root} is not a folder of lab results: choose an empty one")
        (root / "runs").mkdir(parents=True, exist_ok=True)
        files.write_text(head, json.dumps({"lab": LAB_VERSION}) + "\n", overwrite=True)
        return cls(root)

    def settle(self, name: str, digest: str) -> None:
        """Remember the data that runs are made with; other data of that name are refused."""
        path = self.root / "data" / f"{name}.json"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            files.write_text(path, json.dumps({"digest": digest}) + "\n", overwrite=True)
        elif _read(path, REMOVE).get("digest") != digest:
            raise ResultsError(
                f"the runs in {self.root} were made with other data of the name {name!r}: results"
                " are never mixed; give that data again, or another folder (results=DIR)"
            )

    def folder(self, spec: Spec) -> Path:
        """The run's folder, made if need be, with its specification in it."""
        folder = self.root / "runs" / identity(spec)
        if not (folder / "spec.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(to_dict(spec), indent=1) + "\n"
            files.write_text(folder / "spec.json", text, overwrite=True)
        return folder

    def row(self, spec: Spec) -> Row | None:
        """The result of a run, or None while it has none."""
        path = self.root / "runs" / identity(spec) / "row.json"
        return _read(path, REMOVE) if path.exists() else None

    def complete(self, spec: Spec) -> bool:
        """Whether a run has its result, and the model that others may need (adopted ones lack it).

        Only the weights of a model are missing then, and are made again where others need them.
        """
        model = self.root / "runs" / identity(spec) / MODEL
        return self.row(spec) is not None and (spec.kind not in MAKERS or model.exists())

    def adopt(self, rows: Iterable[Row]) -> int:
        """Take over results that were made elsewhere; give the number of new ones."""
        taken = 0
        for row in rows:
            spec = from_dict(dict(row["spec"]))
            if identity(spec) != row["run"]:
                raise ResultsError(f"the row of the run {row['run']} is of another specification")
            if self.row(spec) is None:
                text = json.dumps(row, allow_nan=False) + "\n"
                files.write_text(self.folder(spec) / "row.json", text, overwrite=True)
                taken += 1
        return taken

    def finish(self, spec: Spec, row: Row) -> None:
        """Write the result: from now on the run is finished.

        An adopted row stays as it is when its model is made again. Another processor rounds in
        another way, and after thousands of steps that is another model: the row tells so.
        """
        folder = self.folder(spec)
        whole = {**_finite(row), "spec": to_dict(spec), "run": identity(spec)}
        if (first := self.row(spec)) is not None:
            whole = _with_another(first, whole)
        text = json.dumps(whole, allow_nan=False)
        files.write_text(folder / "row.json", text + "\n", overwrite=True)
        for left in (folder / "state.pt", *folder.glob(".*.nmtmp.*")):  # of killed workers too
            left.unlink(missing_ok=True)

    def rows(self) -> Iterator[Row]:
        """All results, in the order of their names."""
        for path in sorted((self.root / "runs").glob("*/row.json")):
            yield _read(path, REMOVE)


def _with_another(first: Row, row: Row) -> Row:
    """The first row of a run, and what is different in another one."""
    told, known = ({name: each.get(name) for name in COMPARED} for each in (row, first))
    before = first.get(AGAIN, [])
    if told == known or told in before:
        return first
    return {**first, AGAIN: [*before, told]}


REMOVE = "remove its folder and run again"


def _finite(value: Any) -> Any:
    """NaN and infinity, which a training that diverges leaves, as None."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read(path: Path, advice: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path} cannot be read ({error}): {advice}") from None
    if not isinstance(data, dict):
        raise ResultsError(f"{path} is damaged: {advice}")
    return data
