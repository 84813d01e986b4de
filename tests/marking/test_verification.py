"""Verdicts: what is tried, what is counted, what is refused."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import Claim, Key, Parameters, schemes
from neuralmark.core.bound import bound_log2, boundary
from neuralmark.errors import (
    ClaimMismatchError,
    LiveModelError,
    NonFiniteError,
    ParameterError,
    TooFewCarriersError,
    UnsuitableTensorError,
)
from neuralmark.marking.verification import UNANCHORED, verify
from tests.support.claims import without_file
from tests.support.models import SMALL, gaussian, saved


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Key, Claim]:
    folder = tmp_path_factory.mktemp("marked")
    names = {"enc.0.weight": (300, 400), "enc.1.weight": (300, 400), "dec.weight": (256, 700)}
    tensors = {name: gaussian(*shape, seed=i) for i, (name, shape) in enumerate(names.items())}
    source = saved(folder / "source.safetensors", **tensors)
    key = Key.new(SMALL)
    result = neuralmark.embed(
        source, key, folder / "m.safetensors", options=neuralmark.EmbedOptions(strength=2)
    )
    assert result.claim is not None
    return folder / "m.safetensors", key, without_file(result.claim)


@pytest.fixture
def unbound(marked: tuple[Path, Key, Claim], tmp_path: Path) -> tuple[Path, Key, Claim]:
    """Marked without an anchor, and its claim not beside it: what is searched for."""
    path, key, _ = marked
    options = neuralmark.EmbedOptions(strength=2, anchor=False)
    result = neuralmark.embed(path.with_name("source.safetensors"), key, tmp_path / "u", options)
    assert result.claim is not None
    Path(f"{tmp_path / 'u'}.claim.json").unlink()
    return tmp_path / "u", key, result.claim


def test_the_claim_beside_a_model_is_followed_and_it_is_said(
    marked: tuple[Path, Key, Claim], tmp_path: Path
) -> None:
    path, key, claim = marked
    names = [name for name, _ in claim.placement]
    for options in ({}, {"tensors": names}, {"tensors": names[::-1]}):
        verdict = neuralmark.verify(path, key, **options)  # type: ignore[arg-type]
        assert verdict.verified
        assert verdict.claim_digest == claim.digest
        assert verdict.anchor_digest == getattr(claim.anchor, "digest", None)
        assert "followed the claim beside the model" in verdict.reason
        assert verdict.trials == 2
    assert "beside" not in neuralmark.verify(path, key, claim=claim).reason
    alone = tmp_path / "m.safetensors"
    shutil.copy(path, alone)
    lost = neuralmark.verify(alone, key)
    assert not lost.verified
    assert (lost.claim_digest, lost.anchor_digest) == (None, None)
    assert "only with its claim" in lost.reason
    assert not neuralmark.verify(path, key, tensors=names[:1]).verified  # not what it names


def test_a_claim_beside_that_is_no_help_is_passed_over(
    unbound: tuple[Path, Key, Claim], marked: tuple[Path, Key, Claim], tmp_path: Path
) -> None:
    path, key, claim = unbound
    beside = Path(f"{path}.claim.json")
    other = Key.new(SMALL)
    foreign = replace(claim, fingerprint=other.fingerprint, commitment=other.commitment)
    for wrong in (foreign, replace(claim, commitment="0" * 64)):
        beside.write_text(wrong.to_json())
        assert neuralmark.verify(path, key).mapping == "search"
    beside.write_text("{")
    assert neuralmark.verify(path, key).mapping == "search"
    beside.unlink()
    (tmp_path / "elsewhere").write_text(claim.to_json())
    beside.symlink_to(tmp_path / "elsewhere")  # who hands in the model may have laid it there
    assert neuralmark.verify(path, key).mapping == "search"
    beside.unlink()
    beside.write_text(marked[2].to_json())  # of this key, but bound to an anchor: it is followed
    verdict = neuralmark.verify(path, key)
    assert not verdict.verified
    assert "move that away to search instead" in verdict.reason


def test_without_a_claim_every_way_is_counted(unbound: tuple[Path, Key, Claim]) -> None:
    path, key, claim = unbound
    searched = neuralmark.verify(path, key)
    claimed = neuralmark.verify(path, key, claim=claim)
    # a list, three tensors, `enc.` removed, four prefixes added, the list by rows
    assert searched.trials == 10
    # as stored, and by rows
    assert claimed.trials == 2
    assert searched.boundary == boundary(256, 10) == 228
    assert claimed.boundary == boundary(256, 2)
    assert searched.bound_log2 == bound_log2(256, 256, 10)
    assert searched.coverage.share == claimed.coverage.share == 1.0
    assert searched.mapping == "search"
    assert claimed.mapping == "names"
    assert searched.verified
    assert claimed.verified


def test_names_in_any_order_find_the_mark(marked: tuple[Path, Key, Claim]) -> None:
    path, key, _ = marked
    verdict = neuralmark.verify(path, key, tensors=["enc.1.weight", "enc.0.weight", "dec.weight"])
    assert verdict.verified
    assert verdict.trials == 2


def test_renamed_tensors_are_not_found(marked: tuple[Path, Key, Claim], tmp_path: Path) -> None:
    path, key, claim = marked
    tensors = load_file(path)
    renamed = dict(zip(["z", "a", "b"], [tensors[n] for n, _ in claim.placement], strict=True))
    save_file({name: renamed[name] for name in sorted(renamed)}, tmp_path / "r.safetensors")
    verdict = neuralmark.verify(tmp_path / "r.safetensors", key, claim=claim)
    assert verdict.status == "unreadable"
    assert "neither given nor found beside the claim" in verdict.reason
    assert (verdict.trials, verdict.matched, verdict.bound_log2) == (0, 0, 0.0)
    told = verdict.margin_histogram
    assert (sum(told.matched), sum(told.missed)) == (0, 0)
    assert [gap.name for gap in verdict.missing] == [name for name, _ in claim.placement]
    assert verdict.coverage.share == 0.0


def test_transposed_tensors_are_found_with_one_orientation_for_all(
    marked: tuple[Path, Key, Claim], tmp_path: Path
) -> None:
    path, key, claim = marked
    turned = {name: np.ascontiguousarray(value.T) for name, value in load_file(path).items()}
    save_file(turned, tmp_path / "t.safetensors")
    verdict = neuralmark.verify(tmp_path / "t.safetensors", key, claim=claim)
    assert verdict.orientation == "transposed"
    assert verdict.matched == 256


def test_a_foreign_key_is_near_one_half(marked: tuple[Path, Key, Claim]) -> None:
    path, _, _ = marked
    verdict = neuralmark.verify(path, Key.new(SMALL))
    assert verdict.status == "not-verified"
    assert 90 < verdict.matched < 170
    assert verdict.certified_radius is None
    assert verdict.bound_log2 > -20


def test_claims_of_other_keys_and_edited_ones_are_refused(
    marked: tuple[Path, Key, Claim],
) -> None:
    path, key, claim = marked
    with pytest.raises(ClaimMismatchError, match="not of this one"):
        neuralmark.verify(path, Key.new(SMALL), claim=claim)
    with pytest.raises(ClaimMismatchError, match="parameters"):
        neuralmark.verify(path, key, claim=replace(claim, parameters=Parameters()))
    other = replace(claim, placement=(("enc.0.weight", (30, 40)),))
    verdict = neuralmark.verify(path, key, claim=other)
    assert verdict.status == "unreadable"
    assert "the shape (300, 400) instead of (30, 40)" in verdict.reason


def test_a_zeroed_tensor_matches_nothing(marked: tuple[Path, Key, Claim], tmp_path: Path) -> None:
    path, key, claim = marked
    save_file({n: np.zeros_like(v) for n, v in load_file(path).items()}, tmp_path / "0.safetensors")
    verdict = neuralmark.verify(tmp_path / "0.safetensors", key, claim=claim)
    assert verdict.matched == 0
    assert verdict.smallest_margin == 0
    assert verdict.scaling == "stored"  # of ways that match equally well, the first is told


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_an_error_never_a_bit(
    marked: tuple[Path, Key, Claim], tmp_path: Path, value: float
) -> None:
    path, key, claim = marked
    tensors = {name: array.copy() for name, array in load_file(path).items()}
    tensors["dec.weight"][:] = value
    save_file(tensors, tmp_path / "n.safetensors")
    with pytest.raises(NonFiniteError):
        neuralmark.verify(tmp_path / "n.safetensors", key, claim=claim)
    verdict = neuralmark.verify(tmp_path / "n.safetensors", key)
    assert verdict.status == "unreadable"
    assert "42.7 %" in verdict.reason
    assert "NaN or infinity" in verdict.reason


def test_a_poisoned_tensor_elsewhere_does_not_hide_the_mark(tmp_path: Path) -> None:
    source = saved(tmp_path / "s.safetensors", **{"a.weight": gaussian(600, 600)})
    key = Key.new(SMALL)
    neuralmark.embed(
        source,
        key,
        tmp_path / "m.safetensors",
        options=neuralmark.EmbedOptions(tensors=["a.weight"], anchor=False),
    )
    tensors = load_file(tmp_path / "m.safetensors")
    tensors["poison"] = np.full((600, 600), np.nan, np.float32)
    save_file(tensors, tmp_path / "p.safetensors")
    assert neuralmark.verify(tmp_path / "p.safetensors", key).verified


def test_too_few_bits_can_never_be_proven_and_it_says_what_they_give(tmp_path: Path) -> None:
    source = saved(tmp_path / "s.safetensors")
    key = Key.new(Parameters(bits=64, pools=128, rounds=2))
    neuralmark.embed(source, key, tmp_path / "m.safetensors")
    verdict = neuralmark.verify(tmp_path / "m.safetensors", key, tensors=["layer.weight"])
    assert verdict.matched == 64
    assert verdict.status == "unprovable"
    assert not verdict.verified
    assert verdict.full_match_bound_log2 == -63
    assert "2^-63" in verdict.reason


def test_models_without_room_are_refused(tmp_path: Path) -> None:
    source = saved(tmp_path / "s.safetensors", **{"a": gaussian(10, 10)})
    with pytest.raises(TooFewCarriersError):
        neuralmark.verify(source, Key.new())
    with pytest.raises(TooFewCarriersError):
        neuralmark.verify(source, Key.new(), tensors=["a"])


def test_integer_tensors_are_refused_by_name(tmp_path: Path) -> None:
    save_file({"q.weight": np.ones((600, 600), np.int8)}, tmp_path / "q.safetensors")
    with pytest.raises(UnsuitableTensorError, match="dequantise"):
        neuralmark.verify(tmp_path / "q.safetensors", Key.new(), tensors=["q.weight"])


def test_a_verdict_is_not_a_bool(marked: tuple[Path, Key, Claim]) -> None:
    path, key, _ = marked
    with pytest.raises(TypeError, match="verified"):
        bool(neuralmark.verify(path, key))


def test_the_digest_follows_the_bytes(marked: tuple[Path, Key, Claim]) -> None:
    path, key, claim = marked
    verdict = neuralmark.verify(
        path, key, claim=claim, options=neuralmark.VerifyOptions(full_digest=True)
    )
    assert verdict.checkpoint_digest.tensors == claim.marked_digest.tensors
    assert claim.source_digest is not None
    assert verdict.checkpoint_digest.tensors != claim.source_digest.tensors
    assert verdict.checkpoint_digest.headers == claim.source_digest.headers
    assert list(verdict.checkpoint_digest.files or {}) == [path.name]


def test_a_constant_added_to_the_layer_changes_nothing(
    marked: tuple[Path, Key, Claim], tmp_path: Path
) -> None:
    path, key, claim = marked
    shifted = {name: value + np.float32(0.025) for name, value in load_file(path).items()}
    save_file(shifted, tmp_path / "c.safetensors")
    assert neuralmark.verify(tmp_path / "c.safetensors", key, claim=claim).matched == 256


def test_an_infinite_value_in_a_tensor_that_is_not_read_is_no_error(
    marked: tuple[Path, Key, Claim], tmp_path: Path
) -> None:
    path, key, claim = marked
    tensors = load_file(path) | {"mask": np.full((90, 100), -np.inf, np.float32)}
    save_file(tensors, tmp_path / "i.safetensors")
    assert neuralmark.verify(tmp_path / "i.safetensors", key, claim=claim).verified
    other = neuralmark.verify(tmp_path / "i.safetensors", Key.new(SMALL))
    assert other.status == "not-verified"  # 2 % of the weights are no numbers
    assert other.coverage.unreadable == 9000


def test_the_tensor_with_nan_is_named(marked: tuple[Path, Key, Claim], tmp_path: Path) -> None:
    path, key, claim = marked
    tensors = {name: array.copy() for name, array in load_file(path).items()}
    tensors["enc.0.weight"][:] = np.nan
    save_file(tensors, tmp_path / "n.safetensors")
    with pytest.raises(NonFiniteError, match=r"'enc\.0\.weight'"):
        neuralmark.verify(tmp_path / "n.safetensors", key, claim=claim)


def test_a_path_is_not_a_key(marked: tuple[Path, Key, Claim]) -> None:
    with pytest.raises(ParameterError, match=r"Key\.load"):
        neuralmark.verify(marked[0], "acme.nmkey")  # type: ignore[arg-type]


def test_a_mark_in_one_long_row(tmp_path: Path) -> None:
    """A tensor without rows is read as it is, where others are read by rows too."""
    source, out = (
        saved(
            tmp_path / "s.safetensors",
            **{"long": gaussian(60_000), "layer.weight": gaussian(300, 400)},
        ),
        tmp_path / "o",
    )
    key, options = Key.new(SMALL), neuralmark.EmbedOptions(tensors=["long"])
    assert neuralmark.embed(source, key, out, options=options).verdict is not None
    assert neuralmark.verify(out, key, tensors=["long"]).verified
    both, other = ["long", "layer.weight"], Key.new(SMALL)
    assert not neuralmark.verify(out, other, tensors=both).verified


def test_a_prefix_that_only_some_tensors_lost(tmp_path: Path) -> None:
    names = {"enc.0.weight": 0, "enc.1.weight": 1, "mid.weight": 2}
    tensors = {name: gaussian(300, 400, seed=seed) for name, seed in names.items()}
    source, out = saved(tmp_path / "s.safetensors", **tensors), tmp_path / "o.safetensors"
    key = Key.new(SMALL)
    claim = neuralmark.embed(source, key, out).claim
    lost = {name.removeprefix("enc."): value for name, value in load_file(out).items()}
    save_file({n: v for n, v in lost.items() if n != "mid.weight"}, tmp_path / "lost.safetensors")
    verdict = neuralmark.verify(tmp_path / "lost.safetensors", key, claim=claim)
    assert verdict.mapping == "prefix"
    assert verdict.matched < 256
    assert "1 of the 3 tensors" in verdict.reason


def test_anchors_are_spoken_of_where_a_search_found_nothing(
    unbound: tuple[Path, Key, Claim],
) -> None:
    path, key, claim = unbound
    other = Key.new(SMALL)
    raw = Key.raw(other.at(claim.placement).matrix, 2, "strided")
    foreign = replace(claim, fingerprint=other.fingerprint, commitment=other.commitment)
    for given, followed, status, told in (
        *((key, None, "verified", False), (key, claim, "verified", False)),
        *((other, None, "not-verified", True), (other, foreign, "not-verified", False)),
        (raw, None, "not-verified", False),
    ):
        verdict = neuralmark.verify(path, given, claim=followed)
        assert verdict.status == status
        assert (UNANCHORED in verdict.reason) == told


def test_keys_of_schemes_that_read_activations_are_refused(
    marked: tuple[Path, Key, Claim],
) -> None:
    key = Key.new(schemes.parameters("deepsigns"))
    with pytest.raises(LiveModelError, match="deepsigns"):
        verify(marked[0], key)
