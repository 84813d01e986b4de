"""What CIFAR-10 and CIFAR-100 share."""

from pathlib import Path
from typing import ClassVar

from neuralmark.zoo.sets._batches import read_part
from neuralmark.zoo.sources import DataSource, Read


class Cifar(DataSource):
    """Images of 32 by 32 pixels in batch files: 50,000 to train on, 10,000 to test."""

    tells_when_read = True

    classes: ClassVar[int]
    label: ClassVar[str]
    train: ClassVar[tuple[str, ...]]
    test: ClassVar[str]

    def is_here(self, root: Path) -> bool:
        """One of the files is enough to know it; `read` says what is missing."""
        return any((root / name).is_file() for name in self.train)

    def read(self, root: Path, limit: int | None, test_limit: int | None) -> Read:
        """Read the batches needed, once all are there."""
        for name in (*self.train, self.test):
            if not (root / name).is_file():
                raise self.missing(root, f"no file {name!r}")
        paths = [root / name for name in self.train]
        train = read_part(paths, self.label, self.classes, 50_000, limit)
        test = read_part([root / self.test], self.label, self.classes, 10_000, test_limit)
        return Read(train, test, self.classes, self.classes)
