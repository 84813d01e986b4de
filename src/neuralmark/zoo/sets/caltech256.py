"""Caltech-256, with its clutter class, as torchvision reads it."""

from neuralmark.zoo.fetching import Archive
from neuralmark.zoo.sets._caltech import Caltech


class Caltech256(Caltech):
    """257 classes, 30,607 images."""

    name = "caltech256"
    title = "Caltech-256"
    folders = ("caltech256/256_ObjectCategories", "256_ObjectCategories")
    layout = "caltech256/256_ObjectCategories/001.ak47/001_0001.jpg, ..."
    archive = Archive(
        "https://data.caltech.edu/records/nyy15-4j048/files/256_ObjectCategories.tar",
        "67b4f42ca05d46448c6bb8ecd2220f6d",
    )
    all_classes = 257
    all_images = 30_607
