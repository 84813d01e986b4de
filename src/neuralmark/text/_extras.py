"""Packages that are there only with an extra, imported when they are first needed."""

from importlib import import_module
from typing import Any

from neuralmark.errors import MissingExtraError

INSTALL = "pip install 'neuralmark[text]'"


def need(module: str) -> Any:
    """A module of the extra `text`, or an error with the line that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        package = module.partition(".")[0]
        raise MissingExtraError(f"this needs {package}: {INSTALL}") from None


def hugging_face(module: str) -> Any:
    """Transformers or peft, behind the shim for torchvision, which both import."""
    import neuralmark.torchvision_loading  # noqa: F401

    return need(module)
