"""Packages that are there only with an extra, imported when they are first needed."""

from contextlib import suppress
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
    """Transformers or peft, behind the zoo's shim for torchvision where there is one."""
    with suppress(ModuleNotFoundError):
        import_module("neuralmark.zoo._torchvision")
    return need(module)
