"""The networks and data sets of the paper, by name.

    from neuralmark import zoo
    network = zoo.architecture("resnet18")
    data = zoo.data("cifar100", "/data")
    model = network.build(classes=data.classes)
    options = neuralmark.AttachOptions(tensors=network.marked)
    mark = neuralmark.attach(model, optimizer, key, options)

One file each, in `models/` and `sets/`. Third parties register a class that derives from
`Architecture` or `DataSource` under the entry point groups `neuralmark.architectures` and
`neuralmark.datasets`. Nothing here loads torch before it is needed.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from neuralmark.errors import ParameterError
from neuralmark.registry import Registry, unknown
from neuralmark.zoo.architectures import Architecture
from neuralmark.zoo.images import DataSet, augment, normalise
from neuralmark.zoo.sources import DataSource

__all__ = [
    "Architecture",
    "DataSet",
    "DataSource",
    "architecture",
    "architectures",
    "augment",
    "data",
    "datasets",
    "normalise",
    "source",
]

_models: Registry[Architecture] = Registry(
    f"{__name__}.models",
    Architecture,  # type: ignore[type-abstract]
    "architecture",
    "neuralmark.architectures",
)
_sets: Registry[DataSource] = Registry(
    f"{__name__}.sets",
    DataSource,  # type: ignore[type-abstract]
    "data set",
    "neuralmark.datasets",
)


def architectures() -> list[str]:
    """The names of all architectures.

    Returns:
        The names, sorted.

    Examples:
        >>> "resnet18" in architectures()
        True
    """
    return sorted(_models.get(name).name for name in _models.names())


def architecture(name: str, options: Mapping[str, Any] | None = None) -> Architecture:
    """The architecture of this name.

    Args:
        name: As `architectures` lists it.
        options: What this architecture can be varied by, by name.

    Returns:
        The architecture, whose `build` makes networks.

    Raises:
        ParameterError: The name or an option is unknown (the nearest is suggested).

    Examples:
        >>> architecture("smallcnn", {"stride": 2}).marked
        ('conv4.weight',)
    """
    found = _models.get(name)
    known = [field.name for field in fields(found)]
    for option in options or {}:
        if option not in known:
            raise ParameterError(f"{found.name} has no option {unknown(str(option), known)}")
    return found(**options or {})


def datasets() -> list[str]:
    """The names of all data sets.

    Returns:
        The names, sorted.

    Examples:
        >>> "cifar100" in datasets()
        True
    """
    return sorted(_sets.get(name).name for name in _sets.names())


def source(name: str) -> DataSource:
    """Where a data set is read from, with its home and its layout.

    Args:
        name: As `datasets` lists it.

    Returns:
        The source, whose `load` reads the set.

    Raises:
        ParameterError: The name is unknown; the nearest is suggested.

    Examples:
        >>> source("cifar10").title
        'CIFAR-10'
    """
    return _sets.get(name)()


def data(
    name: str,
    folder: str | Path | None = None,
    *,
    limit: int | None = None,
    test_limit: int | None = None,
    download: bool = False,
) -> DataSet:
    """Read a data set from a folder.

    Limits keep the first images in the order of the files; of sets that have a folder for each
    class, the classes take turns.

    Args:
        name: As `datasets` lists it.
        folder: Where it lies; the digits need none.
        limit: How many training images to keep.
        test_limit: How many test images to keep.
        download: Whether to fetch it into the folder first if it is missing.

    Returns:
        The images and labels, in memory.

    Raises:
        ParameterError: The name is unknown, or a value is out of range.
        DataSetError: The set is missing, incomplete or damaged.

    Examples:
        >>> digits = data("digits", limit=100)
        >>> digits.train_images.shape, digits.classes
        (torch.Size([100, 1, 8, 8]), 10)
    """
    return source(name).load(folder, limit, test_limit, download)
