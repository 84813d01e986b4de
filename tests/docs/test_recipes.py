"""The recipes of CONTRIBUTING, followed to the letter in a copy of the package."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import neuralmark
from tests.support.commands import PYTHON

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^( *)```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def recipe(heading: str) -> str:
    """The first Python block under a heading, without its indentation."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.split(f"### {heading}\n")[1].split("\n### ")[0]
    found = FENCE.search(section)
    assert found is not None, heading
    indent = len(found[1])
    return "".join(line[indent:] or "\n" for line in found[2].splitlines(keepends=True))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the two files that the recipes add, and nothing else edited."""
    folder = tmp_path_factory.mktemp("house")
    package = folder / "neuralmark"
    source = Path(neuralmark.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "schemes" / "signmark.py").write_text(recipe("A scheme"))
    (package / "attacks" / "round_off.py").write_text(recipe("An attack"))
    experiments = package / "lab" / "experiments"
    (experiments / "ten_rounds.py").write_text(recipe("An experiment"))
    shutil.copytree(
        ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__", "golden")
    )
    return folder


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [PYTHON, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("battery", "name"), [("test_schemes", "signmark"), ("test_attacks", "round-off")]
)
def test_the_battery_passes_on_what_a_recipe_adds(house: Path, battery: str, name: str) -> None:
    done = run(
        house,
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", name),
        f"tests/conformance/{battery}.py",
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 5, done.stdout


def test_an_experiment_is_one_file(house: Path) -> None:
    common = ("--preset", "smoke", "--results", str(house / "results"))
    listed = run(house, "-m", "neuralmark", "lab", "list", "--preset", "smoke")
    assert "ten-rounds" in listed.stdout
    done = run(house, "-m", "neuralmark", "lab", "run", "ten-rounds", *common)
    assert done.returncode == 0, done.stderr
    told = run(house, "-m", "neuralmark", "lab", "report", *common, "-o", str(house / "report"))
    assert told.returncode == 0, told.stderr
    assert "| 10 | 0." in (house / "report" / "results.md").read_text()


def test_the_command_line_knows_what_a_recipe_adds(house: Path) -> None:
    key = str(house / "k.nmkey")
    made = run(house, "-m", "neuralmark", "key", "new", key, "--scheme", "signmark")
    assert "passphrase" in made.stderr.lower()
    new = ("key", "new", key, "--scheme", "signmark", "--no-passphrase", "--json")
    made = run(house, "-m", "neuralmark", *new)
    assert made.returncode == 0, made
    assert '"signmark"' in made.stdout
    listed = run(house, "-m", "neuralmark", "attack", "list")
    assert "round-off" in listed.stdout
    helped = run(house, "-m", "neuralmark", "attack", "round-off", "--help")
    assert "--decimals" in helped.stdout
