"""The data sets that runs need: what is there, what is missing, where to get it."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from neuralmark import zoo
from neuralmark.errors import DataSetError, MissingDataSetError
from neuralmark.lab.plan.spec import Assault, ImprintSpec, Spec, Training, TuningSpec
from neuralmark.text import e2e
from neuralmark.zoo.fetching import Archive, fetch

E2E = "e2e"
_E2E_ARCHIVE = Archive(e2e.ARCHIVE, md5="")

DataState = Literal["complete", "partial", "missing", "damaged"]
COMPLETE: Final = "complete"
PARTIAL: Final = "partial"
MISSING: Final = "missing"
DAMAGED: Final = "damaged"


@dataclass(frozen=True)
class FoundData:
    """A data set as it lies in a folder."""

    name: str
    state: DataState
    """complete, partial, missing or damaged."""
    detail: str
    """Where it lies, what it lacks, or where to get it."""


def needed(specs: Iterable[Spec]) -> list[str]:
    """The data sets of these runs, by name."""
    names: set[str] = set()
    for spec in specs:
        if isinstance(spec, Training | ImprintSpec):
            names.add(spec.data)
        elif isinstance(spec, Assault):
            names |= {spec.data or spec.victim.data, spec.victim.data}
        elif isinstance(spec, TuningSpec):
            names.add(E2E)
    return sorted(names)


def look(name: str, folder: Path | None) -> FoundData:
    """Look for a data set and open it; of sets with a file for each image only the first."""
    try:
        return _text(folder) if name == E2E else _images(name, folder)
    except DataSetError as error:
        return FoundData(name, DAMAGED, str(error))


def get(name: str, folder: Path) -> None:
    """Fetch a data set into a folder from its usual place."""
    if name == E2E:
        fetch(_E2E_ARCHIVE, folder)
    else:
        zoo.source(name).fetch(folder)


def _images(name: str, folder: Path | None) -> FoundData:
    source = zoo.source(name)
    root = None if folder is None else source.find(folder)
    if not source.folders:
        state: DataState = COMPLETE if find_spec("sklearn") is not None else MISSING
        return FoundData(name, state, "comes with scikit-learn (pip install 'neuralmark[lab]')")
    if root is None:
        home = "" if source.archive is None else source.archive.url
        return FoundData(name, MISSING, f"{source.layout}; from {home}")
    some = None if source.tells_when_read else 1
    lacks = source.read(root, some, some).lacks()
    return FoundData(name, PARTIAL if lacks else COMPLETE, "; ".join([str(root), *lacks]))


def _text(folder: Path | None) -> FoundData:
    try:
        splits = [] if folder is None else [e2e.load(folder, split) for split in e2e.FILES]
    except MissingDataSetError:
        splits = []
    if not splits:
        files = ", ".join(e2e.FILES.values())
        return FoundData(E2E, MISSING, f"{files}; from {e2e.ARCHIVE}")
    lacks = [split.note for split in splits if not split.complete]
    where = str(splits[0].path.parent)
    return FoundData(E2E, PARTIAL if lacks else COMPLETE, "; ".join([where, *lacks]))
