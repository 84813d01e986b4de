"""The demo does what the README says of it."""

import json
from pathlib import Path

import pytest

from neuralmark.demo.page import Exposed
from neuralmark.demo.run import run


def test_the_demo_marks_verifies_damages_and_reports(tmp_path: Path) -> None:
    said: list[str] = []
    outcome = run(tmp_path / "demo", said.append)
    assert outcome.verdict.matched == 256
    assert not outcome.foreign.verified
    unmarked, marked, *damaged = outcome.rows
    assert unmarked.accuracy > 0.94
    assert abs(marked.accuracy - unmarked.accuracy) < 0.02
    assert sum(bool(row.verified) for row in damaged) >= 4
    clean, gradient, projection, published = outcome.trained
    assert clean.verdict is None
    for trained in (gradient, projection, published):
        assert trained.verdict is not None
        assert trained.verdict.verified
        assert trained.history[-1].accuracy > clean.history[-1].accuracy - 0.03
    assert projection.verdict is not None
    assert projection.verdict.matched == 256
    assert all(epoch.rate == 1 for epoch in projection.history)
    assert projection.moved < gradient.moved
    as_published, *ours = outcome.exposures
    assert as_published.verified == (True, False)
    assert as_published.found.startswith("stood out: ")
    assert len(ours) == 3
    for exposed in ours:
        assert exposed.verified == (True, True)
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    for words in (
        "Marked while training",
        "embedding loss",
        "random pruning",
        "<svg",
        "A thief looks",
    ):
        assert words in page
    assert (tmp_path / "demo" / "verdict.html").exists()
    claim = json.loads((tmp_path / "demo" / "marked.safetensors.claim.json").read_text())
    assert claim["fingerprint"] == outcome.verdict.fingerprint
    assert any("training" in line for line in said)


def test_a_second_run_in_the_same_folder_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unseen = Exposed("a mark", (1.0, 1.0), (256, 256), (True, True), 0.0, "nothing")
    monkeypatch.setattr("neuralmark.demo.digits.EPOCHS", 1)
    monkeypatch.setattr("neuralmark.demo.exposing.expose", lambda *_: unseen)
    for _ in range(2):
        assert run(tmp_path, lambda _: None).verdict.matched == 256
