"""The page of a scan."""

import base64
import hashlib
import re
from pathlib import Path

from neuralmark.reports.render.page import SORTING, page
from neuralmark.reports.scan import scan_page
from neuralmark.scanning.contract import ScanRow
from neuralmark.scanning.rounds import ScanResult
from tests.support.pages import HOSTILE, read


def result(**more: object) -> ScanResult:
    given: dict[str, object] = {
        **{"folder": Path("out"), "rows_file": Path("out/rows.jsonl"), "targets": 3, "marks": 2},
        **{"counts": {"verified": 1, "error": 1, "nothing": 1}, "new": {"verified": 1}},
        **{"correction": "2 marks x 3 targets", **more},
    }
    return ScanResult(**given)  # type: ignore[arg-type]


FOUND = ScanRow(
    HOSTILE, "verified", HOSTILE, "nm1-x", HOSTILE, matched=256, bits=256, bound_log2=-240.0
)
ROWS = [
    FOUND,
    ScanRow(HOSTILE, "error", HOSTILE, error="MalformedError"),
    ScanRow("b.npz", "nothing", "no mark", weights=1234, format="npz"),
]


def test_it_shows_findings_and_the_rest() -> None:
    seen = read(scan_page(result(), ROWS, {0: "verdicts/0001.html"}))
    assert "1 finding verified" in seen.text
    assert "256 of 256" in seen.text
    assert "MalformedError" in seen.text
    assert "1,234" in seen.text
    assert "2 marks x 3 targets" in seen.text
    assert ("a", {"href": "verdicts/0001.html"}) in seen.tags
    assert not [tag for tag, _ in seen.tags if tag == "img"]
    assert len([tag for tag, _ in seen.tags if tag == "script"]) == 1


def test_only_the_script_that_sorts_may_run() -> None:
    text = scan_page(result(), ROWS)
    digest = base64.b64encode(hashlib.sha256(SORTING.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script == SORTING
    assert "<script" not in page("t", "")


def test_nothing_found_and_rounds() -> None:
    counts = {"nothing": 2}
    text = scan_page(result(counts=counts, new=counts, round=3, passed_over=("k: why",)), ROWS[2:])
    seen = read(text)
    assert "Nothing verified" in seen.text
    assert "round 3" in seen.text
    assert "2 new" in seen.text
    assert "k: why" in seen.text
    assert "and 1 more" in seen.text
    assert "What was not found, or went wrong" not in scan_page(
        result(counts={"verified": 1}), [FOUND]
    )


def test_findings_are_counted_as_such() -> None:
    many = read(scan_page(result(counts={"verified": 12}, marks=3), [FOUND] * 12)).text
    assert "12 findings verified" in many
    assert "3 marks looked for in 3 models" in many
    one = read(scan_page(result(counts={"verified": 1}, marks=1, targets=1), [FOUND])).text
    assert "1 finding verified" in one
    assert "1 mark looked for in 1 model." in one


def test_it_says_what_was_put_in_order() -> None:
    said = {
        align: read(scan_page(result(align=align), ROWS)).text
        for align in ("alike", "all", "never")
    }
    assert "models that are not like an anchor were not put back in order" in said["alike"]
    assert "no model was put back in order" in said["never"]
    assert "not like an anchor" not in said["never"]
    assert "put back in order" not in said["all"]


def test_a_tile_for_each_outcome_and_what_came_since() -> None:
    tiles = scan_page(result(), ROWS).split('<dl class="tiles"')[1].split("</dl>")[0]
    assert tiles.count("<div>") == 5
    shown = scan_page(result(added=2), ROWS)
    assert "2 models were added after this scan was begun" in shown
