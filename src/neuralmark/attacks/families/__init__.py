"""Recognising a model's structure from the names and shapes of its tensors.

Each family is one module with `recognise(book, hints)`: a map, or None when the names are not of
this family. Every tensor must be explained by the map, or there is none: a change that overlooks
one tensor would not keep the function.
"""

from typing import TYPE_CHECKING

from neuralmark.attacks.contract import Weights
from neuralmark.attacks.families import chain, gpt2, llama, resnet
from neuralmark.attacks.families.book import Book, Hints
from neuralmark.attacks.tools.structure import Structure
from neuralmark.errors import UnknownFamilyError

if TYPE_CHECKING:
    import torch

FAMILIES = (resnet.recognise, gpt2.recognise, llama.recognise)
NAMES = "ResNet, VGG, AlexNet, plain Sequential chains, GPT-2 and Llama"


def structure_of(
    weights: Weights, module: "torch.nn.Module | None" = None, heads: int = 0
) -> Structure:
    """The map of a model, or an error that says why there is none."""
    book = Book.of(weights)
    hints = Hints.of(module, heads)
    for recognise in FAMILIES:
        found = recognise(book, hints)
        if found is not None:
            return found
    if module is not None:
        return _traced(book, hints, module)
    found = chain.recognise(book, hints)
    if found is None:
        raise UnknownFamilyError(
            f"the structure of the model is not known from its names ({book.sample()}): known are"
            f" {NAMES}; other simple chains can be traced when the live module is given"
        )
    return found


def _traced(book: Book, hints: Hints, module: "torch.nn.Module") -> Structure:
    """A simple chain by tracing; by names alone where tracing fails and they are enough."""
    from neuralmark.attacks.families import tracing

    try:
        return tracing.trace(book, module)
    except UnknownFamilyError:
        found = chain.recognise(book, hints)
        if found is None:
            raise
        return found
