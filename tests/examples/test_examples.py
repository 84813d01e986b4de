"""Every example runs as a stranger would run it, and ends in a verified mark."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import clean_environment
from tests.support.processes import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path, *options: str) -> str:
    """Its output. One thread: the tests may share the machine."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *options],
        cwd=folder,
        env=clean_environment(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("mode", ["gradient", "projection"])
def test_plain(tmp_path: Path, mode: str) -> None:
    out = run("plain.py", tmp_path, "--mode", mode)
    assert "verified: 256/256 bits, 2^-255" in out
    assert (tmp_path / "plain-output.claim.json").exists()


def test_lightning(tmp_path: Path) -> None:
    assert "verified: 256/256 bits" in run("lightning_digits.py", tmp_path)
    assert list((tmp_path / "lightning-output").rglob("metrics.csv"))


def test_trainer_and_lora(tmp_path: Path) -> None:
    out = run("trainer_lora.py", tmp_path)
    assert re.search(r"adapter: \d+ of 160 bits match; \d+ would have sufficed", out)
    assert re.search(r"merged: 160 of 160 bits match; \d+ would have sufficed", out)


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 60
