"""Anchored marks, found and put back in order: files, live models, disputes, bad anchors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import Claim, Key, VerifyOptions
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.attacks.restructure import Restructure
from neuralmark.errors import AnchorError, AnchorMismatchError, ParameterError
from neuralmark.reports.verdict import verdict_page
from tests.support.claims import without_file
from tests.support.models import QUICK

SHAPES = {
    "features.0.weight": (32, 3, 3, 3),
    "features.2.weight": (64, 32, 3, 3),
    "features.4.weight": (96, 64, 3, 3),
    "classifier.weight": (10, 96),
}


def table(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {n: (rng.standard_normal(s) * 0.05).astype(np.float32) for n, s in SHAPES.items()}


class Case:
    """A marked model and a restructured copy of it, as files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, Key.new(QUICK)
        self.original = folder / "model.safetensors"
        save_file(table(0), self.original)
        self.marked = folder / "marked.safetensors"
        neuralmark.embed(self.original, self.key, self.marked)
        self.claim = Path(f"{self.marked}.claim.json")
        self.anchor = Path(f"{self.marked}.anchor")
        away = folder / "away"
        away.mkdir()
        self.stolen = away / "stolen.safetensors"
        found = launch(
            Restructure("all", 4), load_file(self.marked), options=LaunchOptions(seed=1)
        ).weights
        assert found is not None
        save_file({n: np.ascontiguousarray(v) for n, v in found.items()}, self.stolen)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("case"))


def test_a_restructured_copy_is_verified(case: Case) -> None:
    verdict = neuralmark.verify(case.stolen, case.key, claim=case.claim)
    assert verdict.verified
    assert verdict.trials == 2
    assert [(r.kind, r.matched) for r in verdict.readings] == [
        ("position", None),
        ("aligned", verdict.matched),
    ]
    assert verdict.matched >= 156
    told = verdict.alignment
    assert told is not None
    assert told.anchor == verdict.anchor_digest
    assert told.found > 0.95
    done = {change for fate in told.tensors for change in fate.changes}
    assert "permuted" in done
    assert any("dummies dropped" in change for change in done)
    assert verdict.mapping == "anchor"
    assert verdict.certified_radius is None
    assert verdict.sha256 is not None


def test_where_it_was_comes_first(case: Case) -> None:
    verdict = neuralmark.verify(case.marked, case.key)
    assert verdict.verified
    assert [(r.kind, r.matched, r.why) for r in verdict.readings] == [
        ("position", 160, ""),
        ("aligned", None, "not needed"),
    ]
    assert verdict.alignment is None


@pytest.mark.parametrize("prefix", ["m.", "net.backbone.", "model."])
def test_one_more_prefix_is_where_it_was(case: Case, tmp_path: Path, prefix: str) -> None:
    """Names and shapes alone say under which prefix: it stays one look of two."""
    renamed = {prefix + name: values for name, values in load_file(case.marked).items()}
    decoy = {"m.features.2.weight": np.ones((64, 32, 3, 3), np.float32)} if prefix != "m." else {}
    save_file(renamed | decoy, tmp_path / "renamed.safetensors")
    verdict = neuralmark.verify(tmp_path / "renamed.safetensors", case.key, claim=case.claim)
    assert verdict.verified
    assert (verdict.trials, verdict.mapping, verdict.alignment) == (2, "prefix", None)
    assert verdict.readings[0].matched == 160


def test_without_the_anchor_it_is_not_found(case: Case) -> None:
    claim = without_file(Claim.load(case.claim))
    verdict = neuralmark.verify(case.stolen, case.key, claim=claim)
    assert not verdict.verified
    assert verdict.readings == ()


@pytest.mark.parametrize("which", ["anchor", "original"])
def test_the_anchor_may_be_named(case: Case, which: str) -> None:
    options = VerifyOptions(anchor=getattr(case, which))
    verdict = neuralmark.verify(
        case.stolen, case.key, claim=Claim.load(case.claim), options=options
    )
    assert verdict.verified


def test_the_anchor_alone_is_enough(case: Case) -> None:
    verdict = neuralmark.verify(case.stolen, case.key, options=VerifyOptions(anchor=case.anchor))
    assert verdict.verified
    assert verdict.claim_digest is None


def test_an_unrelated_model_is_not(case: Case, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file(table(7), other)
    verdict = neuralmark.verify(other, case.key, claim=case.claim)
    assert verdict.status == "not-verified"
    assert verdict.alignment is not None
    assert verdict.matched < 120


def test_another_key_matches_by_luck_only(case: Case) -> None:
    other = Key.new(QUICK)
    neuralmark.embed(case.original, other, case.folder / "others.safetensors")
    claim = case.folder / "others.safetensors.claim.json"
    verdict = neuralmark.verify(case.stolen, other, claim=claim)
    assert verdict.alignment is not None
    assert verdict.alignment.found > 0.95
    assert 45 < verdict.matched < 115
    assert not verdict.verified


def test_a_tensor_with_nan_is_left_out_and_the_others_are_read(case: Case, tmp_path: Path) -> None:
    broken = load_file(case.marked)
    broken["features.2.weight"][0] = np.nan
    save_file(broken, tmp_path / "broken.safetensors")
    verdict = neuralmark.verify(tmp_path / "broken.safetensors", case.key, claim=case.claim)
    assert verdict.verified
    placed, aligned = verdict.readings
    assert placed.matched is None
    assert "NaN" in placed.why
    assert aligned.matched == verdict.matched
    assert verdict.alignment is not None
    fates = {fate.name: fate for fate in verdict.alignment.tensors}
    assert fates["features.2.weight"].found == 0
    assert fates["features.4.weight"].found == 1


def test_effort_looks_for_a_share(case: Case) -> None:
    options = VerifyOptions(effort=0.2)
    verdict = neuralmark.verify(case.stolen, case.key, claim=case.claim, options=options)
    told = verdict.alignment
    assert told is not None
    assert told.effort == 0.2
    unsought = [fate for fate in told.tensors if fate.changes == (UNSOUGHT,)]
    assert len(unsought) == len(told.tensors) - 1
    stranger = case.folder / "away" / "stranger.safetensors"
    save_file(table(9), stranger)
    other = neuralmark.verify(stranger, case.key, claim=case.claim, options=options)
    assert not other.verified
    assert "only 25 % of the marked weights were looked for" in other.reason
    with pytest.raises(ParameterError, match="effort"):
        VerifyOptions(effort=0)
    with pytest.raises(ParameterError, match="align_limit"):
        VerifyOptions(align_limit=0)


UNSOUGHT = "filled from the anchor: not looked for"


def test_too_little_found_is_never_a_match(case: Case, tmp_path: Path) -> None:
    few = {"features.0.weight": load_file(case.marked)["features.0.weight"]}
    save_file(few, tmp_path / "few.safetensors")
    verdict = neuralmark.verify(tmp_path / "few.safetensors", case.key, claim=case.claim)
    assert verdict.status in ("not-verified", "unreadable")
    assert "of the marked weights were found" in verdict.reason


def test_a_limit_on_alignment_is_kept(case: Case) -> None:
    options = VerifyOptions(align_limit=16)
    verdict = neuralmark.verify(case.stolen, case.key, claim=case.claim, options=options)
    assert not verdict.verified
    assert verdict.alignment is not None
    told = [fate.changes[-1] for fate in verdict.alignment.tensors if not fate.found]
    assert all("too large to align: raise align_limit to" in change for change in told)
    assert f"{len(told)} of {len(verdict.alignment.tensors)} tensors were too" in verdict.reason
    needed = int(verdict.reason.rsplit(" ", 1)[-1])
    enough = VerifyOptions(align_limit=needed)
    assert neuralmark.verify(case.stolen, case.key, claim=case.claim, options=enough).verified


def test_progress_names_what_is_put_in_order(case: Case) -> None:
    heard: list[tuple[str, int, int]] = []
    neuralmark.verify(
        case.stolen, case.key, claim=case.claim, progress=lambda *told: heard.append(told)
    )
    for stage in ("finding", "aligning", "restoring"):
        steps = [each for each in heard if each[0].startswith(f"{stage} ")]
        assert any(".weight" in words for words, _, _ in steps)
        assert all(0 <= done <= total for _, done, total in steps)
        assert len({done for _, done, _ in steps}) > 1
    assert {total for words, _, total in heard if words.startswith("aligning")} != {1}


def test_live_models_are_put_in_order_too(case: Case) -> None:
    state = {n: torch.from_numpy(v) for n, v in load_file(case.stolen).items()}
    verdict = neuralmark.verify(state, case.key, claim=case.claim)
    assert verdict.verified
    assert verdict.mapping == "anchor"


def test_anchors_of_other_claims_and_keys_are_refused(case: Case, tmp_path: Path) -> None:
    other = tmp_path / "second.safetensors"
    neuralmark.embed(case.marked, case.key, other)
    wrong = VerifyOptions(anchor=Path(f"{other}.anchor"))
    claim = Claim.load(case.claim)
    with pytest.raises(AnchorMismatchError, match="not the anchor of the claim"):
        neuralmark.verify(case.stolen, case.key, claim=claim, options=wrong)
    with pytest.raises(AnchorMismatchError):
        neuralmark.verify(case.stolen, Key.new(QUICK), options=VerifyOptions(anchor=case.anchor))
    wrong = VerifyOptions(anchor=case.stolen)
    with pytest.raises(AnchorMismatchError, match="not the original"):
        neuralmark.verify(case.stolen, case.key, claim=claim, options=wrong)
    with pytest.raises(AnchorMismatchError, match="is no anchor file"):
        neuralmark.verify(case.stolen, case.key, options=VerifyOptions(anchor=case.original))
    with pytest.raises(ParameterError, match="a file or an Anchor"):
        neuralmark.verify(case.stolen, case.key, options=VerifyOptions(anchor=3))  # type: ignore[arg-type]
    broken = tmp_path / "broken.anchor"
    broken.write_bytes(case.anchor.read_bytes()[:-10])
    with pytest.raises(AnchorError):
        neuralmark.verify(case.stolen, case.key, options=VerifyOptions(anchor=broken))


def test_the_page_shows_where_the_weights_went(case: Case) -> None:
    verdict = neuralmark.verify(case.stolen, case.key, claim=case.claim)
    page = verdict_page(verdict)
    assert "Where the weights went" in page
    assert "permuted" in page
    assert "not of ownership" in page
    assert "Bits that match, by position: not readable: too few tensors" in page
    assert f"aligned: {verdict.matched} of {verdict.bits} bits" in page
    assert "other shape" in page
    assert "not computed for weights that were put back in order" in page
    assert "A radius is certified only" not in page
    public = verdict_page(verdict, public=True)
    assert "Where the weights went" not in public
    assert "alignment" not in verdict.public_dict()


def test_an_aligned_verdict_holds_again(case: Case) -> None:
    verdict = neuralmark.verify(case.stolen, case.key, claim=case.claim)
    again = neuralmark.recheck(verdict, case.stolen, case.key, claim=case.claim)
    assert again.holds, again.broken
    without = neuralmark.recheck(verdict, case.stolen, case.key)
    assert not without.holds


def test_a_rearranged_copy_does_not_leave_a_dispute_open(case: Case, tmp_path: Path) -> None:
    thief, out = Key.new(QUICK), tmp_path / "thief.safetensors"
    neuralmark.embed(case.stolen, thief, out)
    parties = (
        neuralmark.Claimant("Acme", case.key, case.marked),
        neuralmark.Claimant("Thief", thief, out),
    )
    ruling = neuralmark.arbitrate(parties, disputed=case.stolen)
    assert ruling.owner == "Acme", ruling.reasons
    scores = [relation.aligned for relation in ruling.relations if relation.aligned is not None]
    assert max(scores) > 0.9


def test_lineage_tells_copies_from_strangers(case: Case, tmp_path: Path) -> None:
    save_file(table(9), tmp_path / "stranger.safetensors")
    copy = neuralmark.lineage(case.original, case.stolen)
    assert copy.related
    assert copy.score > 0.9
    stranger = neuralmark.lineage(case.original, tmp_path / "stranger.safetensors")
    assert not stranger.related
    assert neuralmark.lineage(table(0), case.original).score > 0.99
