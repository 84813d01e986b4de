"""Handwritten digits of 8 by 8 pixels, which scikit-learn brings along: no folder is needed."""

from pathlib import Path

import numpy as np

from neuralmark.errors import MissingExtraError
from neuralmark.zoo.sources import DataPart, DataSource, Read


class DigitsSet(DataSource):
    """1,797 images; every fourth is for testing. Not mirrored: a digit would change."""

    name = "digits"
    title = "scikit-learn's digits"
    folders = ()
    layout = "nothing"
    mean = (0.3053,)
    deviation = (0.3760,)
    padding = 0
    flip = False

    def is_here(self, root: Path) -> bool:
        """Always."""
        return True

    def _root(self, folder: str | Path | None, download: bool) -> Path:
        return Path()

    def read(self, root: Path, limit: int | None, test_limit: int | None) -> Read:
        """Grey values from 0 to 16 become bytes."""
        try:
            from sklearn.datasets import load_digits
        except ModuleNotFoundError:
            raise MissingExtraError(
                "the digits are scikit-learn's: pip install 'neuralmark[demo]'"
            ) from None
        values, labels = load_digits(return_X_y=True)
        images = np.rint(values * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        tests = np.arange(len(labels)) % 4 == 3

        def part(chosen: np.ndarray[tuple[int], np.dtype[np.bool_]], most: int | None) -> DataPart:
            found = int(chosen.sum())
            return DataPart(images[chosen][:most], labels[chosen][:most].astype(np.int64), found)

        return Read(part(~tests, limit), part(tests, test_limit), 10, 10)
