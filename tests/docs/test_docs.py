"""The documentation is true: generated pages are current, examples run, links lead somewhere."""

import re
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

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


@pytest.mark.parametrize("page", ["cli.md", "errors.md", "schemes.md"])
def test_generated_pages_are_current(page: str) -> None:
    written = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert written == generator().PAGES[page](), "run 'make docs'"


def test_every_command_in_the_readme_exists() -> None:
    known = {" ".join(words) for words, _ in generator().walk(["neuralmark"], command())}
    for verb in re.findall(r"neuralmark ([a-z]+(?: (?:new|show|import)\b)?)", README):
        assert f"neuralmark {verb}" in known, verb


def test_pages_count_the_attacks_that_there_are() -> None:
    from neuralmark import attacks

    counts = {
        str(page.relative_to(ROOT)): set(
            re.findall(r"\b(\d+) attacks\b", page.read_text(encoding="utf-8"))
        )
        for page in PAGES
        if page.name != "CHANGELOG.md"  # what it tells was so at the time
    }
    told = {page: count for page, count in counts.items() if count}
    assert told.keys() >= {"README.md", "docs/researcher.md"}
    assert set().union(*told.values()) == {str(len(attacks.names()))}, "see 'attack list'"


def command() -> object:
    from neuralmark.cli import neuralmark as group

    return group


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
