"""Every notebook runs from top to bottom in an empty folder, and shows what it says it shows."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
NAMES = ("judge", "owner", "researcher")


def read(name: str) -> Any:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that runs a notebook and gives its outputs, by kind."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))  # the package under test (worktrees)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))

    def execute(name: str) -> dict[str, list[str]]:
        notebook = read(name)
        NotebookClient(
            notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
        ).execute()
        return shown(notebook)

    return execute


def shown(notebook: Any) -> dict[str, list[str]]:
    """What the cells of an executed notebook show: printed text, and displayed data by type."""
    found: dict[str, list[str]] = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                found.setdefault(output.name, []).append(output.text)
            for kind, value in output.get("data", {}).items():
                found.setdefault(kind, []).append(str(value))
    return found


def captions(output: dict[str, list[str]]) -> list[str]:
    """The titles of the tables, in order."""
    return [page.partition("<b>")[2].partition("</b>")[0] for page in output["text/html"]]


def test_they_are_the_three() -> None:
    assert sorted(path.stem for path in NOTEBOOKS.glob("*")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_they_are_saved_without_outputs(name: str) -> None:
    for cell in read(name).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("name", NAMES)
def test_they_are_linked_and_link_back(name: str) -> None:
    assert f"](../notebooks/{name}.ipynb)" in (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    assert f"](notebooks/{name}.ipynb)" in (ROOT / "README.md").read_text("utf-8")
    assert f"](../docs/{name}.md)" in read(name).cells[0].source


def test_the_owner_proves_the_mark(run: Any) -> None:
    output = run("owner")
    assert captions(output) == [
        *("verified", "not verified", "verified", "what this mark withstands")
    ]
    accuracies = [line for text in output["stdout"] for line in text.splitlines()]
    kept = [float(line.split()[1].rstrip("%")) for line in accuracies if "accuracy" in line]
    assert len(kept) == 2
    assert min(kept) > 95
    assert "stderr" not in output


def test_the_judge_rules_for_the_owner(run: Any) -> None:
    output = run("judge")
    assert captions(output) == ["verified", "verified", "owner: Acme", "matches unproven"]
    assert "'view': 'public'" in output["text/plain"][-1]
    assert "stderr" not in output


def test_the_researcher_plots_three_schemes(run: Any) -> None:
    output = run("researcher")
    assert len(output["image/png"]) == 1
    printed = "".join(output["stdout"])
    for name in ("neuralmark", "vanillamark", "votemark"):
        assert f"{name:12} not verified from" in printed
    assert captions(output) == ["what this mark withstands"]
    assert "stderr" not in output
