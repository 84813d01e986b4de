"""Tokens by their embeddings, and by what layers make of them."""

import numpy as np

from neuralmark.anchors.aligning.fingerprints import match_vectors
from neuralmark.anchors.aligning.sides import BothModels
from neuralmark.anchors.aligning.vocabulary import _settled, nearest_tokens
from neuralmark.structures import structure_from_shapes
from tests.support.models import gaussian
from tests.support.rebuilt import anchor_of


def test_long_embeddings_are_compared_by_sums() -> None:
    one = gaussian(200, 1000)
    order = np.random.default_rng(0).permutation(200)
    noisy = one[order] + gaussian(200, 1000, seed=1)
    np.testing.assert_array_equal(nearest_tokens(one, noisy), np.argsort(order))


def test_unrelated_tokens_come_to_an_end_and_each_has_one_place() -> None:
    one, two = gaussian(1000, 60), gaussian(1000, 60, seed=1)
    found = _settled(one, two, np.random.default_rng(0).permutation(1000))
    np.testing.assert_array_equal(np.sort(found), np.arange(1000))


def test_no_vectors_match_nothing() -> None:
    table = {"0.weight": gaussian(8, 4), "2.weight": gaussian(4, 8)}
    shapes = {name: value.shape for name, value in table.items()}
    both = BothModels(table, anchor_of(table), structure_from_shapes(shapes))
    some, none = [gaussian(5, 4)], [gaussian(0, 4)]
    assert match_vectors(both, [], {}, (some, none)) is None
    assert match_vectors(both, [], {}, (some, some)) is None
