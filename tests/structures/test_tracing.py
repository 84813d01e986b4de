"""Maps of live modules whose names say nothing: every channel they call movable may be moved."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuralmark.errors import UnknownFamilyError

torch = pytest.importorskip("torch")

from neuralmark.attacks.tools import changes, growing  # noqa: E402
from neuralmark.structures import traced_structure  # noqa: E402
from neuralmark.structures.book import Book  # noqa: E402
from neuralmark.structures.renaming import renamed  # noqa: E402
from neuralmark.structures.structure import HIDDEN, LINEAR, OTHER, RELU, STREAM  # noqa: E402
from neuralmark.structures.tracing import trace  # noqa: E402
from tests.support import traced as nets  # noqa: E402

CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], set[str], set[str]]] = {
    # what moves, and what stays, each by the layer that makes the channels
    "residual": (
        nets.Residual,
        nets.images,
        {"stem", "blocks.0.up", "blocks.1.up"},
        {"head"},
    ),
    "gated": (nets.Gated, nets.images, {"body", "squeeze", "out"}, {"head"}),
    "dense": (nets.Dense, nets.images, {"one", "two", "three"}, {"head"}),
    "converted": (nets.Converted, nets.images, {"stem", "wide"}, {"head"}),
    "tied": (nets.Tied, nets.tokens, {"embedding", "wide"}, {"read"}),
    "reused": (nets.Reused, nets.vectors, {"first", "wide"}, {"head"}),
    "unet": (nets.UNet, nets.images, {"down", "up", "skip", "mix"}, {"last"}),
    "late norm": (nets.LateNorm, nets.images, {"first", "second"}, {"head"}),
    "flattened": (nets.Flattened, nets.images, {"conv", "wide"}, {"head"}),
    "grouped": (nets.Grouped, nets.images, {"after"}, {"before", "head"}),
    "shuffled": (nets.Shuffled, nets.images, {"after"}, {"before", "head"}),
    "scaled by what is not known": (nets.Scaled, nets.vectors, {"two"}, {"one", "head"}),
}


def _lived_in(model: Any) -> Any:
    """With batch norms that do something."""
    rng = torch.Generator().manual_seed(3)
    for name, value in model.state_dict().items():
        if name.endswith("running_var"):
            value.copy_(torch.rand(value.shape, generator=rng) + 0.5)
        elif value.ndim == 1 and value.is_floating_point():
            value.add_(0.3 * torch.randn(value.shape, generator=rng))
    return model.eval()


def _table(model: Any) -> dict[str, Any]:
    state = model.state_dict().items()
    return {name: value.numpy().copy() for name, value in state if value.is_floating_point()}


def _map(model: Any) -> Any:
    shapes = {name: value.shape for name, value in _table(model).items()}
    return trace(Book.of(shapes, lambda *_: False), model)


def _loaded(model: Any, table: dict[str, Any]) -> Any:
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name in table:
                value.copy_(torch.from_numpy(table[name]))
    return model


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> tuple[Any, Any, set[str], set[str]]:
    make, given, moving, staying = CASES[request.param]
    torch.manual_seed(5)
    return _lived_in(make()), given(), moving, staying


def test_what_moves_and_what_stays(case: tuple[Any, Any, set[str], set[str]]) -> None:
    model, _, moving, staying = case
    groups = _map(model).groups
    assert {group.name for group in groups if group.movable} == moving
    assert {group.name for group in groups if not group.movable} == staying


@pytest.mark.parametrize("how", ["permute", "flip", "norms", "factors", "all"])
def test_the_function_stays(case: tuple[Any, Any, set[str], set[str]], how: str) -> None:
    model, given, moving, _ = case
    table, rng = _table(model), np.random.default_rng(1)
    with torch.no_grad():
        before = model(given)
    for group in _map(model).groups:
        if group.movable and how in ("permute", "all"):
            changes.permute(table, group, rng.permutation(group.size))
        if how in ("flip", "all"):
            changes.flip(table, group, rng, 1.0)
        if how in ("norms", "all"):
            changes.rescale_norms(table, group, rng, 1.0)
        if changes.scalable(group) and how in ("factors", "all"):
            changes.rescale(table, group, rng, 0.7)
    if how == "permute":
        old = _table(model)
        moved = {name for name in table if not np.array_equal(table[name], old[name])}
        assert {f"{layer}.weight" for layer in moving} <= moved
    with torch.no_grad():
        after = _loaded(model, table)(given)
    assert torch.allclose(before, after, atol=2e-5 * float(before.abs().max()))


def test_moving_less_than_the_whole_group_changes_the_function() -> None:
    model, given = _lived_in(nets.Residual()), nets.images()
    (stream,) = [group for group in _map(model).groups if group.name == "stem"]
    before = model(given)
    for left_out in {side.tensor for side in stream.sides()}:
        table, order = _table(model), np.random.default_rng(0).permutation(stream.size)
        changes.move(table, [s for s in stream.sides() if s.tensor != left_out], order)
        torch.manual_seed(5)
        other = _loaded(_lived_in(nets.Residual()), table)
        assert not torch.allclose(before, other(given), atol=1e-4), left_out


def test_factors_pass_only_where_one_layer_makes_the_channels() -> None:
    kinds = {group.name: (group.kind, group.activation) for group in _map(nets.Residual()).groups}
    assert kinds["stem"] == (STREAM, OTHER)
    assert kinds["blocks.0.up"] == (HIDDEN, OTHER)  # a depthwise layer rides along
    plain = {group.name: group.activation for group in _map(nets.Flattened()).groups}
    assert plain["conv"] == RELU
    assert plain["wide"] == LINEAR


def test_channels_that_others_follow_are_neither_added_nor_removed() -> None:
    rigid = {group.name for group in _map(nets.Dense()).groups if group.rigid}
    assert rigid == {"one", "two", "three"}
    assert not any(growing.resizable(group) for group in _map(nets.Dense()).groups)
    assert any(growing.resizable(group) for group in _map(nets.Flattened()).groups)


def test_why_channels_stay_is_told() -> None:
    (note,) = _map(nets.Grouped()).notes
    assert note == "channels stay where they are at 'grouped': a grouped convolution"
    with pytest.raises(UnknownFamilyError, match="no hidden channels"):
        _map(torch.nn.Linear(3, 4))
    with pytest.raises(UnknownFamilyError, match=r"at 'chunk': the operation 'chunk'"):
        _map(nets.Halved())
    assert traced_structure(_table(nets.Halved()), nets.Halved()) is None
    assert traced_structure(_table(nets.Choosing()), nets.Choosing()) is None


def test_a_map_under_other_names() -> None:
    model = nets.Flattened()
    names = {name: f"their.{name}" for name in _table(model) if not name.startswith("norm.running")}
    found = renamed(_map(model), names)
    conv = next(group for group in found.groups if group.name == "conv")
    assert conv.tensors() == {"their.conv.weight", "their.conv.bias", "their.wide.weight"}
    (maker,) = conv.producers
    assert maker.norm is None  # half of it has no name
    whole = renamed(_map(model), {name: f"their.{name}" for name in _table(model)})
    norm = next(group for group in whole.groups if group.name == "conv").producers[0].norm
    assert norm is not None
    assert (norm.gamma, norm.var) == ("their.norm.weight", "their.norm.running_var")
    assert not any(group.tensors() for group in renamed(_map(model), {}).groups)
