"""Experiments: one file each, named after what it shows. See `neuralmark.lab.contract`."""

from neuralmark.lab.contract import Experiment
from neuralmark.lab.plan.preset import Preset
from neuralmark.registry import Registry

__all__ = ["Experiment", "get", "names"]

_experiments: Registry[Experiment] = Registry(
    __name__,
    Experiment,  # type: ignore[type-abstract]
    "experiment",
    "neuralmark.experiments",
)


def names(preset: Preset | None = None) -> list[str]:
    """The experiments that are there, or that a preset is for, in the order of their places."""
    chosen = [name for group in preset.experiments for name in group] if preset else []
    return sorted(chosen or _experiments.names(), key=lambda name: (get(name).place, name))


def get(name: str) -> Experiment:
    """The experiment of this name; an unknown one is an error with the nearest suggestion."""
    return _experiments.get(name)()
