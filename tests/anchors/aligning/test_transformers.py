"""Transformers are put back in order, whatever was done to streams, heads, channels and tokens."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, cast

import numpy as np
import pytest

from neuralmark.anchors.aligning import align, fingerprints, turning
from neuralmark.anchors.aligning.contract import JOINED, Aligned
from neuralmark.anchors.aligning.transformers import align_transformer
from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.effort import ALIGN_LIMIT
from neuralmark.anchors.factors import rescaled
from neuralmark.anchors.moves import moved
from neuralmark.anchors.originals import OriginalArrays
from neuralmark.records.alignment import TOO_LARGE
from neuralmark.structures import structure_from_shapes
from neuralmark.structures.structure import Structure
from tests.support.marks import marked_with, matching_bits, some_key

pytest.importorskip("torch")
pytest.importorskip("transformers")

from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.restructure import Restructure
from neuralmark.attacks.tools import changes, growing
from tests.support.anchored import arrays
from tests.support.speaking import trained

Table = dict[str, Any]
KEY = some_key()
BITS = KEY.parameters.bits
NEARLY_ALL = BITS - 3
LAYER = re.compile(r".*\.\d+\.")


class Case:
    """A trained model, its anchor, and the model with a mark bound to it."""

    def __init__(self, name: str, heads: int = 8, nudge: int = 0) -> None:
        self.weights = arrays(trained(name))
        if nudge:
            rng = np.random.default_rng(nudge)
            for value in self.weights.values():
                value += 1e-3 * value.std() * rng.standard_normal(value.shape).astype(np.float32)
        chosen = tuple(
            (n, v.shape) for n, v in self.weights.items() if v.ndim == 2 and LAYER.match(n)
        )
        self.anchor = build(OriginalArrays(self.weights), AnchorRecipe(chosen, heads))
        self.marked = marked_with(self.weights, self.anchor, KEY, 1.5)
        known = heads or (4 if name == "gpt2" else 8)
        tied = self.anchor.skeleton.tied
        shapes = {n: v.shape for n, v in self.weights.items()}
        self.structure = structure_from_shapes(shapes, known, tied)
        self.heads = known

    def rebuilt(self, *hows: str, weights: Table | None = None) -> Table:
        """The marked model after these rebuildings."""
        table = dict(self.marked if weights is None else weights)
        for how in hows:
            amount = 3.0 if how in ("all", "split", "duplicate") else 1.0
            attack = Restructure(cast("Any", how), amount, self.heads)
            result = launch(attack, table)
            assert result.weights is not None
            table = dict(result.weights)
        return table


@cache
def case(name: str, heads: int = -1) -> Case:
    return Case(name, (4 if name == "gpt2" else 8) if heads < 0 else heads)


def restored(anchor: Anchor, found: Mapping[str, Aligned], suspect: Table) -> Table:
    """The marked tensors in the anchor's coordinates; the anchor's where they were not found."""
    made = {}
    for name, _ in anchor.placement:
        values = anchor[name]
        if name in found:
            values = rescaled(moved(suspect[name], found[name].moves), values)[0]
        made[name] = values
    return made


def put_back(of: Case, suspect: Table, *, but: int = 0) -> tuple[int, dict[str, Aligned]]:
    """How many bits are read after alignment, and what was found: all tensors but so many."""
    names = [name for name, _ in of.anchor.placement]
    found = align_transformer(suspect, of.anchor, names, ALIGN_LIMIT)
    assert len(found) == len(names) - but
    return matching_bits(restored(of.anchor, found, suspect), of.anchor, KEY), found


def _with_tokens_marked(name: str) -> tuple[Table, Anchor]:
    weights = arrays(trained(name))
    wide = tuple((n, v.shape) for n, v in weights.items() if v.ndim > 1)
    return weights, build(OriginalArrays(weights), AnchorRecipe(wide, 8))


EMBEDDINGS, SCORES = "model.embed_tokens.weight", "lm_head.weight"


FAMILIES = (
    *("gpt2", "llama", "tied llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2"),
    *("bert words", "roberta words", "vit", "torchvision vit"),
)


@pytest.mark.parametrize("name", FAMILIES)
def test_everything_at_once(name: str) -> None:
    of = case(name)
    suspect = of.rebuilt("all")
    bits, found = put_back(of, suspect)
    assert bits >= NEARLY_ALL
    assert min(each.cosine for each in found.values()) > 0.97
    same = {n: v for n, v in suspect.items() if v.shape == of.weights[n].shape}
    there = all(n in same for n, _ in of.anchor.placement)
    assert not there or matching_bits(suspect, of.anchor, KEY) < 0.75 * BITS


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "bert words"])
def test_tokens_are_numbered_anew_as_well(name: str) -> None:
    of = case(name)
    bits, _ = put_back(of, of.rebuilt("all", "vocabulary"))
    assert bits >= NEARLY_ALL


def _noise(values: Any) -> Any:
    drawn = np.random.default_rng(3).standard_normal(values.shape)
    return values + 0.3 * values.std() * drawn


def _prune(values: Any) -> Any:
    return np.where(np.abs(values) < np.quantile(np.abs(values), 0.3), 0, values)


def _round(values: Any) -> Any:
    step = np.abs(values).max() / 127
    return np.rint(values / step) * step


def _damaged(table: Table, damage: Callable[[Any], Any]) -> Table:
    return {n: damage(v).astype(np.float32) if v.ndim > 1 else v for n, v in table.items()}


@pytest.mark.parametrize("damage", [_noise, _prune, _round])
@pytest.mark.parametrize("name", ["gpt2", "llama", "vit"])
def test_damage_before(name: str, damage: Callable[[Any], Any]) -> None:
    of = case(name)
    damaged = _damaged(of.marked, damage)
    plain = matching_bits(damaged, of.anchor, KEY)
    bits, _ = put_back(of, of.rebuilt("all", weights=damaged))
    assert bits >= plain - 5


@pytest.mark.parametrize("damage", [_prune, _round])
def test_damage_behind(damage: Callable[[Any], Any]) -> None:
    of = case("llama")
    bits, _ = put_back(of, _damaged(of.rebuilt("all", "vocabulary"), damage))
    assert bits >= BITS * 228 // 256


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_another_model_stays_another(name: str) -> None:
    of = case(name)
    other = arrays(trained(name, seed=1))
    names = [n for n, _ in of.anchor.placement]
    found = align_transformer(other, of.anchor, names, ALIGN_LIMIT)
    values = restored(of.anchor, found, other)
    counts = [matching_bits(values, of.anchor, some_key(number)) for number in range(1, 41)]
    assert max(each.cosine for each in found.values()) < 0.6
    assert abs(np.mean(counts) - BITS / 2) < 4  # 40 draws of deviation 6.3: four deviations
    assert max(counts) < 0.75 * BITS


@pytest.mark.parametrize("name", ["gpt2", "llama", "vit"])
def test_heads_are_counted_where_they_are_not_known(name: str) -> None:
    of = case(name, 0)
    assert not of.anchor.skeleton.structure.attentions[0].size  # type: ignore[union-attr]
    bits, _ = put_back(of, of.rebuilt("all"))
    assert bits >= NEARLY_ALL


def test_what_was_done_is_said() -> None:
    of = case("llama")
    _, found = put_back(of, of.rebuilt("permute", "flip"))
    up = found["model.layers.0.mlp.up_proj.weight"]
    assert up.changes == ("flipped", "permuted")
    gate = found["model.layers.0.mlp.gate_proj.weight"]
    assert "permuted" in gate.changes
    _, found = put_back(of, of.rebuilt("rotate"))
    assert "rotated" in found["model.layers.1.self_attn.v_proj.weight"].changes
    _, found = put_back(of, of.marked)
    assert {each.changes for each in found.values()} == {()}
    assert all(move.is_same for each in found.values() for move in each.moves)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_split_channels_are_joined(name: str) -> None:
    of = case(name)
    bits, found = put_back(of, of.rebuilt("split", "all"))
    assert bits >= NEARLY_ALL
    assert any(JOINED in each.changes for each in found.values())


def test_makers_that_were_split_are_joined() -> None:
    of = case("llama")
    table, rng = dict(of.marked), np.random.default_rng(0)
    groups = tuple(
        growing.split_makers(table, group, rng, 40) if group.kind == "hidden" else group
        for group in of.structure.groups
    )
    for group in replace(of.structure, groups=groups).groups:
        changes.permute(table, group, changes.pick(rng, group.size, 1.0))
    bits, found = put_back(of, table)
    assert bits >= NEARLY_ALL
    assert JOINED in found["model.layers.0.mlp.up_proj.weight"].changes


def _phases(table: Table, structure: Structure) -> None:
    """Turn every frequency of queries and keys by a complex factor, and its inverse."""
    rng = np.random.default_rng(5)
    for layer in structure.attentions:
        for head in range(layer.key_heads):
            half = layer.size // 2
            factor = np.exp(rng.uniform(-0.5, 0.5, half) + 2j * np.pi * rng.uniform(size=half))
            readers = range(head * layer.share, (head + 1) * layer.share)
            for side in layer.key:
                start = side.offset + head * layer.size
                changes.turn(table, replace(side, offset=start), _matrix(1 / factor.conj()))
            for side, query in ((side, query) for side in layer.query for query in readers):
                start = side.offset + query * layer.size
                changes.turn(table, replace(side, offset=start), _matrix(factor))


def _matrix(factor: Any) -> Any:
    real, imaginary = np.diag(factor.real), np.diag(factor.imag)
    return np.block([[real, -imaginary], [imaginary, real]])


def test_rotary_heads_are_turned_back() -> None:
    of = case("llama")
    suspect = of.rebuilt("all")
    _phases(suspect, of.structure)
    bits, _ = put_back(of, suspect)
    assert bits >= NEARLY_ALL


def test_rotary_heads_in_the_other_layout() -> None:
    of = case("qwen2")
    suspect = of.rebuilt("all")
    for layer in of.structure.attentions:
        half = layer.size // 2
        order = np.arange(layer.size).reshape(2, half).T.reshape(-1)
        for side in (*layer.query, *layer.key):
            values = suspect[side.tensor]
            heads = values.reshape(-1, layer.size, *values.shape[1:])
            suspect[side.tensor] = heads[:, order].reshape(values.shape)
    bits, _ = put_back(of, suspect)
    assert bits >= NEARLY_ALL


def test_keys_repeated_for_every_query() -> None:
    of = case("llama")
    suspect = of.rebuilt("all")
    for layer in of.structure.attentions:
        for side in (*layer.key, *layer.value):
            values = suspect[side.tensor]
            heads = values.reshape(layer.key_heads, layer.size, *values.shape[1:])
            repeated = np.repeat(heads, layer.share, axis=0)
            suspect[side.tensor] = repeated.reshape(-1, *values.shape[1:])
    bits, _ = put_back(of, suspect)
    assert bits >= NEARLY_ALL


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert words", "vit"])
def test_without_embeddings_the_layers_are_enough(name: str) -> None:
    of = case(name)
    whole = of.rebuilt("all")
    bits, _ = put_back(of, {n: v for n, v in whole.items() if LAYER.match(n)})
    assert bits >= NEARLY_ALL


def test_gains_that_were_multiplied_into_the_layers() -> None:
    of = case("vit")
    suspect = of.rebuilt("permute")
    rng = np.random.default_rng(1)
    for gain, readers in of.structure.gains:
        factor = np.exp(rng.uniform(-1, 1, len(suspect[gain])))
        suspect[gain] = (suspect[gain] * factor).astype(np.float32)
        for side in readers:
            changes.multiply(suspect, side, 1 / factor)
    bits, _ = put_back(of, suspect)
    assert bits >= NEARLY_ALL
    bits, _ = put_back(of, {n: v for n, v in suspect.items() if v.ndim > 1})
    assert bits >= NEARLY_ALL


def test_what_is_missing_does_not_hinder_the_rest() -> None:
    of = case("llama")
    gone = re.compile(r".*layers\.1\.(self_attn\.k_proj|mlp\.up_proj)\.weight")
    suspect = {n: v for n, v in of.rebuilt("all").items() if not gone.match(n)}
    _, found = put_back(of, suspect, but=2)
    assert min(each.cosine for each in found.values()) > 0.95
    layer = re.compile(r".*layers\.0\.")
    rest = {n: v for n, v in suspect.items() if not layer.match(n)}
    _, found = put_back(of, rest, but=9)
    assert min(each.cosine for each in found.values()) > 0.95


def test_fewer_positions_tell_as_much() -> None:
    of = case("gpt2")
    suspect = of.rebuilt("all", "vocabulary")
    suspect["transformer.wpe.weight"] = suspect["transformer.wpe.weight"][:20]
    bits, _ = put_back(of, suspect)
    assert bits >= NEARLY_ALL


def test_positions_of_another_width_tell_nothing_and_hide_nothing() -> None:
    of = case("gpt2")
    suspect = of.rebuilt("all")
    suspect["transformer.wpe.weight"] = np.ones((32, 70), np.float32)
    bits, _ = put_back(of, suspect)
    assert bits >= NEARLY_ALL


def _narrow(tokens: int) -> tuple[Table, Anchor]:
    """A Llama of fewer tokens than its stream has channels, say."""
    weights = arrays(trained("llama"))
    weights |= {name: weights[name][:tokens] for name in (EMBEDDINGS, SCORES)}
    chosen = tuple((n, v.shape) for n, v in weights.items() if v.ndim == 2 and LAYER.match(n))
    return weights, build(OriginalArrays(weights), AnchorRecipe(chosen, 8))


def test_few_tokens_numbered_anew() -> None:
    weights, anchor = _narrow(60)
    table = weights
    for how in ("all", "vocabulary"):
        table = dict(launch(Restructure(cast("Any", how), 1.0, 8), table).weights or {})
    names = [n for n, _ in anchor.placement]
    found = align_transformer(table, anchor, names, ALIGN_LIMIT)
    assert min(each.cosine for each in found.values()) > 0.95


def test_little_work_still_tells_tokens_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "_WORK", 1)
    monkeypatch.setattr(turning, "_ROUNDS", 1)
    of = case("llama")
    bits, _ = put_back(of, of.rebuilt("all", "vocabulary"))
    assert bits >= NEARLY_ALL


def test_embeddings_without_layers_are_put_in_order_one_by_one() -> None:
    weights, anchor = _with_tokens_marked("llama")
    order = np.random.default_rng(0).permutation(64)
    suspect = {n: weights[n][:, order] for n in (EMBEDDINGS, SCORES)}
    found = align(suspect, anchor, [EMBEDDINGS, SCORES])
    for each in found.values():
        assert each.moves[0].is_same
        np.testing.assert_array_equal(each.moves[1].index, np.argsort(order))


def test_scores_without_embeddings_stay_where_they_are() -> None:
    weights = arrays(trained("bert words"))
    bias = "cls.predictions.bias"
    chosen = ((bias, weights[bias].shape),)
    anchor = build(OriginalArrays(weights), AnchorRecipe(chosen, 8))
    some = {n: v for n, v in weights.items() if LAYER.match(n) or n == bias}
    found = align(some, anchor, [bias])[bias]
    assert found.moves[0].is_same
    assert found.cosine > 0.99


@pytest.mark.parametrize("nudge", range(4))
@pytest.mark.parametrize("limit", [ALIGN_LIMIT, 20_000])
def test_layers_without_embeddings_of_which_some_do_not_fit(limit: int, nudge: int) -> None:
    of = Case("gpt2", 4, nudge)
    suspect = {n: v for n, v in of.rebuilt("permute").items() if LAYER.match(n)}
    if limit == ALIGN_LIMIT:
        for name in [n for n in suspect if n.endswith("mlp.c_fc.weight")]:
            suspect[name] = np.concatenate([suspect[name], suspect[name][:, :9]], axis=1)
    names = [n for n, _ in of.anchor.placement]
    found = align_transformer(suspect, of.anchor, names, limit)
    heads = [n for n in names if "attn" in n]
    assert min(found[name].cosine for name in heads) > 0.95
    assert all(found[name].cosine < 0.6 for name in found if "mlp" in name)


def test_tokens_that_only_one_layer_has_more_of() -> None:
    of = case("llama")
    suspect = of.rebuilt("all", "vocabulary")
    wide = suspect["lm_head.weight"]
    suspect["lm_head.weight"] = np.concatenate([wide, wide[:3]])
    bits, _ = put_back(of, suspect)
    assert bits >= NEARLY_ALL


def test_a_model_that_is_no_transformer() -> None:
    weights = {"0.weight": np.ones((8, 4), np.float32), "2.weight": np.ones((4, 8), np.float32)}
    placement = (("0.weight", (8, 4)),)
    anchor = build(OriginalArrays(weights), AnchorRecipe(placement))
    assert align_transformer(weights, anchor, ["0.weight"], ALIGN_LIMIT) == {}


@pytest.mark.parametrize("value", [0.0, 1.0, np.nan, np.inf, 3e38])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_nonsense_comes_to_an_end(name: str, value: float) -> None:
    of = case(name)
    names = [n for n, _ in of.anchor.placement]
    suspect = {n: np.full_like(v, value) for n, v in of.weights.items()}
    found = align_transformer(suspect, of.anchor, names, ALIGN_LIMIT)
    assert all(abs(each.cosine) < 0.9 for each in found.values())


@pytest.mark.parametrize("value", [np.nan, 3e38])
def test_a_few_wild_values_do_not_hide_the_rest(value: float) -> None:
    of = case("llama")
    suspect = of.rebuilt("all")
    name = "model.layers.0.mlp.up_proj.weight"
    suspect[name] = suspect[name].copy()
    suspect[name][3, 5] = value
    names = [n for n, _ in of.anchor.placement]
    found = align_transformer(suspect, of.anchor, names, ALIGN_LIMIT)
    assert sum(each.cosine > 0.97 for each in found.values()) >= len(names) - 3


def test_other_shapes_are_no_error() -> None:
    of = case("llama")
    names = [n for n, _ in of.anchor.placement]
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (7, 3), (0, 64), (64,), (2, 3, 4)):
        suspect = {n: rng.standard_normal(shape).astype(np.float32) for n in of.weights}
        found = align_transformer(suspect, of.anchor, names, ALIGN_LIMIT)
        assert all(each.cosine < 0.9 for each in found.values())


def test_beyond_the_limit_only_the_channels_stay() -> None:
    of = case("llama")
    suspect = of.rebuilt("all")
    names = [n for n, _ in of.anchor.placement]
    found = align_transformer(suspect, of.anchor, names, 1000)
    assert not any("mlp" in name for name in found)
    assert all("self_attn" in name for name in found)


def test_beyond_the_limit_nothing_is_taken() -> None:
    of = case("llama")
    names = [n for n, _ in of.anchor.placement]
    found = align(of.rebuilt("all"), of.anchor, names, 100)
    assert {each.changes for each in found.values()} == {(TOO_LARGE,)}


def test_tokens_that_were_added_are_left_out() -> None:
    weights, anchor = _with_tokens_marked("llama")
    rng = np.random.default_rng(0)
    order = rng.permutation(97)
    more = dict(weights)
    for name in (EMBEDDINGS, SCORES):
        extra = weights[name].std() * rng.standard_normal((5, weights[name].shape[1]))
        more[name] = np.concatenate([extra, weights[name][order]]).astype(np.float32)
    found = align_transformer(more, anchor, [EMBEDDINGS, SCORES], ALIGN_LIMIT)
    for name in (EMBEDDINGS, SCORES):
        index = found[name].moves[0].index
        assert index is not None
        assert (index == 5 + np.argsort(order)).mean() > 0.95
        assert "5 dummies dropped" in found[name].changes
        assert "permuted" in found[name].changes


def test_tokens_of_one_layer_are_enough() -> None:
    weights, anchor = _with_tokens_marked("llama")
    order = np.random.default_rng(0).permutation(97)
    some = {n: v for n, v in weights.items() if n != EMBEDDINGS}
    some[SCORES] = weights[SCORES][order]
    found = align_transformer(some, anchor, [EMBEDDINGS, SCORES], ALIGN_LIMIT)
    assert EMBEDDINGS not in found
    np.testing.assert_array_equal(found[SCORES].moves[0].index, np.argsort(order))


def test_scores_of_fewer_tokens_have_an_order_of_their_own() -> None:
    weights = arrays(trained("llama"))
    weights[SCORES] = weights[SCORES][:90]
    wide = tuple((n, v.shape) for n, v in weights.items() if v.ndim > 1)
    anchor = build(OriginalArrays(weights), AnchorRecipe(wide, 8))
    order = np.random.default_rng(0).permutation(97)
    suspect = weights | {EMBEDDINGS: weights[EMBEDDINGS][order]}
    found = align_transformer(suspect, anchor, [EMBEDDINGS, SCORES], ALIGN_LIMIT)
    np.testing.assert_array_equal(found[EMBEDDINGS].moves[0].index, np.argsort(order))
    assert found[SCORES].moves[0].is_same


def test_more_tokens_than_the_limit_stay_where_they_are() -> None:
    weights, anchor = _with_tokens_marked("llama")
    order = np.random.default_rng(0).permutation(97)
    moved_about = weights | {n: weights[n][order] for n in (EMBEDDINGS, SCORES)}
    found = align_transformer(moved_about, anchor, [EMBEDDINGS], 97 * 97 - 1)
    assert all(move.is_same for move in found[EMBEDDINGS].moves)
    assert found[EMBEDDINGS].cosine < 0.5


def test_a_tensor_with_another_number_of_axes_is_left_out() -> None:
    of = case("llama")
    name = "model.layers.0.mlp.up_proj.weight"
    suspect = of.rebuilt("all")
    suspect[name] = suspect[name][None]
    _, found = put_back(of, suspect, but=1)
    assert name not in found
    assert min(each.cosine for each in found.values()) > 0.95


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert words", "vit"])
def test_parts_of_other_models_do_not_fit_in(name: str) -> None:
    """Some tensors of a narrower or a wider model: they are left out, whichever they are."""
    of = case(name)
    rng = np.random.default_rng(0)
    for width in (32, 96):
        for start in range(3):
            table = dict(of.weights)
            for each in sorted(n for n, v in table.items() if v.ndim == 2)[start::3]:
                table[each] = rng.standard_normal((width, width)).astype(np.float32)
            names = [n for n, _ in of.anchor.placement]
            for found in align_transformer(table, of.anchor, names, ALIGN_LIMIT).values():
                assert -1 <= found.cosine <= 1


@pytest.mark.parametrize("name", ["gpt2", "bert untied", "vit"])
def test_what_lies_outside_of_the_layers(name: str) -> None:
    weights = arrays(trained(name))
    wide = tuple((n, v.shape) for n, v in weights.items() if v.ndim > 1)
    anchor = build(OriginalArrays(weights), AnchorRecipe(wide, 4 if name == "gpt2" else 8))
    table = weights
    for how in ("all", "vocabulary")[: 1 if name == "vit" else 2]:
        attack = Restructure(cast("Any", how), 0.0 if how == "all" else 1.0, anchor.skeleton.heads)
        changed = launch(attack, table).weights
        assert changed is not None
        table = dict(changed)
    names = [n for n, _ in anchor.placement]
    found = align_transformer(table, anchor, names, ALIGN_LIMIT)
    tied = {two for _, two in anchor.skeleton.tied}
    assert found.keys() >= set(names) - tied
    for n in found:
        assert found[n].cosine > 0.97, n
        assert moved(table[n], found[n].moves).shape == anchor.entry(n).shape
    if name != "vit":
        assert any("permuted" in found[n].changes for n in names if not LAYER.match(n))
