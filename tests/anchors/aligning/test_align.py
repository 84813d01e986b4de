"""Networks rebuilt by the attack laboratory come back, by likeness to a coarse anchor."""

import numpy as np
import pytest

from neuralmark.anchors.aligning import align
from neuralmark.anchors.aligning.contract import UNLIKE, Aligned
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.factors import rescaled
from neuralmark.anchors.moves import moved
from neuralmark.records.alignment import TOO_LARGE
from neuralmark.structures.structure import Weights
from tests.support import rebuilt as lab

KINDS = sorted(lab.KINDS)


def back(suspects: Weights, anchor: Anchor, found: dict[str, Aligned], name: str) -> np.ndarray:
    return rescaled(moved(suspects[name], found[name].moves), anchor[name])[0]


def gap(values: np.ndarray, truth: np.ndarray) -> float:
    """Relative distance."""
    return float(np.linalg.norm(values - truth) / np.linalg.norm(truth))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ways", [*((way,) for way in lab.EVERYTHING), lab.EVERYTHING])
def test_everything_comes_back(kind: str, ways: tuple[str, ...]) -> None:
    weights = lab.trained(kind)
    suspects, anchor = lab.rebuilt(weights, ways), lab.anchor_of(weights)
    found = align(suspects, anchor, lab.matrices(weights))
    for name in lab.matrices(weights):
        assert gap(back(suspects, anchor, found, name), weights[name]) < 0.06, name
        assert found[name].cosine > 0.97


def test_what_was_done_is_said() -> None:
    weights = lab.trained("chain")
    suspects, anchor = lab.rebuilt(weights), lab.anchor_of(weights)
    found = align(suspects, anchor, lab.matrices(weights))
    assert found["features.4.weight"].changes == ("permuted", "flipped", "6 dummies dropped")
    assert found["classifier.0.weight"].changes == ("permuted", "6 dummies dropped")


def test_nothing_is_said_of_what_was_left_alone() -> None:
    weights = lab.trained("residual")
    anchor = lab.anchor_of(weights)
    found = align(weights, anchor, lab.matrices(weights))
    assert {name: aligned.changes for name, aligned in found.items()} == dict.fromkeys(found, ())
    assert all(move.is_same for aligned in found.values() for move in aligned.moves)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_before_and_after(kind: str) -> None:
    weights = lab.trained(kind)
    anchor = lab.anchor_of(weights)
    suspects = lab.noisy(lab.rebuilt(lab.noisy(weights, 0.3)), 0.1)
    found = align(suspects, anchor, lab.matrices(weights))
    for name, aligned in found.items():
        assert aligned.cosine > 0.8, name


def test_a_stranger_stays_one() -> None:
    weights, other = lab.trained("chain"), lab.trained("chain", seed=1)
    anchor = lab.anchor_of(weights)
    found = align(other, anchor, ["features.4.weight", "classifier.0.weight"])
    assert all(aligned.cosine < 0.5 for aligned in found.values())


@pytest.mark.parametrize("kind", KINDS)
def test_removed_channels_are_missing_and_no_others(kind: str) -> None:
    weights = lab.trained(kind)
    narrow, kept = lab.without(weights, 1 / 4)
    suspects = lab.rebuilt(narrow, ("permute", "flip"))
    anchor = lab.anchor_of(weights)
    found = align(suspects, anchor, lab.matrices(weights))
    for group in lab.map_of(weights).groups:
        for side in group.sides():
            if side.tensor in found and group.name in kept:
                there = np.zeros(group.size, bool)
                there[kept[group.name]] = True
                present = found[side.tensor].moves[side.axis].found[:: side.block]
                np.testing.assert_array_equal(present, there, side.tensor)


@pytest.mark.parametrize("kind", KINDS)
def test_split_channels_are_joined(kind: str) -> None:
    weights = lab.trained(kind)
    suspects = lab.rebuilt(lab.split(weights), ("permute", "flip", "rescale"))
    anchor = lab.anchor_of(weights)
    found = align(suspects, anchor, lab.matrices(weights))
    for name in lab.matrices(weights):
        assert gap(back(suspects, anchor, found, name), weights[name]) < 0.06, name
    reader = "features.4.weight" if kind == "chain" else "layer1.0.conv2.weight"
    assert "split channels joined" in found[reader].changes


def test_near_copies_that_are_not_read_do_not_matter() -> None:
    weights = dict(lab.trained("chain"))
    rng = np.random.default_rng(0)
    group = lab.map_of(weights).groups[1]
    suspects = dict(weights)
    for side in group.sides():
        values = weights[side.tensor]
        copies = np.take(values, side.places(np.arange(20)), axis=side.axis)
        if side in group.consumers:
            copies = np.zeros_like(copies)
        elif copies.ndim > 1:
            copies = copies + 0.1 * values.std() * rng.standard_normal(copies.shape)
        suspects[side.tensor] = np.concatenate([copies, values], side.axis).astype(np.float32)
    anchor = lab.anchor_of(weights)
    found = align(suspects, anchor, lab.matrices(weights))
    for name in lab.matrices(weights):
        assert gap(back(suspects, anchor, found, name), weights[name]) < 0.12, name


def test_vectors_follow_their_layer() -> None:
    weights = lab.trained("chain")
    suspects, anchor = lab.rebuilt(weights, ("permute", "flip")), lab.anchor_of(weights)
    names = [f"features.5.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
    found = align(suspects, anchor, [*names, "features.4.bias"])
    for name, aligned in found.items():
        np.testing.assert_array_equal(moved(suspects[name], aligned.moves), weights[name], name)
    assert set(found) == {*names, "features.4.bias"}


def test_without_structure_convolutions_still_come_back() -> None:
    weights = lab.trained("residual")
    suspects, anchor = lab.rebuilt(weights), lab.anchor_of(weights, structured=False)
    found = align(suspects, anchor, ["layer1.1.conv2.weight", "layer2.0.conv2.weight"])
    for name in found:
        assert gap(back(suspects, anchor, found, name), weights[name]) < 0.06, name


def test_without_structure_a_vector_stays_where_it_lies() -> None:
    weights = lab.trained("chain")
    found = align(weights, lab.anchor_of(weights, structured=False), ["features.5.weight"])
    aligned = found["features.5.weight"]
    assert all(move.is_same for move in aligned.moves)
    assert aligned.changes == ()
    assert aligned.cosine > 0.99


def test_a_vector_that_does_not_fit_its_layer_stays_where_it_lies() -> None:
    weights = lab.trained("chain")
    suspects = lab.rebuilt(weights, ("permute",)) | {"features.5.weight": np.ones(7, np.float32)}
    found = align(suspects, lab.anchor_of(weights), ["features.4.weight", "features.5.weight"])
    assert found["features.4.weight"].changes == ("permuted",)
    assert found["features.5.weight"].changes == (UNLIKE,)


def test_a_spoilt_channel_is_placed_by_what_reads_it() -> None:
    weights = lab.trained("chain")
    suspects, anchor = lab.rebuilt(weights, ("permute",)), lab.anchor_of(weights)
    spoilt = suspects["features.4.weight"].copy()
    spoilt[3] = np.nan
    names = ["features.4.weight"]
    whole, found = (
        align(table, anchor, names)[names[0]].moves[0].index
        for table in (suspects, suspects | {names[0]: spoilt})
    )
    assert whole is not None
    assert found is not None
    assert 3 in found
    np.testing.assert_array_equal(found, whole)


def test_a_part_of_the_network_is_enough() -> None:
    weights = lab.trained("residual")
    suspects, anchor = lab.rebuilt(weights), lab.anchor_of(weights)
    some = {name: suspects[name] for name in suspects if name.startswith("layer2")}
    found = align(some, anchor, lab.matrices(weights))
    assert set(found) == {name for name in lab.matrices(weights) if name in some}
    assert all(aligned.cosine > 0.97 for aligned in found.values())


def test_parts_of_the_network_that_share_nothing() -> None:
    weights = lab.trained("chain")
    suspects, anchor = lab.rebuilt(weights, ("permute",)), lab.anchor_of(weights)
    ends = ["features.0.weight", "classifier.2.weight"]
    found = align({name: suspects[name] for name in ends}, anchor, ends)
    for name in ends:
        assert gap(back(suspects, anchor, found, name), weights[name]) < 0.12, name


def test_columns_that_do_not_divide_into_the_map_are_a_layer_of_their_own() -> None:
    weights = lab.trained("chain")
    anchor = lab.anchor_of(weights)
    name = "classifier.0.weight"
    suspects = dict(lab.rebuilt(weights, ("permute",)))
    suspects[name] = np.pad(suspects[name], ((0, 0), (0, 1)))
    found = align(suspects, anchor, [name, "features.4.weight"])
    assert found["features.4.weight"].cosine > 0.97
    assert found[name].moves[1].size == 160
    assert "1 dummy dropped" in found[name].changes


def test_beyond_the_limit_nothing_is_compared() -> None:
    weights = lab.trained("chain")
    found = align(weights, lab.anchor_of(weights), ["features.4.weight"], limit=100)
    aligned = found["features.4.weight"]
    assert aligned.changes == (TOO_LARGE,)
    assert not any(move.found.any() for move in aligned.moves)


def test_a_tensor_of_another_shape_is_not_taken() -> None:
    weights = lab.trained("chain")
    anchor = lab.anchor_of(weights)
    suspects = {
        "features.4.weight": np.ones((40, 24, 5, 5), np.float32),
        "classifier.0.weight": np.ones((0, 160), np.float32),
        "features.5.weight": np.ones(3, np.float32),
    }
    found = align(suspects, anchor, list(suspects))
    assert {name: aligned.changes for name, aligned in found.items()} == dict.fromkeys(
        suspects, (UNLIKE,)
    )


def test_the_same_again() -> None:
    weights = lab.trained("residual")
    suspects, anchor = lab.rebuilt(lab.noisy(weights, 0.3)), lab.anchor_of(weights)
    one, two = (align(suspects, anchor, lab.matrices(weights)) for _ in range(2))
    for name in one:
        a, b = (moved(suspects[name], found[name].moves) for found in (one, two))
        np.testing.assert_array_equal(a, b, name)
