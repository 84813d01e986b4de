"""The attacks on weights that need no data: each does exactly what it says."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import norm

from neuralmark.attacks import Attack, Outcome, Scene
from neuralmark.attacks.merge import Merge, Merging
from neuralmark.attacks.noise import Noise
from neuralmark.attacks.prune import Prune, Pruning
from neuralmark.attacks.quantize import BITS, GGUF, NF4, NF4_BLOCK, Quantize
from neuralmark.attacks.shrink import Shrink
from neuralmark.checkpoints.readers.dtypes import rounded
from neuralmark.errors import (
    DataMismatchError,
    MissingExtraError,
    NeuralMarkWarning,
    ParameterError,
)
from tests.support.checks import one_line
from tests.support.models import gaussian

Array = npt.NDArray[np.float32]

MODEL = {
    "conv": gaussian(24, 10, 3, 3, seed=1),
    "linear": gaussian(40, 300, seed=2),
    "bias": gaussian(40, seed=3),
    "scalar": gaussian(seed=4),
    "empty": np.zeros((0, 8), np.float32),
}

EVERY = [
    Noise(0.3),
    Shrink(0.01),
    *(Prune(0.5, how) for how in ("random", "magnitude", "structured", "2:4")),
    *(Quantize(to) for to in BITS),
    Quantize("int4", group=0),
    Merge(0.5),
    Merge(0.5, "task-arithmetic"),
]
EACH = pytest.mark.parametrize("attack", EVERY, ids=str)


def scene(
    weights: Mapping[str, Array] = MODEL, *, seed: int = 0, others: tuple[Any, ...] = ()
) -> Scene:
    """All tensors of a model as the target; nothing can be written to."""
    views = {name: np.asarray(value).view() for name, value in weights.items()}
    for view in views.values():
        view.flags.writeable = False
    return Scene(views, tuple(views), np.random.default_rng(seed), others=others)


def run(attack: Attack, **weights: Array) -> dict[str, Array]:
    """What the attack makes of a model, unchanged tensors included."""
    made = attack.run(scene(weights or MODEL))
    return {**(weights or MODEL), **changed(made)}


def changed(outcome: Outcome) -> dict[str, Array]:
    """The weights that an attack gave."""
    assert outcome.weights is not None
    return dict(outcome.weights)


@EACH
def test_shapes_stay_input_is_untouched_and_a_seed_repeats(attack: Attack) -> None:
    before = {name: value.tobytes() for name, value in MODEL.items()}
    first, again = (changed(attack.run(scene(seed=5))) for _ in range(2))
    assert {name: value.tobytes() for name, value in MODEL.items()} == before
    assert first.keys() <= MODEL.keys()
    assert {"conv", "linear"} <= first.keys()
    for name, value in first.items():
        assert value.shape == MODEL[name].shape
        assert np.isfinite(value).all()
        assert np.array_equal(value, again[name])
        assert not np.shares_memory(value, MODEL[name])


@pytest.mark.parametrize("attack", [Noise(0.3), Prune(0.5, "random"), Merge(0.5)], ids=str)
def test_another_seed_draws_anew(attack: Attack) -> None:
    one, two = (changed(attack.run(scene(seed=seed))) for seed in (1, 2))
    assert not np.array_equal(one["linear"], two["linear"])


@EACH
def test_only_the_targets_are_touched(attack: Attack) -> None:
    whole = scene()
    narrow = Scene(whole.weights, ("linear",), whole.rng)
    assert changed(attack.run(narrow)).keys() == {"linear"}


# noise and scaling


def test_noise_is_relative_to_each_tensor() -> None:
    wide, narrow = gaussian(200, 200, seed=1), gaussian(200, 200, seed=2) / np.float32(20)
    made = run(Noise(0.5), wide=wide, narrow=narrow)
    for name, value in (("wide", wide), ("narrow", narrow)):
        noise = (made[name] - value) / value.std()
        assert noise.std() == pytest.approx(0.5, rel=0.02)
        assert abs(noise.mean()) < 0.02


def test_noise_is_independent_from_tensor_to_tensor() -> None:
    w = gaussian(100, 100)
    made = run(Noise(1), a=w, b=w)
    assert abs(np.corrcoef((made["a"] - w).ravel(), (made["b"] - w).ravel())[0, 1]) < 0.05


def test_no_noise_changes_nothing() -> None:
    assert np.array_equal(run(Noise(0))["linear"], MODEL["linear"])


def test_shrink_multiplies() -> None:
    made = run(Shrink(0.25))
    assert all(np.array_equal(made[name], MODEL[name] / 4) for name in MODEL)


def test_shrink_has_one_sweep_down_and_one_up() -> None:
    assert {(each.variant, each.strength < 1) for each in Shrink.sweep()} == {
        ("down", True),
        ("up", False),
    }
    assert min(each.strength for each in Shrink.sweep()) == 1e-3


# pruning


@pytest.mark.parametrize("how", ["random", "magnitude"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.333, 0.5, 0.99, 1.0])
def test_pruning_meets_the_share_exactly_in_every_tensor(how: Pruning, share: float) -> None:
    for name, value in run(Prune(share, how)).items():
        assert int((value == 0).sum()) == round(share * value.size), name
        kept = value != 0
        assert np.array_equal(value[kept], MODEL[name][kept])


def test_magnitude_pruning_takes_the_smallest() -> None:
    made = run(Prune(0.7))["conv"]
    gone = made == 0
    assert np.abs(MODEL["conv"][gone]).max() < np.abs(MODEL["conv"][~gone]).min()


def test_equal_magnitudes_go_in_order() -> None:
    made = run(Prune(0.5), w=np.ones((2, 4), np.float32))["w"]
    assert made.tolist() == [[0, 0, 0, 0], [1, 1, 1, 1]]


def test_random_pruning_does_not_look_at_magnitudes() -> None:
    w = gaussian(300, 300)
    gone = run(Prune(0.5, "random"), w=w)["w"] == 0
    assert np.abs(w[gone]).mean() == pytest.approx(np.abs(w[~gone]).mean(), rel=0.03)


@pytest.mark.parametrize("name", ["conv", "linear"])
def test_structured_pruning_takes_whole_channels_of_smallest_norm(name: str) -> None:
    w = MODEL[name]
    made = run(Prune(0.25, "structured"))[name].reshape(len(w), -1)
    norms = np.linalg.norm(w.reshape(len(w), -1), axis=1)
    gone = (made == 0).all(axis=1)
    assert gone.sum() == len(w) // 4
    assert norms[gone].max() < norms[~gone].min()
    assert np.array_equal(made[~gone], w.reshape(len(w), -1)[~gone])


def test_two_of_every_four_along_the_inputs() -> None:
    made = run(Prune(how="2:4"), w=gaussian(16, 64), conv=gaussian(8, 12, 3, 3, seed=7))
    fours = np.moveaxis(made["conv"], 1, -1).reshape(-1, 4)
    was = np.moveaxis(gaussian(8, 12, 3, 3, seed=7), 1, -1).reshape(-1, 4)
    for now, old in ((made["w"].reshape(-1, 4), gaussian(16, 64).reshape(-1, 4)), (fours, was)):
        assert ((now == 0).sum(axis=1) == 2).all()
        kept = np.where(now == 0, np.inf, np.abs(old)).min(axis=1)
        lost = np.where(now == 0, np.abs(old), -np.inf).max(axis=1)
        assert (kept >= lost).all()


def test_two_of_four_leaves_a_remainder_alone() -> None:
    w = gaussian(5, 10)
    made = run(Prune(how="2:4"), w=w, narrow=gaussian(5, 3))
    assert np.array_equal(made["w"][:, 8:], w[:, 8:])
    assert (made["w"] == 0).sum() == 5 * 4
    assert np.array_equal(made["narrow"], gaussian(5, 3))


def test_pruning_tells_the_share_of_zeros() -> None:
    outcome = Prune(0.3, "structured").run(scene({"w": gaussian(9, 5)}))
    assert outcome.figures == {"zeros": pytest.approx(3 / 9)}


def test_two_of_four_is_one_half() -> None:
    with pytest.raises(ParameterError, match=r"leave share at 0\.5"):
        Prune(0.6, "2:4")


# quantising


@pytest.mark.parametrize(
    ("to", "dtype"),
    [("fp16", "F16"), ("bf16", "BF16"), ("fp8-e4m3", "F8_E4M3"), ("fp8-e5m2", "F8_E5M2")],
)
def test_floats_are_on_the_grid_of_their_type(to: str, dtype: str) -> None:
    made = run(Quantize(to))["linear"]
    flat = made.reshape(-1).astype(np.float64)
    assert np.array_equal(rounded(flat, dtype), flat)
    assert not np.array_equal(made, MODEL["linear"])
    if BITS[to] == 8:
        assert len(np.unique(flat)) <= 253


@pytest.mark.parametrize(("to", "bits"), [("int8", 8), ("int4", 4), ("int3", 3), ("int2", 2)])
@pytest.mark.parametrize("group", [0, 128, 64])
def test_integers_have_their_levels_in_every_group(to: str, bits: int, group: int) -> None:
    """300 inputs: with groups of 128, the last one has 44."""
    made, top = run(Quantize(to, group))["linear"], 2 ** (bits - 1) - 1
    width = group or 300
    for old, new in zip(MODEL["linear"], made, strict=True):
        for start in range(0, 300, width):
            before, after = old[start : start + width], new[start : start + width]
            step = np.abs(before).max() / top
            levels = after / step
            assert np.allclose(levels, np.rint(levels), atol=1e-4)
            assert len(np.unique(np.rint(levels))) <= 2 * top + 1
            assert np.abs(levels).max() == pytest.approx(top)
            assert np.abs(after - before).max() <= step * 0.5001


def test_a_convolution_has_one_scale_for_each_output_channel() -> None:
    made = run(Quantize("int2", group=0))["conv"].reshape(24, -1)
    for row, old in zip(made, MODEL["conv"].reshape(24, -1), strict=True):
        assert np.unique(np.abs(row)).tolist() == [0, np.abs(old).max()]


def test_smaller_groups_lie_closer() -> None:
    def change(group: int) -> float:
        made = run(Quantize("int4", group))["linear"]
        return float(np.linalg.norm(made - MODEL["linear"]))

    assert change(16) < change(128) < change(0)


def test_a_huge_group_is_a_whole_channel() -> None:
    huge, channel = (run(Quantize("int4", group))["linear"] for group in (10**12, 0))
    assert np.array_equal(huge, channel)


def test_nf4_is_the_published_code() -> None:
    """The recipe of the paper: quantiles of both halves, an exact zero, scaled to one."""
    tail = 0.9677083
    upper = norm.ppf(np.linspace(tail, 0.5, 9)[:-1])
    lower = -norm.ppf(np.linspace(tail, 0.5, 8)[:-1])
    book = np.sort(np.concatenate([upper, [0.0], lower]))
    assert np.allclose(NF4, book / np.abs(book).max(), atol=1e-6)


def test_nf4_takes_the_nearest_of_16_levels_in_every_block() -> None:
    made = run(Quantize("nf4"))["linear"].reshape(-1)
    old = MODEL["linear"].reshape(-1)
    seen = set()
    for start in range(0, len(old), NF4_BLOCK):
        before, after = old[start : start + NF4_BLOCK], made[start : start + NF4_BLOCK]
        levels = NF4 * np.abs(before).max()
        nearest = np.abs(before[:, None] - levels).argmin(axis=1)
        assert np.array_equal(after, levels[nearest])
        seen |= set(nearest.tolist())
    assert seen == set(range(16))


@pytest.mark.parametrize("to", sorted(set(BITS) - set(GGUF)))
def test_zeros_stay_zeros(to: str) -> None:
    made = run(Quantize(to), w=np.zeros((4, 200), np.float32))["w"]
    assert not made.any()


@pytest.mark.parametrize("to", GGUF)
def test_gguf_types_are_what_the_package_makes(to: str) -> None:
    gguf = pytest.importorskip("gguf")
    w = gaussian(8, 512)
    kind = gguf.GGMLQuantizationType[to.upper()]
    stored = gguf.quants.quantize(w, kind)
    assert np.array_equal(run(Quantize(to), w=w)["w"], gguf.quants.dequantize(stored, kind))
    assert Quantize(to).strength == 8 * stored.nbytes / w.size


def test_gguf_blocks_run_through_kernels() -> None:
    pytest.importorskip("gguf")
    made = run(Quantize("q4_0"))["conv"].reshape(-1)
    whole = len(made) // 32 * 32
    assert max(len(np.unique(block)) for block in made[:whole].reshape(-1, 32)) <= 16


def test_gguf_types_without_the_package_name_the_install_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'neuralmark\[gguf\]'") as caught:
        run(Quantize("q4_0"))
    one_line(caught.value)
    with pytest.warns(NeuralMarkWarning, match=r"pip install 'neuralmark\[gguf\]'"):
        sweep = Quantize.sweep()
    assert not {each.settings()["to"] for each in sweep} & set(GGUF)
    assert run(Quantize("int4"))


def test_the_sweep_of_quantising_has_every_type_and_falls_in_bits() -> None:
    pytest.importorskip("gguf")
    sweep = Quantize.sweep()
    bits = [each.strength for each in sweep]
    assert {each.settings()["to"] for each in sweep} == set(BITS)
    assert bits == sorted(bits, reverse=True)
    assert {"int4/128", "int4/channel", "nf4", "q4_0"} <= {each.variant for each in sweep}
    assert Quantize("int4", 128).strength == 4.25
    assert Quantize.unit() == "bits per weight"


# merging


def models(count: int) -> list[dict[str, Array]]:
    return [{"w": gaussian(20, 30, seed=seed)} for seed in range(count)]


def test_averaging_keeps_a_share() -> None:
    mine, one, two = models(3)
    merged = changed(Merge(0.7).run(scene(mine, others=(one, two))))["w"]
    assert np.allclose(merged, 0.7 * mine["w"] + 0.15 * one["w"] + 0.15 * two["w"])


def test_a_full_share_is_the_model_and_none_is_the_other() -> None:
    mine, other = models(2)
    whole, none = (changed(Merge(s).run(scene(mine, others=(other,))))["w"] for s in (1, 0))
    assert np.array_equal(whole, mine["w"])
    assert np.array_equal(none, other["w"])


def test_task_arithmetic_adds_scaled_differences_to_the_base() -> None:
    mine, base, one, two = models(4)
    attack = Merge(0.4, "task-arithmetic")
    merged = changed(attack.run(scene(mine, others=(base, one, two))))["w"]
    tasks = [each["w"] - base["w"] for each in (mine, one, two)]
    assert np.allclose(merged, base["w"] + 0.4 * sum(tasks), atol=1e-6)


def test_task_arithmetic_with_the_base_alone() -> None:
    mine, base = models(2)
    merged = changed(Merge(1, "task-arithmetic").run(scene(mine, others=(base,))))["w"]
    assert np.allclose(merged, mine["w"], atol=1e-7)


@pytest.mark.parametrize("how", ["average", "task-arithmetic"])
def test_without_others_the_stand_in_is_named(how: Merging) -> None:
    mine, other = models(2)
    assert "stand-in" in Merge(0.5, how).run(scene(mine)).note
    assert Merge(0.5, how).run(scene(mine, others=(other,))).note == ""


def test_the_stand_in_has_the_same_weights_elsewhere() -> None:
    (mine,) = models(1)
    other = changed(Merge(0).run(scene(mine)))["w"]
    assert np.array_equal(np.sort(other.ravel()), np.sort(mine["w"].ravel()))
    assert abs(np.corrcoef(other.ravel(), mine["w"].ravel())[0, 1]) < 0.2


def test_checkpoints_that_do_not_fit_are_named() -> None:
    mine, good = models(2)
    for bad, words in (
        ({"v": good["w"]}, "other checkpoint 2 has no tensor 'w'"),
        ({"w": good["w"].T}, r"'w' has shape \(30, 20\) in other checkpoint 2"),
    ):
        with pytest.raises(DataMismatchError, match=words) as caught:
            Merge(0.5).run(scene(mine, others=(good, bad)))
        one_line(caught.value)


# bad values


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Noise, {"amount": -0.1}),
        (Noise, {"amount": float("nan")}),
        (Noise, {"amount": float("inf")}),
        (Shrink, {"factor": 0}),
        (Shrink, {"factor": -1}),
        (Prune, {"share": 1.01}),
        (Prune, {"share": -0.01}),
        (Prune, {"share": float("nan")}),
        (Prune, {"how": "2:5"}),
        (Quantize, {"to": "int5"}),
        (Quantize, {"group": -1}),
        (Quantize, {"group": 1.5}),
        (Quantize, {"group": True}),
        (Merge, {"share": 1.5}),
        (Merge, {"share": -0.5}),
        (Merge, {"how": "ties"}),
    ],
)
def test_bad_values_are_refused(kind: type[Attack], settings: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(settings))) as caught:
        kind(**settings)
    one_line(caught.value)


@pytest.mark.parametrize(
    ("kind", "settings", "near"),
    [(Prune, {"how": "structure"}, "structured"), (Quantize, {"to": "Q4_0"}, "q4_0")],
)
def test_a_near_miss_is_suggested(kind: type[Attack], settings: dict[str, Any], near: str) -> None:
    with pytest.raises(ParameterError, match=f"did you mean '{near}'"):
        kind(**settings)
