"""The page of a robustness card: self-contained, safe against hostile names, true to the card."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from neuralmark import Key, embed, verify
from neuralmark.attacks.contract import AttackKind
from neuralmark.attacks.engine.card import Before, Card, CardPoint, CardRow, PointStatus, Skipped
from neuralmark.cli import _attacked
from neuralmark.records import Status
from neuralmark.reports.card import card_page
from neuralmark.reports.sweeps import picture_of
from tests.support.models import QUICK, gaussian_model
from tests.support.pages import HOSTILE, read

KEY = Key(QUICK, b"", salt=bytes(32), secret=bytes([1]) * 32)


def point(
    strength: float, matched: int | None, *, held: bool, status: PointStatus | None = None
) -> CardPoint:
    status = status or ("verified" if held else "not-verified")
    change = None if matched is None else 0.25
    return CardPoint(strength, {"amount": strength}, status, matched, 160, held, change, 0.1)


def row(
    attack: str, *points: CardPoint, variant: str = "", kind: AttackKind = "weights"
) -> CardRow:
    return CardRow(
        attack=attack,
        variant=variant,
        kind=kind,
        dial="amount",
        unit="amount of it",
        summary=f"does {attack}",
        expects="stands",
        boundary=150,
        points=points,
    )


def both(strength: float, placed: int | None, aligned: int | None) -> CardPoint:
    """Read by position and with the anchor."""
    held = (placed or 0) >= 150, (aligned or 0) >= 150
    words: tuple[Status, Status] = ("not-verified", "verified")
    status = "unreadable" if placed is None else words[held[0]]
    return replace(
        point(strength, placed, held=held[0], status=status),
        status_aligned="unreadable" if aligned is None else words[held[1]],
        matched_aligned=aligned,
        held_aligned=held[1],
    )


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Card:
    folder = tmp_path_factory.mktemp("card")
    marked = folder / "marked.safetensors"
    embed(gaussian_model(folder / "model.safetensors"), KEY, marked)
    before = verify(marked, KEY)
    rows = (
        row("noise", point(0.01, 160, held=True), point(3, 101, held=False)),
        row("turn", point(0.5, 159, held=True), variant="left"),
        row("turn", point(0.5, None, held=False, status="unreadable"), variant="right"),
        row("forge", point(1, 131, held=True, status="not-verified"), kind="key"),
        replace(
            row("look", point(1, 160, held=True), kind="test"),
            points=(replace(point(1, 160, held=True), figures={"p-value": 0.03125}),),
        ),
    )
    skipped = (Skipped("tune", "needs data: from Python"),)
    return Card(str(marked), KEY.fingerprint, Before.of(before), rows, skipped, seed=7, seconds=2.0)


def test_what_it_says(card: Card) -> None:
    text = read(card_page(card)).text
    for words in (
        KEY.fingerprint,
        Path(card.model).name,
        "Undone from some strength on: noise, turn.",
        "No forged key was verified.",
        "tune",
        "needs data: from Python",
        "What the certified radius means",
        "How to read this card",
        "131 of 160",
        "p-value 0.03125",
        "--seed 7",
        "needed: 150",
    ):
        assert words in text, words
    assert "Withstood at every strength tried" not in text


def test_self_contained(card: Card) -> None:
    page = card_page(card)
    reader = read(page)
    names = {tag for tag, _ in reader.tags}
    assert not names & {"script", "link", "img", "iframe", "a", "form"}
    for _, attributes in reader.tags:
        assert not {"src", "href"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert "http" not in page.replace("http-equiv", "")


def test_hostile_names(card: Card) -> None:
    rows = tuple(
        replace(each, attack=HOSTILE, variant=HOSTILE, unit=HOSTILE, summary=HOSTILE)
        for each in card.rows
    )
    rows = tuple(
        replace(each, points=tuple(replace(p, note=HOSTILE) for p in each.points)) for each in rows
    )
    bad = replace(card, model=HOSTILE, rows=rows, skipped=(Skipped(HOSTILE, HOSTILE),))
    page = card_page(bad)
    assert not {tag for tag, _ in read(page).tags} & {"script", "img"}
    assert "\u202e" not in page
    assert "\x00" not in page


def test_one_plot_an_attack(card: Card) -> None:
    reader = read(card_page(card))
    said = [a["aria-label"] for tag, a in reader.tags if tag == "svg" and a.get("role") == "img"]
    assert len(said) == 2
    assert said[0] == "noise: noise flips the verdict at 3"
    assert "turn (left) survives all strengths tried" in (said[1] or "")
    assert "turn (right) flips the verdict at 0.5" in (said[1] or "")


def test_a_verified_forgery_is_shouted(card: Card) -> None:
    forged = row("forge", point(1, 160, held=False, status="verified"), kind="key")
    text = read(card_page(replace(card, rows=(forged,)))).text
    assert "Forged keys that were verified: forge." in text
    assert "No forged key was verified" not in text


def test_all_withstood(card: Card) -> None:
    text = read(card_page(replace(card, rows=card.rows[1:2], skipped=()))).text
    assert "Withstood at every strength tried: turn." in text
    assert "never" in text
    assert "What was not run" not in text


def test_nothing_was_run(card: Card) -> None:
    text = read(card_page(replace(card, rows=()))).text
    assert "What was not run, and why" in text


def test_many_kinds_share_a_line(card: Card) -> None:
    kinds = tuple(
        row("round", point(16 - i, 160 - i, held=i < 6), variant=f"int{i}") for i in range(8)
    )
    text = read(card_page(replace(card, rows=kinds))).text
    assert "round int0, int1, int2, int3, int4, int5" in text
    assert "8 kinds, listed below" in text
    assert "round int6" in text


def ticks_of(markup: str) -> list[str]:
    """The labels along the foot, from left to right."""

    found = re.findall(r'<text x="([\d.]+)" y="272.0"[^>]*>([^<]*)</text>', markup)
    return [words for _, words in sorted(found, key=lambda each: float(each[0]))]


def test_weak_is_left() -> None:
    rising = row("a", point(0.1, 160, held=True), point(0.9, 90, held=False))
    falling = row("a", point(8, 160, held=True), point(2, 90, held=False))
    assert ticks_of(picture_of("a", [rising], 160, 150)) == ["0.1", "0.9"]
    assert ticks_of(picture_of("a", [falling], 160, 150)) == ["8", "2"]


def test_wide_ranges_are_logarithmic() -> None:
    wide = row("a", *(point(10.0**i, 160, held=True) for i in range(-2, 3)))
    drawn = picture_of("a", [wide], 160, 150)
    assert "(logarithmic)" in drawn
    assert ticks_of(drawn) == ["0.01", "0.1", "1", "10", "100"]
    assert "(logarithmic)" not in picture_of("a", [replace(wide, points=wide.points[:2])], 160, 150)


def test_without_a_dial_there_are_bars() -> None:
    bare = replace(row("a", point(0, 90, held=False), variant="x"), dial="", unit="")
    drawn = picture_of("a", [bare], 160, 150)
    assert 'class="meter"' in drawn
    assert "x: 90" in drawn


def test_in_a_notebook(card: Card) -> None:
    shown = replace(card, model="a<b>.safetensors")._repr_html_()
    assert "a&lt;b&gt;.safetensors" in shown
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line) for line in shown.split("</tr>")]
    for line in (
        ["key", KEY.fingerprint, ""],
        ["not run", "tune", ""],
        ["noise", "amount 0.01", "amount 3"],
        ["turn (left)", "as tried", "–"],
        ["turn (right)", "–", "as tried"],
        ["forge", "as tried", "–"],
    ):
        assert line in cells
    assert not any("look" in line for line in cells)
    assert "<script" not in shown


def test_variants_that_end_alike_share_a_line(card: Card) -> None:
    turned = [row("turn", point(0.5, 159, held=True), variant=side) for side in ("left", "up")]
    assert "turn (left, up)" in replace(card, rows=tuple(turned))._repr_html_()


def test_both_columns(card: Card) -> None:
    rows = (
        row("rebuild", both(0.5, 84, 160), both(1, None, 157), variant="permute"),
        row("noise", both(0.1, 160, 160), both(1, 90, 88)),
    )
    anchored = replace(card, rows=rows)
    page = card_page(anchored)
    text = read(page).text
    assert "Withstood at every strength tried, read with the anchor: rebuild." in text
    assert "Undone from some strength on, read with the anchor: noise." in text
    assert "With the anchor flips at" in text
    lines = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    cells = [
        [re.sub("<[^>]*>", "", c) for c in re.findall(r"<td[^>]*>(.*?)</td>", x)] for x in lines
    ]
    (rebuilt,) = (each for each in cells if each and "rebuild permute" in each[0])
    assert rebuilt[1:3] == ["0.5", "84"]
    assert rebuilt[-2:] == ["never", "157"]
    noisy = next(each for each in cells if each and "noise" in each[0])
    assert noisy[-2:] == ["1", "88"]
    said = [
        a["aria-label"] for tag, a in read(page).tags if tag == "svg" and a.get("role") == "img"
    ]
    assert len(said) == 4
    assert "rebuild, with the anchor: rebuild (permute) survives all strengths tried" in said
    assert "With the anchor flips at" not in card_page(card)
    shown = anchored._repr_html_()
    assert "with the anchor undone from" in shown


def test_kinds_that_share_a_line_tell_the_worst_with_the_anchor(card: Card) -> None:
    kinds = tuple(row("round", both(16 - i, 160, 160 - i), variant=f"int{i}") for i in range(8))
    page = card_page(replace(card, rows=kinds))
    (line,) = re.findall(r"<tr><td[^>]*><strong>round.*?</tr>", page, re.DOTALL)
    assert re.findall(r"<td[^>]*>([^<]*)</td>", line)[-2:] == ["never", "153"]


def test_bars_with_the_anchor() -> None:
    bare = replace(row("a", both(0, 90, 158), variant="x"), dial="", unit="")
    drawn = picture_of("a", [bare], 160, 150)
    assert "x: 90" in drawn
    assert "x, with the anchor: 158" in drawn


def test_where_the_anchor_flips_sooner_it_is_said_why(
    card: Card, capsys: pytest.CaptureFixture[str]
) -> None:
    sooner = row("prune", both(0.5, 155, 148), both(0.6, 140, 139))
    later = row("prune", both(0.5, 140, 155), both(0.6, 139, 140))
    never = row("prune", both(0.5, 155, 140))
    assert [each.sooner_anchored for each in (sooner, later, never)] == [True, False, True]
    assert not card.rows[0].sooner_anchored
    pages = [card_page(replace(card, rows=(each,))) for each in (sooner, later)]
    assert ["divided by its size" in " ".join(page.split()) for page in pages] == [True, False]
    assert all("(where they lie, else put back in order)" in " ".join(p.split()) for p in pages)
    for each, said in ((sooner, True), (later, False)):
        _attacked.card(replace(card, rows=(each,)))
        shown = capsys.readouterr().out
        assert "the verdict flips in 1 of 1 sweeps without the anchor, in 1 of 1 with it" in shown
        assert ("sooner with it in 1: it reads no rows divided by their size" in shown) is said
