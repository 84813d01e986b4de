"""The page of a verdict: safe against hostile names, true to the verdict, and free of secrets."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import neuralmark
from neuralmark.core import bound
from neuralmark.core.key import Parameters
from neuralmark.errors import RecordError
from neuralmark.marking.judging import RAW_REASON
from neuralmark.records import (
    PUBLIC,
    Alignment,
    BitsRead,
    Coverage,
    Digest,
    Gap,
    Histogram,
    PublicVerdict,
    TensorFate,
    TensorRead,
    Verdict,
)
from neuralmark.reports.render import page, svg
from neuralmark.reports.verdict import verdict_page
from tests.support.pages import HOSTILE, read


def verdict_of(cells: np.ndarray, **changes: object) -> Verdict:
    bits, matched = len(cells), int(cells.sum())
    margins = np.where(cells, 1.0, -1.0) * np.linspace(0.1, 3.0, bits)
    edges = np.linspace(-3.1, 3.1, 41)
    tensor = TensorRead("layer.weight", "module.layer.weight", "F32", (64, 32))
    plain = Verdict(
        status="verified",
        reason="a reason below 2^-128",
        matched=matched,
        bits=bits,
        boundary=bound.boundary(bits, 3),
        bound_log2=bound.bound_log2(bits, matched, 3),
        full_match_bound_log2=bound.bound_log2(bits, bits, 3),
        trials=3,
        parameters=Parameters(bits=bits, pools=64),
        key_kind="native",
        fingerprint="nm1-" + "0" * 40,
        placement=(("layer.weight", (64, 32)),),
        tensors=(tensor,),
        mapping="names",
        orientation="stored",
        smallest_margin=float(margins.min()),
        median_margin=float(np.median(margins)),
        margin_histogram=Histogram(
            tuple(edges.tolist()),
            tuple(np.histogram(margins[cells], edges)[0].tolist()),
            tuple(np.histogram(margins[~cells], edges)[0].tolist()),
        ),
        certified_radius=0.06159,
        certified_radius_relative=0.00299,
        model="models/suspect.safetensors",
        checkpoint_digest=Digest("ab" * 32, {"layer.weight": "cd" * 32}),
        coverage=Coverage(4096, 2048, 2048),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def some(bits: int, rate: float = 0.9) -> np.ndarray:
    return np.random.default_rng(bits).random(bits) < rate


def drawn_cells(markup: str, kind: str) -> int:
    paths = re.findall(rf'class="stroke {kind} c\d"[^>]* d="([^"]*)"', markup)
    return sum(int(run) for path in paths for run in re.findall(r"h(\d+)", path))


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> tuple[neuralmark.Key, Path, Path]:
    folder = tmp_path_factory.mktemp("model")
    weights = np.random.default_rng(1).normal(0, 0.02, (1024, 1024)).astype(np.float32)
    save_file({"layer.weight": weights}, folder / "model.safetensors")
    key = neuralmark.Key.new(owner="Acme")
    neuralmark.embed(folder / "model.safetensors", key, folder / "marked.safetensors")
    return key, folder / "model.safetensors", folder / "marked.safetensors"


@pytest.mark.parametrize("which", [1, 2])
def test_nothing_secret_is_on_the_page(
    marked: tuple[neuralmark.Key, Path, Path], which: int
) -> None:
    key, model = marked[0], marked[1:][which - 1]
    verdict = neuralmark.verify(model, key)
    assert verdict.verified == (which == 2)
    markup = verdict_page(verdict)
    shown = read(markup).text + markup
    watermark = key.at(verdict.placement).bits
    for bits in (watermark, 1 - watermark):
        assert np.packbits(bits).tobytes().hex() not in shown.lower()
        assert "".join(map(str, bits)) not in shown
    assert key.secret is not None
    assert key.secret.hex() not in shown.lower()
    assert key.fingerprint in shown


def test_the_page_of_a_real_verdict(marked: tuple[neuralmark.Key, Path, Path]) -> None:
    key, _, model = marked
    verdict = neuralmark.verify(model, key, options=neuralmark.VerifyOptions(full_digest=True))
    markup = verdict_page(verdict)
    assert markup == verdict_page(verdict)
    words = read(markup).text
    assert page.power_of_two(verdict.bound_log2) in markup
    assert verdict.bound_log2 < -250
    assert "even against someone who knows the key" in words
    for value in [
        verdict.checkpoint_digest.headers,
        *verdict.checkpoint_digest.tensors.values(),
        *(verdict.checkpoint_digest.files or {}).values(),
        verdict.version,
        "1024 × 1024",
    ]:
        assert value in words


def test_hostile_names_are_text() -> None:
    verdict = verdict_of(
        some(256),
        reason=HOSTILE,
        tensors=(TensorRead(HOSTILE, HOSTILE + "2", HOSTILE, (1,)),),
        model=HOSTILE,
        mapping=HOSTILE,
        orientation=HOSTILE,
        fingerprint=HOSTILE,
        version=HOSTILE,
        checkpoint_digest=Digest(HOSTILE, {HOSTILE: HOSTILE}, {HOSTILE: HOSTILE}, HOSTILE),
    )
    markup = verdict_page(verdict)
    markup.encode()
    reader, plain = read(markup), read(verdict_page(verdict_of(some(256))))
    assert {tag for tag, _ in reader.tags} == {tag for tag, _ in plain.tags}
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    assert not any(hidden in markup for hidden in "\x00\u202e\ud800")
    assert r"\u202e\x00\ud800" in reader.text


def test_very_long_names_and_lists_stay_bounded() -> None:
    names = [f"layer.{i}." + "x" * 100_000 for i in range(3000)]
    tensors = tuple(TensorRead(name, name, "F32", (2, 2)) for name in names)
    digest = Digest("ab" * 32, dict.fromkeys(names, "cd" * 32))
    markup = verdict_page(verdict_of(some(256), tensors=tensors, checkpoint_digest=digest))
    assert len(markup) < 4_000_000
    reader = read(markup)
    assert "Tensors read: 3,000" in reader.text
    assert "and 1,000 more" in reader.text
    assert "100,008 characters" in reader.text


@pytest.mark.parametrize("bits", [1, 7, 8, 61, 129, 255, 256, 1000, 4096])
@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9, 1.1])
def test_the_map_shows_every_bit(bits: int, rate: float) -> None:
    verdict = verdict_of(some(bits, rate))
    markup = verdict_page(verdict)
    read(markup)
    assert drawn_cells(markup, "yes") == verdict.matched
    assert drawn_cells(markup, "no") == verdict.bits - verdict.matched
    assert f"{verdict.matched:,} matching" in markup
    assert f"{bits - verdict.matched:,} not matching" in markup


def test_the_map_is_in_order() -> None:
    cells = some(61, 0.5)
    markup = svg.grid(cells.tolist(), "a map")
    shown = np.zeros(64, bool)
    path = re.search(r'class="stroke yes c0"[^>]* d="([^"]*)"', markup)
    assert path is not None
    for x, y, run in re.findall(r"M(\d+) (\d+)h(\d+)", path[1]):
        start = int(y) * 16 + int(x)
        shown[start : start + int(run)] = True
    assert shown[:61].tolist() == cells.tolist()


def test_the_largest_map_stays_small() -> None:
    verdict = verdict_of(some(65536, 0.5), parameters=Parameters(bits=65536, pools=64))
    markup = verdict_page(verdict)
    assert len(markup) < 600_000
    assert drawn_cells(markup, "yes") == verdict.matched
    read(markup)


@pytest.mark.parametrize(
    ("changes", "headline"),
    [
        ({"status": "verified"}, "Verified"),
        ({"status": "not-verified"}, "Not verified"),
        (
            {"status": "matches-unproven", "key_kind": "raw", "reason": RAW_REASON},
            "Matches, but unproven",
        ),
        ({"status": "unprovable", "boundary": None}, "Cannot be proven with so few bits"),
        ({"status": "unreadable"}, "Could not be read"),
    ],
)
def test_each_status_has_its_headline(changes: dict[str, object], headline: str) -> None:
    if changes["status"] != "verified":
        changes = changes | {"certified_radius": None, "certified_radius_relative": None}
    verdict = verdict_of(some(256), **changes)
    markup = verdict_page(verdict)
    reader = read(markup)
    assert f"<h1>{headline}</h1>" in markup
    assert f"<title>{headline}: suspect.safetensors" in markup
    assert page.with_powers(verdict.reason)[1:] in markup
    assert ("smaller than 0.0615" in reader.text) == verdict.verified
    assert ("it does not hold" in reader.text) == (verdict.key_kind == "raw")
    assert "What this page does not contain" in reader.text
    assert "Signature" in reader.text


def test_the_map_shows_counts_not_places() -> None:
    cells = some(256, 0.5)
    one, two = (verdict_page(verdict_of(c)) for c in (cells, np.sort(cells)))
    found = [re.search(r"<h2>Matches</h2>.*?</section>", markup, re.S) for markup in (one, two)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0][0] == found[1][0]


@pytest.mark.parametrize("status", ["verified", "not-verified", "unreadable"])
def test_the_public_page_has_counts_bound_and_status_only(status: str) -> None:
    gaps = (Gap("secret.layer", 5, "it is not there"),)
    verdict = verdict_of(some(256), status=status, reason="in secret.layer", missing=gaps)
    markup = verdict_page(verdict, public=True)
    words = read(markup).text
    for shown in (f"{verdict.matched:,}", "228", verdict.fingerprint, "suspect.safetensors"):
        assert shown in words
    for hidden in ("layer", "models/", "margin, in", "σz", "0.0615", "ab" * 32, "cd" * 32, "pools"):
        assert hidden not in words, hidden
    assert "sha256" not in words
    whole = replace(verdict.checkpoint_digest, files={"suspect.safetensors": "ef" * 32})
    named = replace(verdict, checkpoint_digest=whole, date="2026-11-17T00:00:00+00:00")
    words = read(verdict_page(named, public=True)).text
    for shown in ("ef" * 32, "as sha256sum prints it", "2026-11-17"):
        assert shown in words
    for hidden in ("layer", "ab" * 32, "cd" * 32):
        assert hidden not in words
    public = verdict.public_dict()
    assert set(public) == {*PUBLIC, "view", "model", "files"}
    assert public["model"] == "suspect.safetensors"
    assert "layer" not in repr(public)


def test_what_was_not_read_is_on_the_page() -> None:
    gaps = (Gap("gone.weight", 5000, "it is not there"),)
    seen = Coverage(9000, 2048, 9000, 4000, "7 tensors: packed")
    verdict = verdict_of(some(256), status="unreadable", missing=gaps, coverage=seen)
    words = read(verdict_page(verdict)).text
    assert "22.7" in words
    for said in ("gone.weight", "it is not there", "zeros stand for them", "7 tensors: packed"):
        assert said in words
    nothing = replace(verdict, tensors=(), trials=0, matched=0)
    assert "there was nothing to look at" in read(verdict_page(nothing)).text


def test_the_page_fetches_and_runs_nothing() -> None:
    markup = verdict_page(verdict_of(some(256)))
    assert re.search(r"https?:|<script|url\(|@import|javascript:", markup) is None
    tags = read(markup).tags
    assert not any(key in ("src", "href") for _, attributes in tags for key in attributes)


def test_every_picture_is_described() -> None:
    for tag, attributes in read(verdict_page(verdict_of(some(256)))).tags:
        if tag == "svg":
            assert attributes.get("aria-hidden") == "true" or attributes.get("aria-label")


@pytest.mark.parametrize("bits", [61, 5000, 65536])
def test_the_bars_show_their_counts(bits: int) -> None:
    verdict = verdict_of(some(bits, 0.7))
    markup = verdict_page(verdict)
    bars = verdict.margin_histogram
    totals = [a + b for a, b in zip(bars.matched, bars.missed, strict=True) if a + b]
    shown = re.findall(r'<text[^>]*class="tiny count[^>]*>([^<]*)</text>', markup)
    assert [int(count.replace(",", "")) for count in shown] == totals
    hints = re.findall(r"<title>[^<]*: ([\d,]+) (matching|not matching)</title>", markup)
    for kind, counts in (("matching", bars.matched), ("not matching", bars.missed)):
        found = sum(int(count.replace(",", "")) for count, name in hints if name == kind)
        assert found == sum(counts)
    assert 'class="strong zero"' in markup


def test_a_verdict_that_contradicts_itself_gets_no_page() -> None:
    verdict = verdict_of(some(256))
    for changes in ({"matched": verdict.matched - 1}, {"bits": 300}, {"status": "sure"}):
        with pytest.raises(RecordError):
            verdict_page(replace(verdict, **changes))


def test_chances_are_never_understated() -> None:
    assert page.power_of_two(-128.001) == "2<sup>−128</sup>"
    assert page.power_of_two(-0.001) == "1"
    assert page.chance_in_words(0.0) == "as good as certain"
    assert page.chance_in_words(-1.0) == "about 50 in 100"
    assert page.chance_in_words(-65536.0).endswith("10<sup>19728</sup>")


def test_a_line_plot_names_its_lines() -> None:
    lines = [svg.Series(f"<{i}>", [(0, i), (1, i + 0.5), (2, i)]) for i in range(7)]
    level = svg.PlotMark(3, "boundary")
    words = read(svg.line_plot(lines, ("pruned", "rate"), "seven lines", levels=[level])).text
    assert all(f"<{i}>" in words for i in range(7))
    assert "boundary" in words
    read(svg.line_plot([], ("x", "y"), "nothing"))
    read(svg.line_plot([svg.Series("a point", [(1, 1)])], ("x", "y"), "one point"))


def scarce(found: float = 0.037, **changes: object) -> Verdict:
    """A verdict on so little of the marked weights that its bits, though enough, do not count."""
    fate = TensorFate("layer.weight", "a", 0.9, 0.99, found, ("renamed",))
    given: dict[str, object] = {
        "status": "not-verified",
        "mapping": "anchor",
        "readings": (BitsRead("position", None, "too few"), BitsRead("aligned", 244)),
        "alignment": Alignment("ab" * 64, 1, (fate,), found=found),
        "certified_radius": None,
        "certified_radius_relative": None,
    }
    cells = np.arange(256) < 244
    return verdict_of(cells, **(given | changes))


def test_bits_that_do_not_count_look_like_no_proof() -> None:
    verdict = scarce()
    public = PublicVerdict.from_dict(verdict.public_dict())
    pages = verdict_page(verdict), verdict_page(verdict, public=True), verdict_page(public)
    for words in (read(markup).text for markup in pages):
        assert "the bits are not counted, whatever their number: at least 5 %" in words
        assert "244, not counted" in words
        assert "No chance of error is claimed" in words
        assert "falls short" not in words
        assert "coin tosses" not in words
    assert "244 of 256 bits, not counted" in read(pages[0]).text
    assert "do not count: too little of the marked weights" in str(verdict)
    assert "2^-" not in str(verdict)
    assert "do not count" in verdict._repr_html_()


def test_bits_that_were_read_by_position_count() -> None:
    cells = np.arange(256) < 133
    placed = replace(scarce(0.0), mapping="names", matched=133)
    placed = replace(placed, margin_histogram=verdict_of(cells).margin_histogram)
    words = read(verdict_page(placed)).text
    assert "falls short of what a proof needs" in words
    assert "133, not counted" not in words
    assert "do not count" not in str(placed)
    unreadable = read(verdict_page(scarce(status="unreadable"))).text
    assert "could not be read" in unreadable
    assert "No chance of error is claimed" in unreadable


def test_what_was_set_aside_is_told_of_each_tensor() -> None:
    fate = TensorFate("layer.weight", "layer.weight", 0.53, 0.99, 1.0)
    notes = ("layer.weight: a change of rank 4 was set aside",)
    told = Alignment("ab" * 64, 1, (fate,), found=1.0, notes=notes)
    markup = verdict_page(scarce(status="verified", alignment=told))
    assert markup.count("a change of rank 4 set aside") == 2  # in the picture and in the table
    assert "unchanged" not in markup
    assert "<td>nothing</td>" not in markup
