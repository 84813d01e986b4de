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
    """A data set by name. A subclass says where its files lie, and reads them.

    Attributes:
        name: As it is asked for.
        title: As it stands in messages and tables.
        folders: Where it may lie below the folder given: the usual layouts.
        layout: The files in it, in words, for messages.
        archive: Where it can be fetched from; None if nowhere.
        mean: Of the pixels by channel, on a scale from 0 to 1.
        deviation: The same of their deviation.
        padding: How far a random crop may move.
        flip: Whether images may be mirrored at random.
        tells_when_read: Whether only reading all of it tells how much is there.

    Examples:
        >>> from neuralmark import zoo
        >>> zoo.source("cifar10").folders
        ('cifar-10-batches-py',)
    """

    name: ClassVar[str]
    title: ClassVar[str]
    folders: ClassVar[tuple[str, ...]]
    layout: ClassVar[str]
    archive: ClassVar[Archive | None] = None
    mean: ClassVar[tuple[float, ...]]
    deviation: ClassVar[tuple[float, ...]]
    padding: ClassVar[int] = PADDING
    flip: ClassVar[bool] = True
    tells_when_read: ClassVar[bool] = False

    def load(
        self,
        folder: str | Path | None,
        limit: int | None = None,
        test_limit: int | None = None,
        download: bool = False,
    ) -> DataSet:
        """Read it from a folder; see `zoo.data`.

        Args:
            folder: Where it lies; the digits need none.
            limit: How many training images to keep.
            test_limit: How many test images to keep.
            download: Whether to fetch it into the folder first if it is missing.

        Returns:
            The images and labels, in memory.

        Raises:
            ParameterError: There is no folder, or a limit is out of range.
            DataSetError: The set is missing, incomplete or damaged.

        Examples:
            >>> from neuralmark import zoo
            >>> zoo.source("digits").load(None, limit=100).note
            'the first 100 of 1,348 training images'
        """
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
        """Read the files below the root, which is there.

        Args:
            root: The folder of this set, as `find` gives it.
            limit: How many training images to keep.
            test_limit: How many test images to keep.

        Returns:
            Both halves, and how many classes there are.

        Raises:
            DataSetError: The files are incomplete or damaged.

        Examples:
            >>> from neuralmark import zoo
            >>> zoo.source("digits").read(Path(), 10, 5).test.images.shape
            (5, 1, 8, 8)
        """

    @abstractmethod
    def is_here(self, root: Path) -> bool:
        """Whether a folder looks like the root of this set.

        Args:
            root: The folder.

        Returns:
            Whether it does.

        Examples:
            >>> from neuralmark import zoo
            >>> zoo.source("cifar10").is_here(Path("."))
            False
        """

    def missing(self, folder: Path | str, what: str) -> MissingDataSetError:
        """The error that says what is missing, what is expected, and where to get it.

        Args:
            folder: Where it was looked for.
            what: What is wrong there.

        Returns:
            The error, to be raised.

        Examples:
            >>> from neuralmark import zoo
            >>> str(zoo.source("cifar10").missing("/data", "not found"))[:27]
            'CIFAR-10: not found in /dat'
        """
        home = "" if self.archive is None else f"; get it from {self.archive.url}"
        return MissingDataSetError(
            f"{self.title}: {what} in {folder}; expected {self.layout}{home}"
        )

    def fetch(self, folder: Path) -> None:
        """Fetch it into a folder from its usual place.

        Args:
            folder: Where to unpack it.

        Raises:
            DataSetError: It cannot be fetched, or arrives damaged.

        Examples:
            >>> from neuralmark import zoo
            >>> zoo.source("digits").fetch(Path("."))  # scikit-learn has them
        """
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
        """Where it lies below a folder.

        Args:
            base: The folder with data sets.

        Returns:
            Its root; None if it is not there.

        Examples:
            >>> from neuralmark import zoo
            >>> zoo.source("cifar10").find(Path(".")) is None
            True
        """
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
