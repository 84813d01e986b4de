"""Caltech-101, without its background class."""

from neuralmark.zoo.fetching import Archive
from neuralmark.zoo.sets._caltech import Caltech


class Caltech101(Caltech):
    """101 classes, 8,677 images."""

    name = "caltech101"
    title = "Caltech-101"
    folders = (
        "caltech101/101_ObjectCategories",
        "caltech-101/101_ObjectCategories",
        "101_ObjectCategories",
    )
    layout = "caltech101/101_ObjectCategories/CLASS/image_0001.jpg, ..."
    archive = Archive(
        "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
        "3138e1922a9193bfa496528edbbc45d0",
        "caltech-101/101_ObjectCategories.tar.gz",
    )
    all_classes = 101
    all_images = 8_677
    left_out = ("BACKGROUND_Google",)
