"""Tiny runs of the benchmarks that need nothing but the library, so that they do not rot."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(module: str, *arguments: str, cwd: Path, speed: str = "") -> dict[str, object]:
    """Run a benchmark with --json from another folder: it meets its targets.

    A target of `speed` may be missed: other work on the machine slows one side more than the other.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    command = [sys.executable, "-m", f"benchmarks.{module}", "--json", *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in ((0, 1) if speed else (0,)), done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    missed = [each["name"] for each in document["targets"] if not each["passed"]]
    assert missed in ([], [speed]), done.stdout
    return document


def test_fuzzing_finds_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")  # makes the seeds of the torch formats
    document = run("fuzz", "--inputs", "3400", "--processes", "1", cwd=tmp_path)
    assert document["passed"]


def test_random_keys_are_fair_coins(tmp_path: Path) -> None:
    document = run("random_keys", "--keys", "1000", "--processes", "1", cwd=tmp_path)
    assert document["passed"]


def test_schemes_of_weights(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    arguments = ["--parts", "scaling,search", "--tries", "50"]
    document = run("weight_schemes", *arguments, cwd=tmp_path)
    assert document["passed"]


def test_forgers_have_the_same_luck_in_every_run(tmp_path: Path) -> None:
    runs = [run("forging", "--only", "order, 128", cwd=tmp_path) for _ in range(2)]
    assert runs[0]["passed"]
    assert runs[0]["targets"] == runs[1]["targets"]


def test_a_part_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    weight_schemes = pytest.importorskip("benchmarks.weight_schemes")
    for words in (["--parts", "sine"], ["--help"]):
        with pytest.raises(SystemExit):
            weight_schemes.main(words)
        told = capsys.readouterr()
        assert ", ".join(weight_schemes.PARTS) in " ".join((told.out + told.err).split())


def test_survival_on_a_small_tensor(tmp_path: Path) -> None:
    document = run("survival", "--side", "1024", "--keys", "1", cwd=tmp_path)
    tables = document["tables"]
    assert isinstance(tables, list)
    assert len(tables) == 2


def test_neighbouring_releases_show_nothing(tmp_path: Path) -> None:
    arguments = ["--only", "neighbours", "--weights", "2e6", "--work", str(tmp_path / "work")]
    document = run("locate", *arguments, cwd=tmp_path)
    assert document["passed"]


def test_a_url_costs_the_header_and_the_marked_tensor(tmp_path: Path) -> None:
    arguments = ["--gigabytes", "1", "--repeats", "1"]
    document = run("remote", *arguments, cwd=tmp_path, speed="speed, far")
    targets = document["targets"]
    assert isinstance(targets, list)
    assert [each["name"] for each in targets] == ["sent / needed", "speed, far"]
