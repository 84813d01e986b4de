"""TinyImageNet: 200 classes of ImageNet; its validation images are the test set."""

from pathlib import Path

from neuralmark.errors import DamagedDataSetError
from neuralmark.zoo.fetching import Archive
from neuralmark.zoo.sets._images import (
    DEVIATION,
    MEAN,
    Labelled,
    files_in,
    in_turns,
    read_part,
)
from neuralmark.zoo.sources import DataSource, Read

_MOST_BYTES = 16 << 20


class TinyImageNet(DataSource):
    """100,000 images to train on, 10,000 to test; the published test set has no labels."""

    name = "tinyimagenet"
    title = "TinyImageNet"
    folders = ("tiny-imagenet-200", "tinyimagenet")
    layout = (
        "tiny-imagenet-200/train/CLASS/images/CLASS_0.JPEG, ..., val/images/val_0.JPEG, ... and"
        " val/val_annotations.txt"
    )
    archive = Archive(
        "https://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"
    )
    mean = MEAN
    deviation = DEVIATION

    def is_here(self, root: Path) -> bool:
        """Both halves are needed."""
        return (root / "train").is_dir() and (root / "val").is_dir()

    def read(self, root: Path, limit: int | None, test_limit: int | None) -> Read:
        """Classes are numbered in the order of the training folders' names."""
        names = sorted(path.name for path in (root / "train").iterdir() if path.is_dir())
        train = [
            [(path, label) for path in files_in(_images(root / "train" / name))]
            for label, name in enumerate(names)
        ]
        if not any(train):
            raise self.missing(root, "no training image")
        test = self._test(root / "val", names)
        if not test:
            raise self.missing(root, "no validation image")
        return Read(
            read_part(in_turns(train), 100_000, limit),
            read_part(test, 10_000, test_limit),
            len(names),
            200,
        )

    def _test(self, root: Path, names: list[str]) -> list[Labelled]:
        """In the published layout, or sorted into a folder for each class, as many keep it."""
        table = root / "val_annotations.txt"
        if table.is_file():
            return _annotated(table, names)
        if not any((root / name).is_dir() for name in names):
            raise self.missing(root, "no file 'val_annotations.txt'")
        return in_turns(
            [(path, label) for path in files_in(_images(root / name))]
            for label, name in enumerate(names)
            if (root / name).is_dir()
        )


def _images(folder: Path) -> Path:
    return folder / "images" if (folder / "images").is_dir() else folder


def _annotated(table: Path, names: list[str]) -> list[Labelled]:
    """Lines of 'file, class, box', tab-separated; files that are not there are left out."""
    if table.stat().st_size > _MOST_BYTES:
        raise DamagedDataSetError(f"{table}: too long to be the annotations of TinyImageNet")
    labels = {name: label for label, name in enumerate(names)}
    there = {path.name: path for path in files_in(_images(table.parent))}
    found = []
    for number, line in enumerate(table.read_text("utf-8", "replace").splitlines(), 1):
        words = line.split("\t")
        if len(words) < 2 or words[1] not in labels:
            raise DamagedDataSetError(
                f"{table}: line {number} names no class of the training images"
            )
        if words[0] in there:
            found.append((there[words[0]], labels[words[1]]))
    return found
