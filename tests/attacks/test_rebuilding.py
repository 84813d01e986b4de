"""What the ways of rebuilding leave in the weights, beyond keeping the function."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from neuralmark.attacks.contract import Array, Scene  # noqa: E402
from neuralmark.attacks.engine.launch import launch  # noqa: E402
from neuralmark.attacks.engine.options import LaunchOptions  # noqa: E402
from neuralmark.attacks.engine.subject import subject_of  # noqa: E402
from neuralmark.attacks.restructure import Manner, Restructure, _nothing  # noqa: E402
from neuralmark.attacks.tools import growing  # noqa: E402
from neuralmark.attacks.tools.rebuilding import Rebuilding  # noqa: E402
from neuralmark.structures.attention import UNKNOWN  # noqa: E402
from neuralmark.structures.structure import Structure  # noqa: E402
from tests.support import architectures as models  # noqa: E402


def cosines(rows: Array) -> Array:
    """Between all rows."""
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    flat = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    return np.asarray(flat @ flat.T)


def twins(rows: Array, least: float) -> list[tuple[int, int]]:
    """Pairs of rows that are at least this much alike."""
    alike = np.argwhere(np.triu(cosines(rows), 1) >= least)
    return [(int(i), int(j)) for i, j in alike]


def rebuilt(model: Any, how: Manner, amount: float) -> dict[str, Array]:
    result = launch(Restructure(how, amount), dict(subject_of(model).weights))
    assert result.weights is not None
    return dict(result.weights)


def live(attack: Restructure, model: Any, seed: int = 0) -> Any:
    """The module as the attack leaves it."""
    return launch(attack, model, options=LaunchOptions(seed=seed)).model


def vgg() -> Any:
    return models.lived_in(models.Vgg(norm=False))


def test_split_channels_are_proportional_and_their_readers_add_up() -> None:
    model = vgg()
    old, new = subject_of(model).weights, rebuilt(model, "split", 5)
    made, read = "features.3.weight", "features.6.weight"
    assert new[made].shape == (69, 32 + 5, 3, 3)
    pairs = twins(new[made], 0.9999)
    assert pairs
    for i, j in pairs:
        one, two = new[made][i], new[made][j]
        assert not np.allclose(one, two)  # ReLU lets factors pass
        assert new["features.3.bias"][i] / new["features.3.bias"][j] == pytest.approx(
            float(one.flat[0] / two.flat[0]), rel=1e-3
        )
        assert abs(cosines(np.stack([new[read][:, i], new[read][:, j]]))[0, 1]) < 0.98
    assert not twins(old[made], 0.9999)


def test_a_channel_may_become_more_than_two() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 2), torch.nn.ReLU(), torch.nn.Linear(2, 4))
    model.eval()
    given = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    changed = live(Restructure("split", 7), model)
    assert changed[0].weight.shape == (9, 6)
    with torch.no_grad():
        assert torch.allclose(changed(given), model(given), atol=1e-4)


def test_where_no_factor_passes_copies_are_equal() -> None:
    new = rebuilt(models.gpt2(), "split", 4)
    made = np.ascontiguousarray(new["transformer.h.0.mlp.c_fc.weight"].T)
    pairs = twins(made, 0.9999)
    assert pairs
    assert all(np.array_equal(made[i], made[j]) for i, j in pairs)


def test_near_duplicates_cancel() -> None:
    made, read = "features.0.weight", "features.3.weight"
    table = dict(subject_of(vgg()).weights)
    alone = LaunchOptions(tensors=[made])
    new = launch(Restructure("duplicate", 3), table, options=alone).weights
    assert new is not None
    assert new[made].shape[0] == table[made].shape[0] + 6
    pairs = [(i, j) for i, j in twins(new[made], 0.9) if np.array_equal(new[made][i], new[made][j])]
    assert len(pairs) == 3
    for i, j in pairs:
        assert np.array_equal(new[read][:, i], -new[read][:, j])
        likest = max(cosines(np.stack([new[made][i], row]))[0, 1] for row in table[made])
        assert 0.97 < likest < 0.9999


def test_norms_are_equal_afterwards() -> None:
    model: Any = models.lived_in(models.CifarResNet())
    with torch.no_grad():
        for value in (model.layer1[0].conv1.weight, model.layer3[1].conv2.weight):
            value *= torch.linspace(0.2, 4.0, len(value))[:, None, None, None]
    for name, largest in (("layer1.0.conv1.weight", 1.01), ("layer3.1.conv2.weight", 1.01)):
        half, whole = (rebuilt(model, "equalise", amount)[name] for amount in (0.5, 1.0))
        spread = [
            np.linalg.norm(w.reshape(len(w), -1), axis=1)
            for w in (subject_of(model).weights[name], half, whole)
        ]
        ratios = [float(norms.max() / norms.min()) for norms in spread]
        assert ratios[0] > 15 > ratios[1] > 2 > largest > ratios[2]


def test_heads_have_axes_of_equal_size_at_right_angles() -> None:
    new = rebuilt_with_heads("equalise", 1.0, 4)
    values = new["transformer.h.0.attn.c_attn.weight"][:, 2 * 64 : 2 * 64 + 16].T
    bias = new["transformer.h.0.attn.c_attn.bias"][2 * 64 : 2 * 64 + 16]
    gram = values @ values.T + np.outer(bias, bias)
    assert np.allclose(gram, np.eye(16) * gram[0, 0], atol=1e-3 * gram[0, 0])


def rebuilt_with_heads(how: Manner, amount: float, heads: int) -> dict[str, Array]:
    table = dict(subject_of(models.gpt2()).weights)
    result = launch(Restructure(how, amount, heads), table)
    assert result.weights is not None
    return dict(result.weights)


def test_a_head_of_zeros_stays() -> None:
    table = dict(subject_of(models.gpt2()).weights)
    for end in ("weight", "bias"):
        name = f"transformer.h.0.attn.c_attn.{end}"
        zeroed = table[name].copy()
        zeroed[..., 2 * 64 : 2 * 64 + 16] = 0
        table[name] = zeroed
    result = launch(Restructure("equalise", 1.0, 4), table)
    assert result.weights is not None
    assert not result.weights["transformer.h.0.attn.c_attn.weight"][:, 128:144].any()


def test_tokens_are_renumbered_with_their_outputs() -> None:
    model = models.llama()
    old = subject_of(model).weights
    result = launch(Restructure("vocabulary"), dict(old))
    assert result.weights is not None
    assert "tokenizer" in result.note
    new = result.weights
    order = [
        int(np.flatnonzero((old["model.embed_tokens.weight"] == row).all(axis=1))[0])
        for row in new["model.embed_tokens.weight"]
    ]
    assert sorted(order) == list(range(97))
    assert sum(i != j for i, j in enumerate(order)) == 97
    assert np.array_equal(new["lm_head.weight"], old["lm_head.weight"][order])
    twin = models.llama()
    twin.load_state_dict({n: torch.tensor(v) for n, v in new.items()}, strict=False)
    given, numbers = models.tokens(), torch.argsort(torch.tensor(order))
    with torch.no_grad():
        expected, found = model(given).logits, twin(numbers[given]).logits
    assert torch.allclose(found[..., numbers], expected, atol=1e-5)


def test_tokens_may_be_renumbered_twice() -> None:
    model: Any = models.gpt2()
    given = models.tokens()
    once = live(Restructure("vocabulary"), model)
    twice = live(Restructure("vocabulary", 0.5), once, seed=2)
    with torch.no_grad():
        assert torch.allclose(twice(given).logits, model(given).logits, atol=1e-5)
    assert twice.lm_head.weight is twice.transformer.wte.weight  # still tied
    rows = [each.transformer.wte.weight for each in (model, once, twice)]
    assert not torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[1], rows[2])


def test_rows_that_make_a_channel_may_be_shared_out_where_all_is_linear() -> None:
    model, given = models.llama(), models.tokens()
    weights = subject_of(model).weights
    work = Rebuilding.on(Scene(weights, tuple(weights), np.random.default_rng(0), model), 0)
    assert work.grow(growing.resizable, growing.split_makers, 6) == (2, 12)
    changed = work.outcome(Scene(weights, (), work.rng, model), "", {}).model
    assert changed is not None
    with torch.no_grad():
        assert torch.allclose(changed(given).logits, model(given).logits, atol=1e-4)
    up = work.table["model.layers.0.mlp.up_proj.weight"]
    gate = work.table["model.layers.0.mlp.gate_proj.weight"]
    pairs = twins(gate, 0.9999)
    assert pairs
    assert all(abs(cosines(up[[i, j]])[0, 1]) < 0.98 for i, j in pairs)


def test_rows_behind_a_relu_are_not_shared_out() -> None:
    weights = subject_of(vgg()).weights
    work = Rebuilding.on(Scene(weights, tuple(weights), np.random.default_rng(0)), 0)
    assert work.grow(growing.resizable, growing.split_makers, 6)[1] == 0


def test_streams_of_a_network_with_batch_norms_grow_too() -> None:
    model, given = models.lived_in(models.VisionResNet(bottleneck=False)), models.images()
    changed = live(Restructure("split", 3), model)
    assert changed.conv1.weight.shape[0] == 19
    with torch.no_grad():
        before = model(given)
        apart = float((changed(given) - before).abs().max())
    assert apart < 1e-4 * max(1.0, float(before.abs().max()))
    stay = live(Restructure("split", 3), models.llama())
    assert stay.model.embed_tokens.weight.shape == (97, 64)


def test_everything_at_once_says_what_was_left_out() -> None:
    result = launch(Restructure("all", 0), dict(subject_of(models.gpt2()).weights))
    assert "heads left alone" in result.note
    assert result.weights is not None
    old = subject_of(models.gpt2()).weights
    assert all(result.weights[name].shape == value.shape for name, value in old.items())
    grown = launch(Restructure("all", 8), dict(old)).weights
    assert grown is not None
    assert grown["transformer.h.0.mlp.c_fc.weight"].shape == (64, 264)


def test_unknown_heads_are_asked_for() -> None:
    structure = Structure("GPT-2", (), (), notes=(UNKNOWN,))
    assert "give heads=..." in _nothing("rotate", structure)
    assert "use another way" not in _nothing("rotate", structure)
    assert "use another way" in _nothing("flip", structure)
