"""What is there of the data sets, what is missing, and fetching it from a real server."""

import zipfile
from pathlib import Path

import pytest

from neuralmark.lab import experiments
from neuralmark.lab.execution import datasets
from neuralmark.lab.execution.datasets import look, needed
from neuralmark.lab.plan.preset import load_preset
from neuralmark.text import e2e
from neuralmark.zoo.fetching import Archive
from tests.support import layouts
from tests.support.commands import call
from tests.support.texts import ROWS


def test_what_experiments_need() -> None:
    def of(name: str, preset: str) -> list[str]:
        return needed(experiments.get(name).runs(load_preset(preset)))

    assert of("fidelity-text", "cpu") == ["e2e"]
    assert of("finetune-marked", "cpu") == ["cifar10", "cifar100"]
    assert of("overlap", "paper") == []
    assert of("pruning", "smoke") == ["digits"]
    assert of("finetune-all", "paper") == ["caltech101", "caltech256", "cifar10", "cifar100"]


def test_complete_partial_missing_damaged(tmp_path: Path) -> None:
    layouts.cifar10(tmp_path)
    layouts.caltech(tmp_path / "caltech101" / "101_ObjectCategories", {"anchor": 3, "bass": 4})
    assert look("digits", None).state == "complete"
    found = look("cifar10", tmp_path)
    assert found.state == "partial"
    assert "of 50,000 training images" in found.detail
    assert look("caltech101", tmp_path).detail.endswith("7 of 8,677 images; 2 of 101 classes")
    for name in ("cifar100", "tinyimagenet", "caltech256", "e2e"):
        gone = look(name, tmp_path)
        assert gone.state == "missing"
        assert "from https://" in gone.detail
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"nothing")
    assert look("cifar10", tmp_path).state == "damaged"
    assert look("cifar10", None).state == "missing"


def packed(path: Path, rows: tuple[e2e.E2ERow, ...]) -> None:
    """E2E as it is published: a folder of tables in a zip."""
    text = "mr,ref\n" + "".join(f'"{row.meaning}","{row.reference}"\n' for row in rows)
    with zipfile.ZipFile(path, "w") as book:
        for file in e2e.FILES.values():
            book.writestr(f"e2e-dataset/{file}", text)


def test_e2e_is_fetched(
    server: tuple[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, served = server
    packed(served / "e2e-dataset.zip", ROWS)
    archive = Archive(f"{address}/e2e-dataset.zip", "")
    monkeypatch.setattr(datasets, "_E2E_ARCHIVE", archive)
    folder = tmp_path / "data"
    folder.mkdir()
    given = ("lab", "data", "fidelity-text", "--data", folder, "--json")
    before = call(*given)
    assert (before.code, before.json["data"][0]["state"]) == (1, "missing")
    after = call(*given, "--download")
    assert (after.code, after.json["data"][0]["state"]) == (0, "partial")
    assert "12 rows (42061 as published)" in after.json["data"][0]["detail"]
    assert e2e.load(folder, "dev").rows == ROWS


def test_downloads_need_a_folder() -> None:
    said = call("lab", "run", "fidelity-data", "--download")
    assert "--download needs --data DIR" in said.failed(2, "ParameterError")


def test_an_experiment_without_runs_at_a_scale_is_refused(tmp_path: Path) -> None:
    given = ("--preset", "cpu", "--results", tmp_path / "r")
    said = call("lab", "run", "fidelity-architectures", *given)
    assert "has no runs at the scale of cpu" in said.failed(2, "ParameterError")
    assert not (tmp_path / "r").exists()
