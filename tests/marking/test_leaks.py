"""Traces: whose copy a suspect was made from, however it was mixed, and nobody else."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import CopyOptions, Key, Trace, VerifyOptions
from neuralmark.attacks import LaunchOptions, launch
from neuralmark.attacks.collude import MIXINGS, Mixing, mixed
from neuralmark.attacks.restructure import Restructure
from neuralmark.core.bound import boundary
from neuralmark.errors import (
    AnchorMismatchError,
    BuyersError,
    CheckpointError,
    ClaimMismatchError,
    NeuralMarkError,
    NeuralMarkWarning,
    ParameterError,
    RecordError,
)
from neuralmark.marking import leaks
from neuralmark.marking.reading import digest_of
from neuralmark.sandbox.limits import SandboxLimits
from tests.support.checks import one_line
from tests.support.far import MirrorPlace
from tests.support.market import Sold, Weights, chain_model, sold

APART = VerifyOptions(sandbox=SandboxLimits())
LABELS = [f"buyer {number}" for number in range(1, 9)]


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Sold:
    return sold(tmp_path_factory.mktemp("market"), LABELS, CopyOptions(strength=2))


def mixture(market: Sold, how: Mixing, labels: Sequence[str]) -> Weights:
    copies = [market.weights(label) for label in labels]
    rng = np.random.default_rng(0)
    return {name: mixed([copy[name] for copy in copies], how, rng) for name in copies[0]}


def traced(market: Sold, weights: Weights, folder: Path) -> Trace:
    save_file(weights, folder / "suspect.safetensors")
    return neuralmark.trace(folder / "suspect.safetensors", market.key, market.folder)


def test_each_copy_is_traced_to_its_buyer(eight: Sold) -> None:
    for label in LABELS[:3]:
        found = neuralmark.trace(eight.path(label), eight.key, eight.folder)
        assert found.named == (label,)
        assert found.identical == label
        assert found.owned
        assert found.trials == 2 * len(LABELS)
        assert found.boundary == boundary(256, 16)
        assert found.bound_log2 == -256 + 4
        own = next(each for each in found.buyers if each.label == label)
        assert (own.position, own.aligned) == (256, 256)
        assert max(each.matched for each in found.buyers if each.label != label) < 170


@pytest.mark.parametrize("how", MIXINGS)
def test_all_who_mixed_are_named(eight: Sold, tmp_path: Path, how: Mixing) -> None:
    found = traced(eight, mixture(eight, how, LABELS[2:6]), tmp_path)
    assert sorted(found.named) == LABELS[2:6]
    assert found.owned
    assert found.identical is None


def test_read_plainly_most_would_be_missed(eight: Sold, tmp_path: Path) -> None:
    """Why marks are read against the anchor: where the weights lie, four copies hide each other."""
    found = traced(eight, mixture(eight, "average", LABELS[2:6]), tmp_path)
    guilty = [each for each in found.buyers if each.label in LABELS[2:6]]
    needed = found.boundary
    assert needed is not None
    assert all(each.position is not None and each.position < needed for each in guilty)
    assert all(each.aligned == 256 for each in guilty)


def test_mixed_then_rebuilt(eight: Sold, tmp_path: Path) -> None:
    weights = mixture(eight, "average", LABELS[:3])
    done = launch(Restructure("permute", 1.0), weights, options=LaunchOptions(seed=1))
    assert done.weights is not None
    found = traced(eight, {n: np.ascontiguousarray(v) for n, v in done.weights.items()}, tmp_path)
    assert sorted(found.named) == LABELS[:3]
    assert found.alignment is not None
    assert max(each.position or 0 for each in found.buyers) < 170


def test_renamed_and_damaged(eight: Sold, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {
        f"net.{name}.x": value + 0.3 * value.std() * rng.standard_normal(value.shape)
        for name, value in eight.weights(LABELS[4]).items()
    }
    found = traced(eight, {n: v.astype(np.float32) for n, v in weights.items()}, tmp_path)
    assert found.named == (LABELS[4],)
    assert found.owner.position is None


@pytest.mark.parametrize("which", ["original", "owner", "stranger"])
def test_nobody_is_named_for_what_nobody_got(eight: Sold, tmp_path: Path, which: str) -> None:
    paths = {
        "original": eight.model,
        "owner": eight.folder / eight.register.base,
        "stranger": chain_model(tmp_path / "stranger.safetensors", seed=70),
    }
    found = neuralmark.trace(paths[which], eight.key, eight.folder)
    assert found.named == ()
    assert found.identical is None
    assert found.owned is (which == "owner")
    assert max(each.matched for each in found.buyers) < 170
    assert str(found).startswith("no buyer is named: ")


def test_innocent_bits_are_fair_coins(eight: Sold, tmp_path: Path) -> None:
    """A hundred who bought nothing, read from a mixture: 128 of 256, with a deviation of 8."""
    weights = mixture(eight, "minimum", LABELS)
    save_file(weights, tmp_path / "suspect.safetensors")
    strangers = [f"stranger {number}" for number in range(100)]
    with pytest.warns(NeuralMarkWarning, match="knows 8 more"):
        found = neuralmark.trace(
            tmp_path / "suspect.safetensors", eight.key, strangers, claim=eight.claim
        )
    assert found.named == ()
    for way in ("position", "aligned"):
        bits = np.array([getattr(each, way) for each in found.buyers])
        assert abs(bits.mean() - 128) < 3 * 8 / np.sqrt(100)
        assert 6 < bits.std() < 10


def test_a_list_with_the_claim_says_the_same(eight: Sold, tmp_path: Path) -> None:
    file = tmp_path / "buyers.csv"
    file.write_text("buyer\n" + "\n".join(label.upper() for label in LABELS))
    told = neuralmark.trace(eight.path(LABELS[1]), eight.key, file, claim=eight.claim)
    assert told.named == (LABELS[1].upper(),)
    by_register = neuralmark.trace(eight.path(LABELS[1]), eight.key, eight.folder / "copies.json")
    assert [(b.position, b.aligned) for b in told.buyers] == [
        (b.position, b.aligned) for b in by_register.buyers
    ]
    assert told.identical is None


def test_buyers_that_were_left_out_are_told_of(eight: Sold) -> None:
    with pytest.warns(NeuralMarkWarning, match="knows 7 more"):
        neuralmark.trace(eight.path(LABELS[1]), eight.key, LABELS[1:2], claim=eight.claim)


def test_without_the_anchor_one_way_is_left(eight: Sold, tmp_path: Path) -> None:
    found = neuralmark.trace(eight.path(LABELS[1]), eight.key, eight.register)
    assert (found.ways, found.named, found.alignment) == (1, (LABELS[1],), None)
    weights = mixture(eight, "average", LABELS[2:6])
    save_file(weights, tmp_path / "suspect.safetensors")
    lost = neuralmark.trace(tmp_path / "suspect.safetensors", eight.key, eight.register)
    assert lost.named == ()
    assert "without the anchor" in lost.reason
    anchor = eight.folder / f"{eight.register.base}.anchor"
    again = neuralmark.trace(
        tmp_path / "suspect.safetensors",
        eight.key,
        eight.register,
        options=VerifyOptions(anchor=anchor),
    )
    assert sorted(again.named) == LABELS[2:6]


def test_more_buyers_need_more_bits(eight: Sold) -> None:
    many = [*LABELS, *(f"stranger {number}" for number in range(60))]
    few = neuralmark.trace(eight.path(LABELS[0]), eight.key, eight.folder)
    more = neuralmark.trace(eight.path(LABELS[0]), eight.key, many, claim=eight.claim)
    assert few.boundary is not None
    assert more.boundary is not None
    assert (more.boundary > few.boundary, more.trials) == (True, 136)
    assert more.bound_log2 > few.bound_log2


def test_weights_that_are_not_numbers(eight: Sold, tmp_path: Path) -> None:
    weights = eight.weights(LABELS[0])
    broken = {n: v.copy() for n, v in weights.items()}
    broken["2.weight"][:] = np.nan
    found = traced(eight, broken, tmp_path)
    assert found.owner.position is None
    assert found.named == (LABELS[0],)  # two layers of three are enough


def test_what_cannot_be_traced(eight: Sold, tmp_path: Path) -> None:
    suspect = eight.path(LABELS[0])
    lonely = tmp_path / "lonely.safetensors"
    save_file(load_file(suspect), lonely)
    other = replace(eight.key, secret=bytes(32))
    cases: list[tuple[Path, Key, Any, type[NeuralMarkError], str]] = [
        (lonely, eight.key, LABELS, ParameterError, "give claim="),
        (suspect, other, eight.folder, ClaimMismatchError, "not of this one"),
        (suspect, eight.key, [], BuyersError, "empty"),
        (suspect, eight.key, tmp_path / "none.json", RecordError, "cannot be read"),
        (tmp_path / "none.safetensors", eight.key, eight.folder, CheckpointError, "no such"),
    ]
    for path, key, buyers, kind, said in cases:
        with pytest.raises(kind, match=said) as caught:
            neuralmark.trace(path, key, buyers)
        one_line(caught.value)


def test_another_anchor_is_refused(eight: Sold, tmp_path: Path) -> None:
    model = chain_model(tmp_path / "other.safetensors", seed=9)
    done = neuralmark.embed(model, eight.key, tmp_path / "marked.safetensors")
    with pytest.raises(AnchorMismatchError, match="not the anchor of the claim"):
        neuralmark.trace(
            eight.path(LABELS[0]),
            eight.key,
            eight.folder,
            options=VerifyOptions(anchor=done.anchor_file),
        )


def test_a_suspect_that_changes_is_noticed(
    eight: Sold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspect = tmp_path / "suspect.safetensors"
    save_file(eight.weights(LABELS[0]), suspect)

    def touched(*given: Any, **more: Any) -> Any:
        suspect.touch()
        return digest_of(*given, **more)

    monkeypatch.setattr(leaks, "digest_of", touched)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        neuralmark.trace(suspect, eight.key, eight.folder)


def test_a_suspect_far_away(eight: Sold) -> None:
    """Only what is needed is fetched: no digest of whole files unless it is asked for."""
    far = MirrorPlace(eight.path(LABELS[3]))
    found = neuralmark.trace(far, eight.key, eight.folder)
    assert (found.named, found.sha256, found.identical) == ((LABELS[3],), None, None)
    whole = VerifyOptions(full_digest=True)
    asked = neuralmark.trace(far, eight.key, eight.folder, options=whole)
    assert asked.identical == LABELS[3]


@pytest.mark.parametrize("far", [False, True])
def test_traced_in_a_sandbox_it_is_the_same(eight: Sold, far: bool) -> None:
    suspect = MirrorPlace(eight.path(LABELS[2])) if far else eight.path(LABELS[2])
    here = neuralmark.trace(suspect, eight.key, eight.folder).to_dict()
    apart = neuralmark.trace(suspect, eight.key, eight.folder, options=APART).to_dict()
    for told in (here, apart):
        told["alignment"].pop("seconds")
        told.pop("date")
    assert apart == here
    assert apart["named"] == [LABELS[2]]


def test_what_a_trace_does_not_take(eight: Sold) -> None:
    suspect = eight.path(LABELS[0])
    with pytest.raises(ParameterError, match="counts its own ways"):
        neuralmark.trace(suspect, eight.key, eight.folder, options=VerifyOptions(among=2))


def test_an_unrelated_model_shows_nothing(eight: Sold, tmp_path: Path) -> None:
    save_file({"other": np.ones((40, 30), np.float32)}, tmp_path / "other.safetensors")
    found = neuralmark.trace(tmp_path / "other.safetensors", eight.key, eight.folder)
    assert not found.named
    assert found.reason.startswith("nothing was read in which a mark could be")
    assert "bits match" not in found.reason


def test_progress_is_told(eight: Sold) -> None:
    told: list[tuple[str, int, int]] = []
    neuralmark.trace(
        eight.path(LABELS[0]),
        eight.key,
        eight.folder,
        progress=lambda *given: told.append(given),
    )
    stages = {what.split(" ")[0] for what, _, _ in told}
    assert {"reading", "restoring"} <= stages
    assert all(0 <= done <= total for _, done, total in told)


def test_few_bits_never_name_anybody(tmp_path: Path) -> None:
    key = Key.new(neuralmark.Parameters(bits=64, pools=128))
    model = chain_model(tmp_path / "model.safetensors")
    register, _ = neuralmark.issue_copies(model, key, ["a", "b"], tmp_path / "copies")
    found = neuralmark.trace(
        tmp_path / "copies" / register.copies[0].path, key, tmp_path / "copies"
    )
    assert (found.named, found.boundary) == ((), None)
    assert "can never name" in found.reason
    assert found.identical == "a"
