"""The documentation is true: generated pages are current, examples run, links lead somewhere."""

import os
import re
import subprocess
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import save_file

import neuralmark

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])


def generator() -> ModuleType:
    spec = util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["cli.md", "errors.md"])
def test_generated_pages_are_current(page: str) -> None:
    written = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert written == generator().PAGES[page](), "run 'make docs'"


def test_every_command_in_the_readme_exists() -> None:
    known = {" ".join(words) for words, _ in generator().walk(["neuralmark"], command())}
    for verb in re.findall(r"neuralmark ([a-z]+(?: (?:new|show|import)\b)?)", README):
        assert f"neuralmark {verb}" in known, verb


def command() -> object:
    from neuralmark.cli import neuralmark as group

    return group


def block(heading: str, language: str) -> str:
    """The first fenced block of a language below a heading."""
    below = README.split(f"## {heading}", 1)[1]
    found = re.search(rf"```{language}\n(.*?)```", below, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    weights = np.random.default_rng(0).standard_normal((1200, 1000)).astype(np.float32)
    save_file({"layer.weight": weights}, tmp_path / "model.safetensors")
    return tmp_path


def test_the_readme_commands_run_as_they_stand(folder: Path) -> None:
    environment = os.environ | {
        "NEURALMARK_PASSPHRASE": "secret",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    script = block("For the owner: three commands", "sh")
    script += "cp marked.safetensors suspect.safetensors\n" + block("For the judge", "sh")
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "VERIFIED" in done.stdout
    assert '"verified": true' in done.stdout
    assert (folder / "verdict.html").exists()


def test_the_readme_disputes_and_attacks_run_as_they_stand(folder: Path) -> None:
    environment = os.environ | {
        "NEURALMARK_PASSPHRASE": "secret",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    dispute = README.split("## For the judge", 1)[1].split("```sh\n")[2].split("```")[0]
    suite = block("For the researcher", "sh").replace("--report", "--only noise --report")
    script = "\n".join(
        [
            block("For the owner: three commands", "sh"),
            "neuralmark key new bandit.nmkey",
            "neuralmark embed marked.safetensors --key bandit.nmkey -o bandit.safetensors",
            "cp bandit.safetensors suspect.safetensors",
            dispute,
            suite,
        ]
    )
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "OWNER: Acme" in done.stdout
    assert "forge-identity" in done.stdout
    assert (folder / "ruling.html").exists()
    assert (folder / "card.html").exists()


def test_the_readme_python_runs_as_it_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    exec(compile(block("For the owner: three commands", "python"), "README.md", "exec"), {})
    assert "True 256 256 -255.0" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_public_surface_is_what_it_says() -> None:
    assert set(neuralmark.__all__) == set(dir(neuralmark))
    for name in neuralmark.__all__:
        assert getattr(neuralmark, name) is not None
    with pytest.raises(AttributeError):
        neuralmark.nonsense  # noqa: B018
