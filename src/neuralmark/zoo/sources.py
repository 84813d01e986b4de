"""The contract of a source of data: where it is from, how it lies in a folder, how it is read."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from neuralmark.errors import MissingDataSetError, ParameterError
from neuralmark.zoo.fetching import Archive, fetch
from neuralmark.zoo.images import PADDING, DataSet, digest_of

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class DataPart:
    """Images (N, C, H, W) and labels of one half of a set."""

    images: Pixels
    labels: Labels
    found: int
    """How many are in the folder; more than were read where there is a limit."""
    complete: int | None = None
    """How many the published set has, where that is known for each half."""


@dataclass(frozen=True, eq=False)
class Read:
    """What a source gives: both halves, and how many classes there are of how many."""

    train: DataPart
    test: DataPart
    classes: int
    all_classes: int
    complete: int | None = None
    """How many images the published set has, both halves together."""

    def lacks(self) -> list[str]:
        """What of the published set is not in the folder."""
        said = [
            f"{part.found:,} of {part.complete:,} {what} images"
            for part, what in ((self.train, "training"), (self.test, "test"))
            if part.complete is not None and part.found < part.complete
        ]
        there = self.train.found + self.test.found
        if self.complete is not None and there < self.complete:
            said.append(f"{there:,} of {self.complete:,} images")
        if self.classes < self.all_classes:
            said.append(f"{self.classes} of {self.all_classes} classes")
        return said


class DataSource(ABC):
    """A data set by name. Whoever derives from it says where its files lie and reads them."""

    name: ClassVar[str]
    title: ClassVar[str]
    folders: ClassVar[tuple[str, ...]]
    """Where it may lie below the folder given: the usual layouts."""
    layout: ClassVar[str]
    """The files in it, in words, for messages."""
    archive: ClassVar[Archive | None] = None
    mean: ClassVar[tuple[float, ...]]
    deviation: ClassVar[tuple[float, ...]]
    padding: ClassVar[int] = PADDING
    flip: ClassVar[bool] = True
    tells_when_read: ClassVar[bool] = False
    """Whether only reading all of it tells how much is there."""

    def load(
        self,
        folder: str | Path | None,
        limit: int | None = None,
        test_limit: int | None = None,
        download: bool = False,
    ) -> DataSet:
        """Read it from the folder; see `zoo.data`."""
        import torch

        for what, value in (("limit", limit), ("test_limit", test_limit)):
            if value is not None and (type(value) is not int or value < 1):
                raise ParameterError(f"{what} must be a positive whole number, not {value!r}")
        read = self.read(self._root(folder, download), limit, test_limit)
        train, labels = torch.from_numpy(read.train.images), torch.from_numpy(read.train.labels)
        test, test_labels = torch.from_numpy(read.test.images), torch.from_numpy(read.test.labels)
        return DataSet(
            self.name,
            train,
            labels,
            test,
            test_labels,
            classes=read.classes,
            mean=self.mean,
            deviation=self.deviation,
            padding=self.padding,
            flip=self.flip,
            note=_note(read),
            digest=digest_of(self.name, train, labels, test, test_labels),
        )

    @abstractmethod
    def read(self, root: Path, limit: int | None, test_limit: int | None) -> Read:
        """Read the files below the root, which is there."""

    @abstractmethod
    def is_here(self, root: Path) -> bool:
        """Whether a folder looks like the root of this set."""

    def missing(self, folder: Path | str, what: str) -> MissingDataSetError:
        """What is missing, how it should lie, and where to get it."""
        home = "" if self.archive is None else f"; get it from {self.archive.url}"
        return MissingDataSetError(
            f"{self.title}: {what} in {folder}; expected {self.layout}{home}"
        )

    def fetch(self, folder: Path) -> None:
        """Fetch it into the folder from its usual place."""
        if self.archive is not None:
            fetch(self.archive, folder)

    def _root(self, folder: str | Path | None, download: bool) -> Path:
        if folder is None:
            raise ParameterError(f"{self.title} is read from a folder: name it (data=DIR)")
        base = Path(folder)
        if download and self.find(base) is None:
            self.fetch(base)
        found = self.find(base)
        if found is None:
            raise self.missing(base, "not found" if base.is_dir() else "no such folder")
        return found

    def find(self, base: Path) -> Path | None:
        """Where below the folder it lies, if it does."""
        places = [*(base / each for each in self.folders), base]
        return next((place for place in places if self.is_here(place)), None)


def _note(read: Read) -> str:
    """What is less than the whole."""
    said = []
    if read.classes < read.all_classes:
        said.append(f"{read.classes} of {read.all_classes} classes")
    there = read.train.found + read.test.found
    if read.complete is not None and there < read.complete:
        said.append(f"{there:,} of {read.complete:,} images")
    for part, what in ((read.train, "training"), (read.test, "test")):
        count, whole = len(part.labels), part.complete or part.found
        if count < whole:
            cut = "the first " if count < part.found else ""
            said.append(f"{cut}{count:,} of {whole:,} {what} images")
    return ", ".join(said)
