"""Tensors without a direct match: found by name, or by profile where names say nothing or lie."""

from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from neuralmark.anchors.anchor import Anchor  # noqa: E402
from neuralmark.anchors.building import AnchorRecipe, build  # noqa: E402
from neuralmark.anchors.locating import locate  # noqa: E402
from neuralmark.anchors.locating.profiles import distances, levelled, profile  # noqa: E402
from neuralmark.anchors.locating.suspect import TableWeights  # noqa: E402
from neuralmark.anchors.locating.views import Spaced, Stored  # noqa: E402
from neuralmark.anchors.originals import OriginalArrays  # noqa: E402
from neuralmark.attacks.contract import Scene  # noqa: E402
from neuralmark.attacks.restructure import Restructure  # noqa: E402
from tests.support import architectures  # noqa: E402
from tests.support.anchored import Table, anchor_of, arrays, found_in  # noqa: E402
from tests.support.models import gaussian  # noqa: E402


@cache
def trained(seed: int = 0) -> Table:
    """A small ResNet that has learnt digits for a few seconds."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (
        torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1).repeat(1, 3, 1, 1) / 8 - 1
    )
    labels = torch.tensor(digits.target)
    torch.manual_seed(seed)
    model = architectures.CifarResNet(2).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)
    for step in range(40):
        batch = torch.arange(step * 32, step * 32 + 32) % len(labels)
        loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return arrays(model)


@cache
def network(name: str) -> tuple[Table, Anchor, int]:
    heads = {"gpt2": 4, "llama": 8}.get(name, 0)
    weights = trained() if name == "resnet" else arrays(getattr(architectures, name)())
    return weights, anchor_of(weights, heads), heads


def rebuilt(weights: Table, heads: int, *ways: tuple[Any, float]) -> Table:
    table, rng = dict(weights), np.random.default_rng(1)
    for how, amount in ways:
        target = tuple(name for name, value in table.items() if value.ndim > 1)
        made = Restructure(how=how, amount=amount, heads=heads).run(Scene(table, target, rng))
        table |= made.weights or {}
    return table


def renamed(table: Table) -> tuple[Table, dict[str, str]]:
    order = np.random.default_rng(2).permutation(len(table))
    names = {name: f"x{code}" for name, code in zip(table, order, strict=True)}
    return dict(sorted((names[name], value) for name, value in table.items())), names


def handed_on(table: Table) -> tuple[Table, dict[str, str]]:
    """Every tensor under the name of the next one of its shape."""
    by_shape = defaultdict(list)
    for name, value in table.items():
        by_shape[value.shape].append(name)
    names = {
        one: two
        for group in by_shape.values()
        for one, two in zip(group, [*group[1:], group[0]], strict=True)
    }
    return {names[name]: value for name, value in table.items()}, names


EVERYTHING = (("permute", 1.0), ("rescale", 1.0), ("flip", 0.5))
CASES = [
    ("resnet", EVERYTHING),
    ("resnet", (*EVERYTHING, ("dummy", 8))),
    ("gpt2", (("permute", 1.0),)),
    ("gpt2", (("permute", 1.0), ("rotate", 1.0))),
    ("llama", EVERYTHING),
    ("llama", (("permute", 1.0), ("dummy", 8))),
]
BOTH = pytest.mark.parametrize(("name", "ways"), CASES)


def found_share(suspect: Table, anchor: Anchor, names: dict[str, str]) -> float:
    found = found_in(suspect, anchor)
    right = [
        any(np.array_equal(suspect[stored], suspect[names[name]]) for stored in each.view.stored())
        for name, each in found.items()
    ]
    return sum(right) / len(anchor.placement)


@BOTH
def test_by_name(name: str, ways: tuple[tuple[str, float], ...]) -> None:
    weights, anchor, heads = network(name)
    table = rebuilt(weights, heads, *ways)
    assert found_share(table, anchor, {n: n for n in table}) == 1


@BOTH
def test_by_profile_where_all_names_are_random(
    name: str, ways: tuple[tuple[str, float], ...]
) -> None:
    weights, anchor, heads = network(name)
    suspect, names = renamed(rebuilt(weights, heads, *ways))
    assert found_share(suspect, anchor, names) > 0.85


@pytest.mark.parametrize("name", ["resnet", "llama"])
def test_names_that_were_handed_on_are_not_believed(name: str) -> None:
    weights, anchor, heads = network(name)
    suspect, names = handed_on(rebuilt(weights, heads, ("permute", 1.0)))
    assert found_share(suspect, anchor, names) > 0.9


def test_what_must_be_aligned_is_not_direct_and_keeps_its_lengths() -> None:
    weights, anchor, _ = network("resnet")
    suspect = rebuilt(weights, 0, ("permute", 1.0), ("dummy", 8))
    found = found_in(suspect, anchor)
    one = "layer1.1.conv1.weight"
    assert not found[one].direct
    assert found[one].view == Stored(one)
    assert found[one].view.read(TableWeights(suspect)).shape == (24, 16, 3, 3)


def test_another_training_of_the_same_network_is_nowhere_direct() -> None:
    _, anchor, _ = network("resnet")
    found = found_in(trained(seed=1), anchor)
    assert len(found) == len(anchor.placement)
    assert max(each.cosine for each in found.values()) < 0.5
    assert not any(each.direct for each in found.values())


@pytest.mark.parametrize("shape", [(40, 30), (24, 16, 3, 3), (700, 60)])
def test_a_profile_does_not_see_order_signs_and_scales(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    one = (gaussian(*shape) ** 3).astype(np.float32)
    other = one[rng.permutation(shape[0])][:, rng.permutation(shape[1])]
    plain, moved = profile(one), profile(other)
    for a, b in zip(plain, moved, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)
    rows, columns = (np.exp(rng.normal(0, 1, n)) * rng.choice([-1, 1], n) for n in shape[:2])
    ends = (1,) * (len(shape) - 2)
    scaled = one * rows.reshape(-1, 1, *ends) * columns.reshape(1, -1, *ends)
    agreed = [
        np.allclose(a, b, atol=0.01)
        for a, b in zip(plain, profile(scaled.astype(np.float32)), strict=True)
    ]
    assert sum(agreed) == len(agreed) - 2  # the raw spectrum is the only one that scales change


def test_a_profile_does_not_see_channels_that_are_zero() -> None:
    one = (gaussian(60, 50) ** 3).astype(np.float32)
    padded = np.zeros((70, 58), np.float32)
    padded[5:65, 3:53] = one
    for a, b in zip(profile(one), profile(padded), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)


def test_profiles_of_large_tensors_tell_them_apart() -> None:
    rng = np.random.default_rng(4)
    ones = [
        (gaussian(900, 800, seed=i) ** power).astype(np.float32) for i, power in ((1, 1), (2, 3))
    ]
    moved = [one[rng.permutation(900)][:, rng.permutation(800)] for one in ones]
    apart = distances([profile(one) for one in ones], [profile(one) for one in moved])
    assert apart.argmin(axis=1).tolist() == [0, 1]


def test_levelled_rows_and_columns_have_one_size() -> None:
    factors = np.exp(np.random.default_rng(5).normal(0, 2, 50)).astype(np.float32)
    even = levelled((gaussian(50, 40, 3) * factors[:, None, None]).astype(np.float32))
    np.testing.assert_allclose(np.square(even).mean(axis=(1, 2)), 1, atol=0.02)
    np.testing.assert_allclose(np.square(even).mean(axis=(0, 2)), 1, atol=0.02)


@pytest.mark.parametrize("value", [0.0, 0.1, np.nan, np.inf, 3e38])
def test_profiles_of_anything_are_numbers(value: float) -> None:
    odd = [np.full(shape, value, np.float32) for shape in ((8, 9), (7, 8, 3, 3), (1, 1), (900, 2))]
    for each in odd:
        assert all(np.isfinite(group).all() for group in profile(each))
    apart = distances([profile(odd[0]), profile(gaussian(8, 9))], [profile(gaussian(8, 9))])
    assert np.isfinite(apart).all()
    assert apart[1, 0] < apart[0, 0]


def test_rows_of_an_embedding_that_the_anchor_keeps() -> None:
    rng = np.random.default_rng(6)
    sizes = np.exp(rng.normal(0, 0.5, (3000, 1)))
    table = {
        "wte.weight": (rng.standard_normal((3000, 24)) * sizes).astype(np.float32),
        "layer.weight": gaussian(24, 24),
    }
    anchor = build(OriginalArrays(table), AnchorRecipe((("layer.weight", (24, 24)),)))
    assert anchor.entry("wte.weight").rows == 1024
    longer = table | {"wte.weight": np.concatenate([table["wte.weight"], gaussian(500, 24)])}
    for suspect in (table, longer):
        found = locate(TableWeights(suspect), anchor)["wte.weight"]
        assert found.direct
        assert found.view == Spaced(Stored("wte.weight"), 3000, 1024)
        read = found.view.read(TableWeights(suspect))
        np.testing.assert_array_equal(
            read, table["wte.weight"][anchor.entry("wte.weight").kept_rows]
        )
    stream = table | {"wte.weight": table["wte.weight"][:, rng.permutation(24)]}
    found = locate(TableWeights(stream), anchor)["wte.weight"]
    assert found.view == Spaced(Stored("wte.weight"), 3000, 1024)
    assert not found.direct
    tokens = table | {"wte.weight": table["wte.weight"][rng.permutation(3000)]}
    found = locate(TableWeights(tokens), anchor)["wte.weight"]
    assert found.view == Stored("wte.weight")
    pieces = np.array_split(table["wte.weight"], 3)
    sharded = {f"rank{i}.wte.weight": piece for i, piece in enumerate(pieces)}
    assert locate(TableWeights(sharded), anchor)["wte.weight"].direct


def test_an_embedding_whose_rows_have_one_length_is_taken_as_it_is_numbered() -> None:
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((3000, 24))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    table = {"wte.weight": rows, "layer.weight": gaussian(24, 24)}
    anchor = build(OriginalArrays(table), AnchorRecipe((("layer.weight", (24, 24)),)))
    turn = np.linalg.qr(rng.standard_normal((24, 24)))[0].astype(np.float32)
    rotated = table | {"wte.weight": rows @ turn}
    found = locate(TableWeights(rotated), anchor)["wte.weight"]
    assert found.view == Spaced(Stored("wte.weight"), 3000, 1024)
    assert not found.direct
