"""The laboratory: every table and figure of the paper, as functions and as commands.

An experiment (one file in `experiments/`) says which runs it needs and how their rows become tables
and figures; a preset (TOML in `presets/`) says at what scale; the runner makes each run once.

    from neuralmark import lab
    lab.run("overwrite-lambda", preset="smoke", data="/data")
    lab.report(preset="smoke", out="lab-report")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuralmark.lab.api import Failed, Finished, Means, adopt, fetch, prepare, report, run

__all__ = ["Failed", "Finished", "Means", "adopt", "fetch", "prepare", "report", "run"]


def __getattr__(name: str) -> Any:
    """Load the laboratory on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.api"), name)
