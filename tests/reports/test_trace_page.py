"""The page of a trace: well-formed, true to the trace, safe against hostile names."""

from dataclasses import replace
from typing import Any

import pytest

from neuralmark import Parameters, Trace
from neuralmark.records import MarkRead
from neuralmark.reports.trace import trace_page
from tests.support.pages import HOSTILE, read


def found(buyers: int = 3, best: int = 250) -> Trace:
    reads = [MarkRead(f"buyer {n}", f"nm1-{n}", 120 + n % 20, None) for n in range(buyers)]
    reads[0] = replace(reads[0], aligned=best)
    owner = MarkRead("", "nm1-owner", 256, 256)
    return Trace("some/suspect.npz", Parameters(), owner, tuple(reads), 2, "as it was read")


def test_it_says_who_is_named() -> None:
    told = read(trace_page(found()))
    for words in (
        *("Named: “buyer 0”", "suspect.npz", "250", "in 6 ways of looking", "not read"),
        *("boundary 228", "as it was read", "whose copies went into the suspect", "nm1-2"),
    ):
        assert words in told.text, words


def test_nobody() -> None:
    told = read(trace_page(found(best=150)))
    assert "No buyer is named" in told.text
    assert "nobody is named" in told.text


def test_an_anchor_is_told_where_there_is_one() -> None:
    told = "from which the keys are derived"
    assert told not in read(trace_page(found())).text
    shown = read(trace_page(replace(found(), anchor="ab" * 32))).text
    assert told in shown
    assert "ab" * 32 in shown


def test_the_picture_has_a_bar_for_each_buyer() -> None:
    bars = [tag for tag, given in read(trace_page(found())).tags if given.get("height") == "12"]
    assert len(bars) == 3
    many = read(trace_page(found(buyers=500)))
    assert len([t for t, given in many.tags if given.get("height") == "12"]) == 60
    assert "The 60 with the most of 500." in many.text


def test_many_names_are_counted() -> None:
    reads = tuple(MarkRead(f"buyer {n}", f"nm1-{n}", 256, None) for n in range(9))
    assert "and 4 more" in read(trace_page(replace(found(), buyers=reads))).text


@pytest.mark.parametrize("place", ["suspect", "reason", "identical", "label"])
def test_hostile_names_stay_text(place: str) -> None:
    if place == "label":
        reads = tuple(replace(each, label=HOSTILE) for each in found().buyers[:1])
        page = trace_page(replace(found(), buyers=reads))
    else:
        wrong: dict[str, Any] = {place: HOSTILE}
        page = trace_page(replace(found(), **wrong))
    told = read(page)
    assert not {"script", "img"} & {tag for tag, _ in told.tags}
    assert "\u202e" not in page
    page.encode()
