"""Experiments: one file each, named after what it shows. See `neuralmark.lab.contract`."""

from neuralmark.lab.contract import Experiment
from neuralmark.registry import Registry

__all__ = ["Experiment", "get", "names"]

_experiments: Registry[Experiment] = Registry(
    __name__,
    Experiment,  # type: ignore[type-abstract]
    "experiment",
    "neuralmark.experiments",
)


def names() -> list[str]:
    """The experiments that are there, in the order of their places."""
    return sorted(_experiments.names(), key=lambda name: (get(name).place, name))


def get(name: str) -> Experiment:
    """The experiment of this name; an unknown one is an error with the nearest suggestion."""
    return _experiments.get(name)()
