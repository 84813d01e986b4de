"""A model's structure, recognised from the names and shapes of its tensors.

Each family is one module in `families` with `recognise(book, hints)`: a map, or None when the names
are not of this family. Every tensor must be explained by the map, or there is none: a change that
overlooks one tensor would not keep the function. The same map serves whoever rebuilds a network
(`attacks.restructure`) and whoever puts it back in order (`anchors.aligning`).
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from neuralmark.errors import UnknownFamilyError
from neuralmark.registry import files_of
from neuralmark.structures import chain, families
from neuralmark.structures.book import Book, Hints
from neuralmark.structures.structure import Structure, Weights

if TYPE_CHECKING:
    import torch

NAMES = (
    "ResNet, VGG, AlexNet, plain Sequential chains, GPT-2, Llama (and Mistral, Qwen, Gemma), BERT"
    " (and RoBERTa) and ViT"
)


def structure_of(
    weights: Weights, module: "torch.nn.Module | None" = None, heads: int = 0
) -> Structure:
    """The map of a model, or an error that says why there is none."""
    shapes = {name: value.shape for name, value in weights.items()}
    book = Book.of(shapes, lambda one, two: bool(np.array_equal(weights[one], weights[two])))
    hints = Hints.of(module, heads)
    found = _of_a_family(book, hints)
    if found is not None:
        return found
    if module is not None:
        return _traced(book, hints, module)
    return _chain(book, hints)


def structure_from_shapes(
    shapes: Mapping[str, tuple[int, ...]], heads: int = 0, tied: Iterable[tuple[str, str]] = ()
) -> Structure:
    """The map of a model of which only names, shapes, heads and tied tensors are known."""
    pairs = {frozenset(pair) for pair in tied}
    book = Book.of(shapes, lambda one, two: frozenset((one, two)) in pairs)
    hints = Hints(heads)
    return _of_a_family(book, hints) or _chain(book, hints)


def traced_structure(weights: Weights, module: "torch.nn.Module") -> Structure | None:
    """The map of a live module by its graph, whatever its names; None where there is none."""
    from neuralmark.structures import tracing

    shapes = {name: value.shape for name, value in weights.items()}
    try:
        return tracing.trace(Book.of(shapes, lambda *_: False), module)
    except UnknownFamilyError:
        return None


def _of_a_family(book: Book, hints: Hints) -> Structure | None:
    for family in sorted(files_of(families.__path__)):
        module = import_module(f"{families.__name__}.{family}")
        found: Structure | None = module.recognise(book, hints)
        if found is not None:
            return found
    return None


def _chain(book: Book, hints: Hints) -> Structure:
    found = chain.recognise(book, hints)
    if found is None:
        raise UnknownFamilyError(
            f"the structure of the model is not known from its names ({book.sample()}): known are"
            f" {NAMES}; of others the live module tells it, where torch.fx can trace it"
        )
    return found


def _traced(book: Book, hints: Hints, module: "torch.nn.Module") -> Structure:
    """By tracing; by names alone where tracing fails and they are enough."""
    from neuralmark.structures import tracing

    try:
        return tracing.trace(book, module)
    except UnknownFamilyError:
        found = chain.recognise(book, hints)
        if found is None:
            raise
        return found
