"""What lies in place, though samples or large changes say otherwise; and strangers."""

import math

import numpy as np
import pytest

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.originals import OriginalArrays
from neuralmark.anchors.restoring import restore
from neuralmark.anchors.standing import closeness, hollow, stands, trusted
from neuralmark.records.alignment import Alignment
from neuralmark.structures.structure import Array
from tests.support.models import gaussian

Table = dict[str, Array]


def model(*shapes: tuple[int, ...]) -> Table:
    return {f"layers.{i}.weight": 0.02 * gaussian(*s, seed=i) for i, s in enumerate(shapes)}


def anchor_of(table: Table, bits: int = 4) -> Anchor:
    placement = tuple((name, value.shape) for name, value in table.items())
    return build(OriginalArrays(table), AnchorRecipe(placement, bits=bits))


def restored(suspect: Table, anchor: Anchor) -> tuple[Table, Alignment]:
    """What is read of each tensor if all of it is trusted, and what is told of it."""
    found = restore(TableWeights(suspect), anchor)
    values = {
        entry.name: tensor.fill if tensor.kept is None else tensor.fill + tensor.kept
        for entry, tensor in found.tensors()
    }
    return values, found.record()


def apart(one: Array, two: Array) -> float:
    return float(np.linalg.norm(one - two) / np.linalg.norm(two))


def test_rows_that_no_sample_sees() -> None:
    """A sample of a tall tensor leaves most rows out; permuting those only is noticed."""
    table = model((2000, 64))
    anchor, rng = anchor_of(table), np.random.default_rng(0)
    value = table["layers.0.weight"]
    seen = np.arange(256) * 2000 // 256
    hidden = np.setdiff1d(np.arange(2000), seen)
    moved = value.copy()
    moved[hidden] = value[rng.permutation(hidden)]
    read, told = restored({"layers.0.weight": moved}, anchor)
    assert apart(read["layers.0.weight"], value) < 0.2
    assert told.tensors[0].changes == ("permuted",)


def test_a_decoy_under_the_right_name_is_not_taken() -> None:
    """A tensor that is right where an even sample looks does not hide the true one."""
    table = model((1024, 96))
    anchor = anchor_of(table)
    value = table["layers.0.weight"]
    decoy = 0.02 * gaussian(1024, 96, seed=9)
    for axis in (0, 1):
        places = np.arange(64) * value.shape[axis] // 64
        np.moveaxis(decoy, axis, 0)[places] = np.moveaxis(value, axis, 0)[places]
    read, told = restored({"layers.0.weight": decoy, "other": value}, anchor)
    assert apart(read["layers.0.weight"], value) < 0.05
    assert told.tensors[0].source == "other"


@pytest.mark.parametrize("times", [2.0, 10.0, 100.0])
def test_a_low_rank_change_hides_nothing(times: float) -> None:
    """Rank 8 of 128: the tensors are unlike their anchor, and still lie in place."""
    table = model((128, 128), (352, 128))
    anchor, rng = anchor_of(table), np.random.default_rng(1)
    suspect = {}
    for name, value in table.items():
        update = rng.standard_normal((len(value), 8)) @ rng.standard_normal((8, value.shape[1]))
        size = times * np.linalg.norm(value) / np.linalg.norm(update)
        suspect[name] = (value + size * update).astype(np.float32)
    _, told = restored(suspect, anchor)
    assert told.found == 1.0
    assert all(not each.changes and each.restored > 0.9 for each in told.tensors)
    assert sum("a change of rank 8 was set aside" in note for note in told.notes) == 2


def test_a_large_tensor_is_looked_at_in_place_after_all() -> None:
    table = model((1040, 1040))
    anchor, rng = anchor_of(table), np.random.default_rng(2)
    value = table["layers.0.weight"]
    update = rng.standard_normal((1040, 4)) @ rng.standard_normal((4, 1040))
    size = 20 * np.linalg.norm(value) / np.linalg.norm(update)
    suspect = {"layers.0.weight": (value + size * update).astype(np.float32)}
    _, told = restored(suspect, anchor)
    assert told.found == 1.0
    assert not told.tensors[0].changes


def test_strangers_are_not_found() -> None:
    table = model((96, 128), (256, 96))
    _, told = restored(
        {n: v[::-1, ::-1].copy() * 0 + 0.02 for n, v in table.items()}, anchor_of(table)
    )
    assert told.found == 0.0
    rng = np.random.default_rng(3)
    strange = {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in table.items()}
    _, told = restored(strange, anchor_of(table))
    assert told.found == 0.0


def test_louder_strangers_are_not_found() -> None:
    """GPT-2's projections are made small; random ones of the size of the others are not they."""
    shapes = {"attn.c_attn": (128, 384), "attn.c_proj": (128, 128), "mlp.c_fc": (128, 512)}
    shapes |= {"mlp.c_proj": (512, 128)}
    names = [(f"transformer.h.{i}.{n}.weight", s) for i in range(1) for n, s in shapes.items()]
    table = {
        name: (0.008 if "c_proj" in name else 0.02) * gaussian(*shape, seed=i)
        for i, (name, shape) in enumerate(names)
    }
    strange = {name: 0.02 * gaussian(*shape, seed=50 + i) for i, (name, shape) in enumerate(names)}
    anchor = build(OriginalArrays(table), AnchorRecipe(tuple(names), heads=4))
    _, told = restored(strange, anchor)
    assert told.found == 0.0
    assert not any(fate.source for fate in told.tensors)


def noisy(value: Array, share: float, seed: int) -> Array:
    """With noise of twenty deviations in this share of the directions of its inputs."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((value.shape[1], int(share * value.shape[1]))))
    added = rng.standard_normal((len(value), basis.shape[1])) @ basis.T
    return np.asarray(value + 20 * 0.02 * added, np.float32)


@pytest.mark.parametrize("permuted", [False, True])
def test_noise_in_most_directions_hides_no_tensor_in_its_place(permuted: bool) -> None:
    """What is left in a fifth of the directions is its own; not, where it was permuted as well."""
    table = model((256, 256), (256, 256))
    order = np.random.default_rng(7).permutation(256)
    suspect = {
        n: noisy(v, 0.8, i)[order if permuted else slice(None)]
        for i, (n, v) in enumerate(table.items())
    }
    _, told = restored(suspect, anchor_of(table))
    assert told.found == (0.0 if permuted else 1.0)
    assert all(fate.source == fate.name for fate in told.tensors if fate.found)


def test_untouched_tensors_are_read_as_they_are() -> None:
    table = model((64, 96), (96, 64))
    read, told = restored(
        {f"x{i}": v.T.copy() for i, v in enumerate(table.values())}, anchor_of(table)
    )
    for name, value in table.items():
        np.testing.assert_array_equal(read[name], value)
    assert told.found == 1.0
    assert told.set_aside == 0.0


def test_closeness() -> None:
    value = gaussian(40, 50)
    same = closeness(value, value)
    assert same.near
    assert same.little
    np.testing.assert_allclose(same.products, [np.square(value).sum(dtype=np.float64)] * 3)
    turned = value.copy()
    turned[3] *= -1
    assert not closeness(turned, value).near
    assert stands(turned, value)  # with a factor for each row
    assert not stands(value[::-1], value)
    kernels = gaussian(12, 10, 3, 3)
    moved = kernels.copy()
    moved[:, 4] = kernels[:, 5]
    assert not closeness(moved, kernels).near


def test_behind_nothing_there_is_nothing() -> None:
    value = gaussian(64, 64)
    for other in (gaussian(64, 64, seed=5), np.zeros_like(value), np.full_like(value, np.nan)):
        assert not trusted(other, value).firm
    assert not trusted(value[0], value[0]).firm
    assert trusted(value, value).firm


def test_a_layer_of_few_directions_does_not_stand_in_zeros() -> None:
    """Trained layers have most of their energy in a few directions; without these, little is."""
    rng = np.random.default_rng(0)
    main = rng.standard_normal((96, 6)) @ rng.standard_normal((6, 96))
    value = (main + 0.5 * rng.standard_normal((96, 96))).astype(np.float32)
    other = (main.T + 0.5 * rng.standard_normal((96, 96))).astype(np.float32)
    anchor = anchor_of({"a": value})["a"]
    for suspect in (np.zeros_like(value), np.full_like(value, 0.02), other):
        assert not trusted(suspect, anchor).firm
    for times in (1, 10, 100):
        assert trusted(value + times * main[::-1].astype(np.float32), anchor).firm


@pytest.mark.parametrize("seed", range(4))
def test_a_stranger_that_is_half_empty_does_not_stand(seed: int) -> None:
    """Rows that hand a channel on are zeros but for a one: all of it would be set aside."""
    rng = np.random.default_rng(seed)
    kernel = np.array([[0.2, 0.6, 0.2], [0.6, 2, 0.6], [0.2, 0.6, 0.2]])
    value, other = (
        (size * rng.standard_normal((64, 32, 3, 3)) * kernel).astype(np.float32)
        for size in (0.02, 0.03)
    )
    rows = rng.permutation(64)[:32]
    other[rows] = 0
    other[rows, np.arange(32), 1, 1] = 1
    anchor = anchor_of({"a": value})
    assert trusted(other, anchor["a"]).noise == math.inf
    _, told = restored({"a": other}, anchor)
    assert told.found == 0.0
    assert told.likeness == 0.0


def test_what_stands_behind_a_change_is_as_like_the_anchor_as_it_is_read() -> None:
    """Noise that is left counts; rows that are empty do not lie in place."""
    table = model((256, 256))
    [(name, value)] = table.items()
    suspect = noisy(value, 0.8, 1)
    suspect[::8] = 0
    _, told = restored({name: suspect}, anchor_of(table))
    [fate] = told.tensors
    assert fate.found == 0.875
    assert 0.6 < fate.restored < 0.99


@pytest.mark.parametrize("seed", range(4))
def test_a_few_rows_that_stay_by_chance_are_not_all(seed: int) -> None:
    value = gaussian(48, 40)
    turned = value[np.random.default_rng(seed).permutation(48)]
    assert not trusted(turned, value).firm


@pytest.mark.parametrize("seed", range(4))
def test_a_fine_anchor_is_seen_behind_changes_in_nearly_all_directions(seed: int) -> None:
    """What is left is so little that the anchor may be like it by chance; strangers are unlike."""
    rng = np.random.default_rng(seed)
    value = rng.uniform(-1, 1, (512, 512)).astype(np.float32)
    anchor = anchor_of({"a": value}, bits=8)["a"]
    basis, _ = np.linalg.qr(rng.standard_normal((512, 480)))
    change = (16 * rng.standard_normal((512, 480)) @ basis.T).astype(np.float32)
    marked = value + 0.02 * rng.standard_normal(value.shape).astype(np.float32)
    assert trusted(marked + change, anchor).noise < 1
    assert trusted(rng.permutation(marked) + change, anchor).noise == math.inf
    assert trusted(change, anchor).noise == math.inf


def patterns(*shape: int) -> list[Array]:
    """Tensors that hold one pattern: constants, columns times rows, one kernel everywhere."""
    rng, rest = np.random.default_rng(8), math.prod(shape[1:])
    pair = rng.standard_normal((shape[0], 1)) @ rng.standard_normal((1, rest))
    width = rest // shape[1] * shape[0]
    other = rng.standard_normal((shape[1], 1)) @ rng.standard_normal((1, width))
    inputs = other.reshape(shape[1], shape[0], *shape[2:]).swapaxes(0, 1)
    kernel = np.broadcast_to(rng.standard_normal(shape[2:]), shape)
    made = [np.ones(shape), np.full(shape, 0.02), np.zeros(shape), pair.reshape(shape), inputs]
    return [np.asarray(each, np.float32) for each in (*made, kernel)]


@pytest.mark.parametrize("seed", range(3))
def test_one_pattern_is_found_for_nothing(seed: int) -> None:
    """Even where most inputs of a layer are dead, and its anchor there as constant as they are."""
    value = 0.02 * gaussian(64, 32, 3, 3, seed=seed)
    value[:, np.random.default_rng(seed).permutation(32)[:12]] *= 1e-6
    anchor = anchor_of({"a": value})
    for each in patterns(64, 32, 3, 3):
        assert hollow(each, anchor["a"])
        assert not trusted(each, anchor["a"]).firm
        _, told = restored({"a": each}, anchor)
        assert told.found == 0.0
        assert told.likeness == 0.0
        for times in value.std() * np.array([0.1, 10, 1000], np.float32):
            assert not hollow(value + times * each, anchor["a"])


def test_an_anchor_of_one_pattern_is_found() -> None:
    row = gaussian(1, 40)
    assert not hollow(row, row)
    assert not hollow(gaussian(40), gaussian(40, seed=1))
