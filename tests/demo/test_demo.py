"""The demo does what the README says of it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from neuralmark.cli import neuralmark
from neuralmark.demo.run import COURSE, run

HIDDEN = (
    *("torchvision", "PIL", "matplotlib", "transformers", "peft", "accelerate", "lightning"),
    *("gguf", "ray", "deepspeed", "sacrebleu", "pandas"),
)
"""What the extra `demo` does not bring."""


def test_the_demo_marks_verifies_damages_and_reports(tmp_path: Path) -> None:
    said: list[str] = []
    outcome = run(tmp_path / "demo", said.append)
    assert outcome.verdict.matched == 256
    assert not outcome.foreign.verified
    unmarked, marked, *damaged = outcome.rows
    assert unmarked.verdict is None
    assert unmarked.accuracy is not None
    assert marked.accuracy is not None
    assert unmarked.accuracy > 0.96
    assert abs(marked.accuracy - unmarked.accuracy) < 0.02
    assert sum(row.verdict is not None and row.verdict.verified for row in damaged) >= 4
    for results in outcome.curves.values():
        assert results[0].change == 0
        assert results[0].survived
        assert results[-1].strength > results[0].strength
    clean, gradient, projection, published = outcome.trained
    assert clean.verdict is None
    for trained in (gradient, projection, published):
        assert trained.verdict is not None
        assert trained.verdict.verified
        assert trained.history[-1]["accuracy"] > clean.history[-1]["accuracy"] - 0.03
    assert projection.verdict is not None
    assert projection.verdict.matched == 256
    assert all(epoch["rate"] == 1 for epoch in projection.history)
    assert projection.moved < gradient.moved
    as_published, *ours = outcome.exposures.values()
    assert as_published.before is not None
    assert as_published.before.verified
    assert not as_published.survived
    assert as_published.note.startswith("stood out: ")
    assert len(ours) == 3
    assert all(exposed.survived for exposed in ours)
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
    monkeypatch.setattr("neuralmark.demo.run.COURSE", replace(COURSE, epochs=1))
    monkeypatch.setattr("neuralmark.demo.run.CURVES", {})
    assert run(tmp_path, lambda _: None).verdict.matched == 256
    result = CliRunner().invoke(neuralmark, ["demo", "-o", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["rows"][0]["matched"] is None
    assert told["rows"][1]["matched"] == told["verdict"]["matched"] == 256
    assert len(told["trained"]) == len(told["exposed"]) == 4


def test_the_demo_needs_its_extra_only(tmp_path: Path) -> None:
    """Torch and scikit-learn; everything else that is optional is hidden from it."""
    script = f"""
import sys
for name in {HIDDEN!r}:
    sys.modules[name] = None
from dataclasses import replace
from pathlib import Path
from neuralmark.demo import run
run.COURSE = replace(run.COURSE, epochs=1)
run.CURVES = {{}}
assert run.run(Path({str(tmp_path)!r}), lambda _: None).verdict.verified
"""
    subprocess.run([sys.executable, "-c", script], check=True)
