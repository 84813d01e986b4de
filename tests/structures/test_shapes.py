"""A map from names and shapes alone is the map of the weights."""

import numpy as np

from neuralmark.structures import structure_from_shapes, structure_of


def test_shapes_are_enough() -> None:
    shapes: dict[str, tuple[int, ...]] = {
        "features.0.weight": (8, 3, 3, 3),
        "features.2.weight": (16, 8, 3, 3),
        "classifier.weight": (10, 16),
    }
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    assert structure_from_shapes(shapes) == structure_of(weights)
