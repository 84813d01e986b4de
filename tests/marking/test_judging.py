"""From margins to a verdict: where the line is, and what a verdict says of the margins."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from neuralmark import Key, Verdict
from neuralmark.checkpoints import TensorInfo, open_checkpoint
from neuralmark.core.bound import bound_log2, boundary
from neuralmark.core.carriers import Carriers
from neuralmark.core.certificate import certified_radius, largest_singular_value
from neuralmark.core.key import Float
from neuralmark.marking.attempts import attempts_for
from neuralmark.marking.judging import (
    Finding,
    Looked,
    held_back,
    judge,
    judge_aligned,
    nothing_read,
)
from neuralmark.marking.placement import catalogue_of
from neuralmark.marking.reading import Attempt, FileSuspect, Progress, Reading
from neuralmark.marking.verification import best_finding
from neuralmark.records import Coverage, Gap, Histogram
from neuralmark.records.alignment import Alignment, TensorFate
from tests.support.models import QUICK, embed_unbound, gaussian_model

NAMES = ["layer1.weight", "layer2.weight"]
NEEDED = boundary(160, 2) or 0
ALL_READ = Coverage(28_672, 28_672, 28_672)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[FileSuspect, Key, Finding]:
    folder, key = tmp_path_factory.mktemp("judging"), Key.new(QUICK)
    out = folder / "marked.safetensors"
    embed_unbound(gaussian_model(folder / "model.safetensors"), key, out)
    suspect = FileSuspect(open_checkpoint(out), "marked")
    attempts = attempts_for(suspect.tensors(), key, None, NAMES)
    finding, broken = best_finding(suspect, key, attempts)
    assert not broken
    return suspect, key, finding


def judged(
    found: tuple[FileSuspect, Key, Finding], margins: Float, looked: Coverage = ALL_READ
) -> Verdict:
    suspect, key, finding = found
    return judge(
        replace(finding, margins=margins), suspect, key, Looked(2, looked), full_digest=False
    )


def margins_with(matched: int, zeros: int = 0) -> Float:
    """So many positive ones; then zeros, the rest negative; in mixed order."""
    margins = np.linspace(0.5, 2.0, 160)
    margins[matched:] *= -1
    margins[matched : matched + zeros] = 0
    return np.random.default_rng(0).permutation(margins)


def test_the_line_is_at_the_boundary(found: tuple[FileSuspect, Key, Finding]) -> None:
    above, below = (judged(found, margins_with(count)) for count in (NEEDED, NEEDED - 1))
    assert (above.status, below.status) == ("verified", "not-verified")
    assert (above.matched, below.matched) == (NEEDED, NEEDED - 1)
    for verdict in (above, below):
        assert verdict.boundary == NEEDED
        assert verdict.trials == 2
        assert verdict.bound_log2 == bound_log2(160, verdict.matched, 2)
        assert verdict.full_match_bound_log2 == -159


def test_a_zero_margin_is_no_match(found: tuple[FileSuspect, Key, Finding]) -> None:
    verdict = judged(found, margins_with(NEEDED - 1, zeros=160 - NEEDED + 1))
    assert (verdict.status, verdict.matched) == ("not-verified", NEEDED - 1)
    assert sum(verdict.margin_histogram.missed) == 160 - NEEDED + 1


@pytest.mark.parametrize("unread", [0.0499, 0.05])
def test_from_a_twentieth_that_cannot_be_read_nothing_found_says_nothing(
    found: tuple[FileSuspect, Key, Finding], unread: float
) -> None:
    looked = Coverage(10_000, 10_000, 10_000, round(10_000 * unread), "packed")
    expected = "unreadable" if unread == 0.05 else "not-verified"
    assert judged(found, margins_with(NEEDED - 1), looked).status == expected
    assert judged(found, margins_with(NEEDED), looked).status == "verified"


def test_a_radius_is_certified_for_what_is_verified_only(
    found: tuple[FileSuspect, Key, Finding],
) -> None:
    finding, margins = found[2], margins_with(NEEDED + 3)
    verdict = judged(found, margins)
    per_pool = finding.reading.carriers.per_pool
    radius = certified_radius(
        margins, NEEDED, per_pool, largest_singular_value(finding.mark.matrix)
    )
    assert verdict.certified_radius == radius > 0
    assert verdict.certified_radius_relative == pytest.approx(radius / finding.reading.norm)
    below = judged(found, margins_with(NEEDED - 1))
    assert below.certified_radius is below.certified_radius_relative is None
    rows = replace(finding, attempt=replace(finding.attempt, by_rows=True))
    by_rows = judged((found[0], found[1], rows), margins)
    assert (by_rows.status, by_rows.scaling) == ("verified", "rows")
    assert by_rows.certified_radius is None


@pytest.mark.parametrize("count", [159, 160])
@pytest.mark.parametrize("matched", [0, 17, 140, 160])
def test_margins_are_told_in_units_of_their_spread(
    found: tuple[FileSuspect, Key, Finding], count: int, matched: int
) -> None:
    margins = margins_with(matched)[:count]
    verdict = judged(found, margins)
    scaled = margins / found[2].reading.sigma_z
    assert verdict.smallest_margin == pytest.approx(scaled.min())
    assert verdict.median_margin == pytest.approx(np.median(scaled))
    told = verdict.margin_histogram
    edges = np.array(told.edges)
    assert 20 <= len(told.matched) == len(told.missed) == len(edges) - 1 <= 41
    np.testing.assert_allclose(np.diff(edges), np.abs(scaled).max() / 20)
    assert edges[0] <= min(scaled.min(), 0) < edges[1]
    assert edges[-2] < max(scaled.max(), 0) <= edges[-1]
    for counts, some in ((told.matched, scaled[scaled > 0]), (told.missed, scaled[scaled < 0])):
        assert list(counts) == np.histogram(some, edges)[0].tolist()
        assert sum(counts) == len(some)


def test_margins_that_are_all_zero_have_a_histogram_too(
    found: tuple[FileSuspect, Key, Finding],
) -> None:
    told = judged(found, np.zeros(160)).margin_histogram
    assert (sum(told.matched), sum(told.missed)) == (0, 160)
    assert len(told.edges) == 2
    assert told.edges[0] < told.edges[1]


def test_what_is_looked_at_by_claim_is_measured_against_the_claim(tmp_path: Path) -> None:
    suspect = FileSuspect(open_checkpoint(gaussian_model(tmp_path / "m.safetensors")), "m")
    key = Key.new(QUICK)
    attempts = attempts_for(suspect.tensors(), key, None, ["layer1.weight"])
    looked = Looked.at(suspect, attempts)
    assert looked.trials == len(attempts) == 2
    assert (looked.coverage.looked_at, looked.coverage.wanted) == (128 * 128, 128 * 128)
    searched = attempts_for(suspect.tensors(), key, None, None)
    whole = Looked.at(suspect, searched, ["layer2.weight"])
    assert whole.trials == len(searched)
    assert whole.coverage.wanted == whole.coverage.in_model == 128 * 128 + 128 + 96 * 128
    assert whole.coverage.unreadable == 96 * 128
    assert whole.coverage.looked_at == 128 * 128


def test_margins_without_a_spread_are_told_as_they_are(
    found: tuple[FileSuspect, Key, Finding],
) -> None:
    suspect, key, finding = found
    flat = replace(finding.reading, within=0.0, pooled=np.zeros(len(finding.reading.pooled)))
    margins = margins_with(17)
    verdict = judged((suspect, key, replace(finding, reading=flat)), margins)
    assert verdict.smallest_margin == margins.min()
    assert verdict.median_margin == pytest.approx(np.median(margins))


def test_a_matrix_made_elsewhere_matches_but_never_proves(
    found: tuple[FileSuspect, Key, Finding],
) -> None:
    suspect, key, finding = found
    raw = Key.raw(key.at(finding.attempt.placement).matrix, 1, "strided")
    for count, status in ((NEEDED, "matches-unproven"), (NEEDED - 1, "not-verified")):
        verdict = judged((suspect, raw, finding), margins_with(count))
        assert (verdict.status, verdict.key_kind) == (status, "raw")
        assert verdict.certified_radius is None


def test_nothing_more_is_read_once_the_boundary_for_all_ways_is_reached(
    found: tuple[FileSuspect, Key, Finding],
) -> None:
    suspect, key, _ = found
    searched = attempts_for(suspect.tensors(), key, None, None)
    for key_, ways in ((key, 1), (Key.new(QUICK), len(searched))):
        watched = Watched(suspect.checkpoint, "watched")
        attempts = attempts_for(watched.tensors(), key_, None, None)
        best_finding(watched, key_, attempts)
        assert len(READ) == ways
        READ.clear()


READ: list[Attempt] = []


class Watched(FileSuspect):
    """Notes what is read."""

    def read(
        self, attempt: Attempt, carriers: Carriers, progress: Progress | None = None
    ) -> Reading:
        """As always."""
        READ.append(attempt)
        return super().read(attempt, carriers, progress)


def test_margins_are_counted_on_their_side(found: tuple[FileSuspect, Key, Finding]) -> None:
    verdict = judged(found, margins_with(100, zeros=10))
    shown = verdict.margin_histogram
    assert (sum(shown.matched), sum(shown.missed)) == (100, 60)


def test_a_verdict_on_nothing_has_no_margins(found: tuple[FileSuspect, Key, Finding]) -> None:
    suspect, key, _ = found
    gaps = (Gap("other.weight", 6, "it is not there"),)
    verdict = nothing_read(suspect, key, (("other.weight", (2, 3)),), gaps, full_digest=False)
    assert (verdict.status, verdict.matched, verdict.trials) == ("unreadable", 0, 0)
    assert (verdict.smallest_margin, verdict.median_margin, verdict.bound_log2) == (0, 0, 0)
    assert verdict.margin_histogram == Histogram((0.0, 1.0), (0,), (0,))
    assert (verdict.mapping, verdict.missing) == ("names", gaps)
    assert verdict.checkpoint_digest.files is None
    assert suspect.digest({}).files is None
    assert nothing_read(suspect, key, (), (), full_digest=True).checkpoint_digest.files


@pytest.mark.parametrize(
    ("share", "read", "lost"),
    [(0.0, 0, 500), (0.5, 5_000, 500), (0.96, 9_600, 400), (1.0, 10_000, 0)],
)
def test_what_was_put_back_in_order_was_read(share: float, read: int, lost: int) -> None:
    """Of 10,000 marked weights, in a model of 20,000 with 500 that are quantised."""
    infos = [TensorInfo("a", "F32", (100, 195)), TensorInfo("b.qweight", "I8", (20, 25))]
    suspect = cast("Any", SimpleNamespace(tensors=lambda: catalogue_of(infos)))
    looked = Looked.restored(suspect, (("w", (100, 100)),), share, 2)
    seen = looked.coverage
    assert looked.trials == 2
    assert (seen.in_model, seen.looked_at, seen.wanted, seen.unreadable) == (
        20_000,
        read,
        10_000,
        lost,
    )
    assert bool(seen.why) == bool(lost)


def test_no_more_is_read_than_there_is() -> None:
    suspect = cast(
        "Any", SimpleNamespace(tensors=lambda: catalogue_of([TensorInfo("a", "F32", (6,))]))
    )
    assert Looked.restored(suspect, (("w", (100,)),), 1.0, 2).coverage.looked_at == 6


def test_every_way_is_tried_until_one_reaches_the_boundary(
    found: tuple[FileSuspect, Key, Finding],
) -> None:
    suspect, key, finding = found
    known = suspect.tensors()
    wrong = attempts_for(known, key, None, ["layer2.weight"])
    best, _ = best_finding(suspect, key, [*wrong, finding.attempt, *wrong])
    assert (best.attempt, best.matched) == (finding.attempt, 160)
    short = Key.new(replace(QUICK, bits=64, pools=128))  # too few bits to prove anything
    ways = attempts_for(known, short, None, NAMES)
    best, _ = best_finding(suspect, short, [*wrong, *ways])
    rates = [best_finding(suspect, short, [way])[0].matched for way in (*wrong, *ways)]
    assert best.matched == max(rates)


def aligned(found: tuple[FileSuspect, Key, Finding], share: float, *shares: float) -> Verdict:
    """A verdict on tensors of which so much was found, in all and of each."""
    suspect, key, finding = found
    fates = tuple(
        TensorFate(name, "from" if each else "", 0.5, 0.9, each, ("permuted",) if each else ())
        for name, each in zip(NAMES, shares, strict=True)
    )
    record = Alignment("00" * 64, 1, fates, found=share)
    looked = Looked(2, replace(ALL_READ, unreadable=0))
    whole = replace(finding, margins=margins_with(160))
    return judge_aligned(whole, suspect, key, looked, record, suspect.digest({}, full=True))


def test_tensors_that_were_found_are_read_and_the_others_are_missing(
    found: tuple[FileSuspect, Key, Finding],
) -> None:
    verdict = aligned(found, 0.6, 1.0, 0.0)
    assert [(read.name, read.stored_name) for read in verdict.tensors] == [
        ("layer1.weight", "from")
    ]
    assert [(gap.name, gap.weights) for gap in verdict.missing] == [("layer2.weight", 96 * 128)]
    assert verdict.checkpoint_digest.files
    assert verdict.certified_radius is None


@pytest.mark.parametrize(("share", "status"), [(0.05, "verified"), (0.049, "not-verified")])
def test_a_twentieth_of_the_weights_says_something(
    found: tuple[FileSuspect, Key, Finding], share: float, status: str
) -> None:
    assert aligned(found, share, share, share).status == status


def test_the_largest_limit_that_tensors_ask_for_is_named() -> None:
    fates = tuple(
        TensorFate(name, "", 0.0, 0.0, 0.0, (f"too large to align: raise align_limit to {limit}",))
        for name, limit in (("a", 4096), ("b", 9999), ("c", 5000))
    )
    whole = TensorFate("d", "d", 1.0, 1.0, 1.0, ())
    sizes = tuple((name, (10, 10)) for name in "abcd")
    told = held_back(Alignment("00" * 64, 1, (*fates, whole), found=0.5), sizes)
    assert "3 of 4 tensors" in told
    assert told.endswith("to 9999")
    one = (("d", (10, 10)),)
    assert held_back(Alignment("00" * 64, 1, (whole,), found=1.0), one) == ""
    assert held_back(Alignment("00" * 64, 1, (whole,), effort=0.25), one) == ""
    left = TensorFate("e", "", 0.0, 0.0, 0.0, ("filled from the anchor: not looked for",))
    both = (*one, ("e", (30, 10)))
    assert "only 25 % of" in held_back(Alignment("00" * 64, 1, (whole, left), effort=0.1), both)


@pytest.mark.parametrize("norm", [0.0, np.inf])
def test_a_radius_is_no_share_of_a_norm_that_is_none(
    found: tuple[FileSuspect, Key, Finding], norm: float
) -> None:
    suspect, key, finding = found
    odd = replace(finding, reading=replace(finding.reading, norm=norm))
    verdict = judged((suspect, key, odd), margins_with(160))
    assert verdict.certified_radius is not None
    assert verdict.certified_radius_relative is None
