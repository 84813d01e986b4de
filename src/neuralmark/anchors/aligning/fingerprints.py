"""What layers make of a vector, as numbers that no turn of the stream alters (pure).

A vector, and what each product of layers makes of it, forwards and backwards: their inner products
are the same in a model whose stream was rotated. They tell tokens apart, when tokens were numbered
anew, and the channels of an MLP, when nothing else is left to go by.
"""

from collections.abc import Sequence

import numpy as np

from neuralmark.anchors.aligning.assigning import matched
from neuralmark.anchors.aligning.sides import BothModels, Floats, Gains, levelled
from neuralmark.anchors.aligning.witnesses import LayerProduct
from neuralmark.structures.structure import Array, Indices

_WORK = 1 << 42
"""Multiplications that may be spent on the vectors of one model, about."""
_BLOCK = 1 << 25
"""Numbers that are held at once."""
_FURTHEST = 4.0
"""Deviations beyond this count as this."""
_TINY = 1e-12


def match_vectors(
    both: BothModels,
    products: Sequence[LayerProduct],
    gains: Gains,
    vectors: tuple[list[Array], list[Array]],
) -> Indices | None:
    """For each vector of the anchor one of the suspect's; None where too little is known.

    Every vector may have several forms (a token's embedding, and its row of the output layer).
    """
    counts = [len(forms[0]) for forms in vectors]
    if min(counts) == 0:
        return None
    width = vectors[0][0].shape[1]
    chosen = _affordable(products, max(counts) * width * len(vectors[0]))
    if not chosen:
        return None
    one, two = (
        _fingerprints(both, chosen, gains, forms, model) for model, forms in enumerate(vectors)
    )
    one, two = _standardised(one), _standardised(two)
    squares = np.square(two).sum(axis=1)
    return matched(lambda rows: 2 * one[rows] @ two.T - squares, *counts).index


def _affordable(products: Sequence[LayerProduct], cost: int) -> list[LayerProduct]:
    """The cheapest products, as many as the work allows."""
    found: list[LayerProduct] = []
    spent = 0
    for product in sorted(products, key=lambda product: sum(product.lengths)):
        spent += 2 * cost * sum(product.lengths)
        if spent <= _WORK or not found:
            found.append(product)
    return found


def _fingerprints(
    both: BothModels, products: Sequence[LayerProduct], gains: Gains, forms: list[Array], model: int
) -> Floats:
    """Inner products of all that is made of each vector."""
    count, width = forms[0].shape
    answers = len(forms) * (1 + 2 * len(products))
    step = max(1, _BLOCK // (width * answers))
    layers = [product.load(both, gains, model) for product in products]
    level = [levelled(form) for form in forms]
    pairs = np.triu_indices(answers)
    found = np.zeros((count, len(pairs[0])))
    for start in range(0, count, step):
        made = []
        for form in level:
            part = form[start : start + step]
            made.append(part)
            for product, layer in zip(products, layers, strict=True):
                made += [product.ahead(layer, part), product.back(layer, part)]
        held = np.stack(made, axis=1)
        found[start : start + step] = (held @ held.transpose(0, 2, 1))[:, pairs[0], pairs[1]]
    return found


def _standardised(values: Floats) -> Floats:
    """Every number from its own middle, in units of its own spread."""
    middle = np.median(values, axis=0)
    spread = 1.4826 * np.median(np.abs(values - middle), axis=0)
    return np.clip((values - middle) / np.maximum(spread, _TINY), -_FURTHEST, _FURTHEST)
