"""What Caltech-101 and Caltech-256 share: a folder for each class, split 80 to 20."""

from pathlib import Path
from typing import ClassVar

from neuralmark.errors import DamagedDataSetError
from neuralmark.zoo.sets._images import DEVIATION, MEAN, files_in, in_turns, read_part
from neuralmark.zoo.sources import DataSource, Read


class Caltech(DataSource):
    """The first four fifths of each class, in the order of its files, are for training."""

    mean = MEAN
    deviation = DEVIATION

    all_classes: ClassVar[int]
    all_images: ClassVar[int]
    left_out: ClassVar[tuple[str, ...]] = ()

    def is_here(self, root: Path) -> bool:
        """A folder of this name."""
        return root.name == Path(self.folders[-1]).name and root.is_dir()

    def read(self, root: Path, limit: int | None, test_limit: int | None) -> Read:
        """Classes are numbered in the order of their folders' names."""
        folders = sorted(
            path
            for path in root.iterdir()
            if path.is_dir() and path.name not in self.left_out and not path.name.startswith(".")
        )
        if not folders:
            raise self.missing(root, "no folder of a class")
        train, test = [], []
        for label, folder in enumerate(folders):
            files = files_in(folder)
            if len(files) < 2:
                raise DamagedDataSetError(
                    f"{folder}: {len(files)} images; a class needs two or more"
                )
            cut = max(1, len(files) * 4 // 5)
            train.append([(path, label) for path in files[:cut]])
            test.append([(path, label) for path in files[cut:]])
        return Read(
            read_part(in_turns(train), None, limit),
            read_part(in_turns(test), None, test_limit),
            len(folders),
            self.all_classes,
            self.all_images,
        )
