"""Function-preserving changes: the function stays, positions do not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuralmark import Key, imprint
from neuralmark.errors import AttackError, ParameterError, UnknownFamilyError
from tests.support.models import QUICK

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from neuralmark.attacks.contract import Scene  # noqa: E402
from neuralmark.attacks.engine.launch import launch  # noqa: E402
from neuralmark.attacks.engine.options import LaunchOptions  # noqa: E402
from neuralmark.attacks.engine.subject import subject_of  # noqa: E402
from neuralmark.attacks.restructure import COUNTS, HOW, SHARES, Manner, Restructure  # noqa: E402
from neuralmark.structures import structure_of  # noqa: E402
from tests.support import architectures as models  # noqa: E402
from tests.support.traced import Residual  # noqa: E402


def _cifar() -> Any:
    return models.lived_in(models.CifarResNet())


def _vision(*, bottleneck: bool = False, groups: int = 1) -> Any:
    return models.lived_in(models.VisionResNet(bottleneck=bottleneck, groups=groups))


IMAGES = "permute rescale flip dummy split duplicate equalise all"
TEXT = "permute rescale flip dummy rotate split duplicate vocabulary equalise all"

CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], str, str]] = {
    "cifar": (_cifar, models.images, "layer3.1.conv1.weight", IMAGES),
    "basic": (_vision, models.images, "layer2.1.conv2.weight", IMAGES),
    "bottleneck": (
        lambda: _vision(bottleneck=True),
        models.images,
        "layer2.1.conv2.weight",
        IMAGES,
    ),
    "vgg": (
        lambda: models.lived_in(models.Vgg(norm=True)),
        models.images,
        "features.8.weight",
        IMAGES,
    ),
    "alexnet": (
        lambda: models.lived_in(models.Vgg(norm=False)),
        models.images,
        "features.6.weight",
        "permute rescale dummy split duplicate equalise all",
    ),
    "sequential": (
        lambda: models.lived_in(models.plain_cnn()),
        models.images,
        "0.weight",
        IMAGES,
    ),
    "named": (
        lambda: models.lived_in(models.Named()),
        models.images,
        "second.weight",
        IMAGES,
    ),
    "traced": (
        lambda: models.lived_in(Residual(width=24)),
        models.images,
        "blocks.1.down.weight",
        "permute rescale flip split duplicate equalise all",
    ),
    "gpt2": (
        models.gpt2,
        models.tokens,
        "transformer.h.1.attn.c_attn.weight",
        "permute dummy rotate split duplicate vocabulary equalise all",
    ),
    "llama": (
        models.llama,
        models.tokens,
        "model.layers.1.mlp.down_proj.weight",
        TEXT,
    ),
    "tied llama": (
        lambda: models.llama(tied=True),
        models.tokens,
        "model.layers.1.mlp.down_proj.weight",
        TEXT,
    ),
}
ELSEWHERE = {
    ("gpt2", "dummy"): "transformer.h.1.mlp.c_fc.weight",
    ("gpt2", "split"): "transformer.h.1.mlp.c_fc.weight",
    ("gpt2", "all"): "transformer.h.1.mlp.c_fc.weight",
    ("gpt2", "duplicate"): "transformer.h.1.mlp.c_fc.weight",
    ("gpt2", "vocabulary"): "transformer.wte.weight",
    ("llama", "vocabulary"): "model.embed_tokens.weight",
    ("tied llama", "vocabulary"): "lm_head.weight",
    ("tied llama", "rotate"): "model.layers.1.self_attn.o_proj.weight",
}
"""Tensors that a way changes where it leaves the usual one alone."""
WAYS = [(name, how) for name, (_, _, _, ways) in CASES.items() for how in ways.split()]
OTHER_WAYS = [(name, how) for name in CASES for how in HOW if how not in CASES[name][3].split()]


def outputs(model: Any, inputs: Any) -> Any:
    with torch.no_grad():
        made = model.eval()(inputs)
    return getattr(made, "logits", made)


def rebuilt(model: Any, how: Manner, amount: float = 1.0, heads: int = 0) -> Any:
    result = launch(Restructure(how, amount, heads), model)
    assert result.model is not None
    return result.model


@pytest.mark.parametrize(("name", "how"), WAYS)
def test_the_function_stays(name: str, how: Manner) -> None:
    make, inputs, tensor, _ = CASES[name]
    model, given = make(), inputs()
    before = outputs(model, given)
    amount = 1.0 if how in SHARES else 3.0
    changed = rebuilt(model, how, amount)
    after = outputs(changed, given)
    assert float((after - before).abs().max()) < 1e-4 * max(1.0, float(before.abs().max()))
    tensor = ELSEWHERE.get((name, how), tensor)
    old, new = model.state_dict()[tensor], changed.state_dict()[tensor]
    least = 0.01 if how == "equalise" else 0.1  # untrained layers are nearly equal already
    assert old.shape != new.shape or float((old - new).norm() / old.norm()) > least
    assert torch.equal(outputs(model, given), before)


@pytest.mark.parametrize(("name", "how"), OTHER_WAYS)
def test_what_cannot_be_done_is_said(name: str, how: Manner) -> None:
    with pytest.raises(AttackError, match=f"{how} needs"):
        launch(Restructure(how), CASES[name][0]())


MARKED = [(name, how) for name, how in WAYS if name in ("cifar", "basic", "gpt2", "llama")]


@pytest.mark.parametrize(("name", "how"), MARKED)
def test_the_mark_after(name: str, how: Manner) -> None:
    make, _, tensor, _ = CASES[name]
    tensor = ELSEWHERE.get((name, how), tensor)
    model = make()
    key = Key(QUICK, b"", salt=bytes(32), secret=bytes([1]) * 32)
    claim = imprint(model, key, tensors=[tensor], strength=1.0).claim
    result = launch(Restructure(how), model, key, claim=claim)
    assert result.before is not None
    assert result.before.verified
    if how in COUNTS:
        assert result.after is None
        assert result.unreadable
        assert not result.survived
        assert result.change == float("inf")
        return
    assert result.after is not None
    if how in ("rescale", "equalise"):
        assert result.after.rate > 0.75
    else:
        assert 0.3 < result.after.rate < 0.68
        assert not result.survived


@pytest.mark.parametrize("name", ["cifar", "bottleneck", "vgg", "gpt2", "llama"])
def test_a_file_is_rebuilt_as_the_module_is(name: str) -> None:
    make, inputs, _, ways = CASES[name]
    model = make()
    table = {f"module.{n}": v for n, v in subject_of(model).weights.items()}
    heads = getattr(getattr(model, "config", None), "num_attention_heads", 0)
    for how in HOW:
        if how in COUNTS or how == "vocabulary" or how not in ways.split():
            continue
        result = launch(Restructure(how, 0.5, heads), table)
        assert result.weights is not None
        state = {n.removeprefix("module."): torch.tensor(v) for n, v in result.weights.items()}
        twin = make()
        twin.load_state_dict(state, strict=False)
        before, after = outputs(model, inputs()), outputs(twin, inputs())
        assert float((after - before).abs().max()) < 1e-4 * max(1.0, float(before.abs().max()))
        assert result.change > 0.01


def test_heads_of_a_file_are_left_alone_unless_counted() -> None:
    table = subject_of(models.llama()).weights
    unknown, known = structure_of(table), structure_of(table, heads=8)
    assert any("heads" in note for note in unknown.notes)
    assert not unknown.pairs
    assert len(known.pairs) == 2 * 4
    assert {g.size for g in known.groups if g.kind == "heads"} == {4, 2}


def test_dummies_in_a_file_change_its_shapes() -> None:
    model = _vision()
    result = launch(Restructure("dummy", 5), dict(subject_of(model).weights))
    assert result.weights is not None
    assert result.weights["layer2.0.conv1.weight"].shape == (69, 16, 3, 3)
    assert result.weights["layer2.0.bn1.running_var"].shape == (69,)
    assert result.weights["layer2.0.conv2.weight"].shape == (64, 69, 3, 3)
    assert result.weights["layer2.0.bn1.running_var"].min() > 0


def test_streams_behind_padding_stay() -> None:
    groups = {g.name: g for g in structure_of(subject_of(_cifar()).weights).groups}
    assert not groups["stem"].movable
    assert groups["layer1.0.conv1"].movable
    vision = {g.name: g for g in structure_of(subject_of(_vision()).weights).groups}
    assert vision["stem"].movable
    assert len(vision["stem"].producers) == 3


def test_grouped_convolutions_keep_their_places() -> None:
    model, given = _vision(bottleneck=True, groups=4), models.images()
    before = outputs(model, given)
    for how in ("permute", "rescale", "flip"):
        changed = rebuilt(model, how)
        apart = float((outputs(changed, given) - before).abs().max())
        assert apart < 1e-4 * max(1.0, float(before.abs().max()))


def test_only_groups_beside_the_targets_are_touched() -> None:
    model = _cifar()
    result = launch(
        Restructure("permute"), model, options=LaunchOptions(tensors=["layer1.0.conv1.weight"])
    )
    assert result.model is not None
    old, new = model.state_dict(), result.model.state_dict()
    moved = {name for name in old if not torch.equal(old[name], new[name])}
    prefix = "layer1.0."
    assert prefix + "conv1.weight" in moved
    assert prefix + "conv2.weight" in moved
    assert all(name.startswith(prefix) for name in moved)
    with pytest.raises(AttackError, match="beside the tensors to attack"):
        launch(
            Restructure("permute"),
            models.lived_in(_sandwich()),
            options=LaunchOptions(tensors=["0.weight"]),
        )


def _sandwich() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(8, 1), torch.nn.ReLU(), torch.nn.Linear(1, 8))


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_share_moves_that_share(share: float) -> None:
    model = models.lived_in(models.Vgg(norm=False))
    changed = rebuilt(model, "permute", share)
    old, new = model.state_dict()["features.0.bias"], changed.state_dict()["features.0.bias"]
    assert int((old != new).sum()) == max(2, round(share * 32))


def test_launch_is_the_same_for_the_same_seed() -> None:
    table = dict(subject_of(_cifar()).weights)
    one, two, other = (
        launch(Restructure(), table, options=LaunchOptions(seed=seed)).weights for seed in (1, 1, 2)
    )
    assert one is not None
    assert two is not None
    assert other is not None
    name = "layer1.0.conv1.weight"
    assert np.array_equal(one[name], two[name])
    assert not np.array_equal(one[name], other[name])


UNKNOWN: dict[str, dict[str, tuple[int, ...]]] = {
    "names": {"left.weight": (8, 8), "right.weight": (8, 8)},
    "extra": {**{"0.weight": (8, 4), "2.weight": (4, 8)}, "gate.weight": (4, 4)},
    "sizes": {"0.weight": (8, 4), "2.weight": (4, 12)},
    "norm": {"0.weight": (8, 4), "1.weight": (8,), "1.bias": (8,), "2.weight": (4, 8)},
    "one layer": {"0.weight": (8, 4), "0.bias": (8,)},
    "part of gpt2": {"transformer.h.0.attn.c_attn.weight": (8, 24)},
    "part of llama": {"model.layers.0.self_attn.q_proj.weight": (8, 8)},
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_is_not_known_is_refused(what: str) -> None:
    table = {name: np.ones(shape, np.float32) for name, shape in UNKNOWN[what].items()}
    with pytest.raises(UnknownFamilyError) as caught:
        launch(Restructure(), table)
    assert "\n" not in str(caught.value)


def test_a_resnet_with_something_more_is_refused() -> None:
    table = dict(subject_of(_vision()).weights)
    table["layer1.0.se.fc1.weight"] = np.ones((4, 16), np.float32)
    with pytest.raises(UnknownFamilyError, match=r"layer1\.0\.se"):
        launch(Restructure(), table)
    del table["layer1.0.se.fc1.weight"], table["fc.weight"]
    with pytest.raises(UnknownFamilyError, match="classifier"):
        launch(Restructure(), table)


def test_a_network_without_hidden_channels_is_refused() -> None:
    with pytest.raises(UnknownFamilyError, match="no channel of Branched can be moved"):
        launch(Restructure(), models.Branched())


@pytest.mark.parametrize(
    ("how", "amount"),
    [("permute", 1.5), ("flip", 0.0), ("dummy", 0.5), ("dummy", 1.5), ("rescale", 11.0), ("x", 1)],
)
def test_settings_out_of_range_are_refused(how: Manner, amount: float) -> None:
    with pytest.raises(ParameterError):
        Restructure(how, amount)


def test_the_sweep_has_every_way() -> None:
    attacks = Restructure.sweep()
    assert {attack.variant for attack in attacks} == set(HOW)
    assert all(attack.strength == attack.settings()["amount"] for attack in attacks)


def test_run_leaves_the_scene_alone() -> None:
    model = _cifar()
    weights = subject_of(model).weights
    kept = {name: value.copy() for name, value in weights.items()}
    scene = Scene(weights, tuple(weights), np.random.default_rng(0), model)
    for how in ("permute", "rescale", "flip", "dummy"):
        Restructure(how).run(scene)
    assert all(np.array_equal(kept[name], weights[name]) for name in kept)
    assert all(
        np.array_equal(v.numpy(), kept[n]) for n, v in model.state_dict().items() if n in kept
    )


def test_nearly_dead_channels_keep_a_variance_that_is_one() -> None:
    model = _cifar()
    with torch.no_grad():
        model.layer1[0].bn1.running_var[:8] = 1e-6
    before = outputs(model, models.images())
    changed = rebuilt(model, "rescale", 3.0)
    assert all(float(v.min()) >= 0 for n, v in changed.state_dict().items() if "running_var" in n)
    apart = float((outputs(changed, models.images()) - before).abs().max())
    assert apart < 1e-4 * max(1.0, float(before.abs().max()))


def test_the_judge_compares_outputs_where_there_is_data() -> None:
    from neuralmark.attacks.contract import Data

    model, given = _cifar(), models.images(40)
    labels = torch.zeros(40, dtype=torch.long)
    data = Data(given, labels, given, labels)
    result = launch(Restructure("flip"), model, data=data)
    assert result.accuracy_before == result.accuracy_after
    model.layer1[0].bn1.forward = lambda x: x * x  # the names lie: no batch norm any more
    with pytest.raises(AttackError, match="outputs differ"):
        launch(Restructure("rescale"), model, data=data)


def test_tracing_tells_activations_apart() -> None:
    nn = torch.nn
    body = (nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 8), nn.ReLU())
    model = nn.Sequential(*body, nn.Linear(8, 4)).eval()
    found = structure_of(subject_of(model).weights, model)
    moving = [group.activation for group in found.groups if group.movable]
    assert moving == ["other", "linear", "relu"]
    late = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 4)).eval()
    group, _ = structure_of(subject_of(late).weights, late).groups
    assert group.producers[0].norm is not None
    assert not group.producers[0].norm.direct
    by_names = structure_of(subject_of(late).weights).groups[0].producers[0].norm
    assert by_names is not None
    assert not by_names.direct
