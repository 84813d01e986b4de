"""The site is built as `make docs` builds it: strictly, completely, and without the network."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

import neuralmark

ROOT = Path(__file__).parents[2]
CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), yaml.SafeLoader)
SECTIONS = [
    "Start here",
    "For the owner",
    "For the judge",
    "For the researcher",
    "Method",
    "Threat model",
    "Glossary",
    "File formats",
    "Commands",
    "Python reference",
    "Results",
    "Design",
]
TERMS = [
    *("anchor", "boundary", "budget", "carrier", "claim", "commitment", "fingerprint", "grid"),
    *("key", "margin", "pool", "public base", "round", "strength", "trial", "verdict", "σz"),
]


CLUMSY = [
    *("only there is looked", "unmarked logits scatter by", "unmarked weights scatter by"),
    *("chance by luck", "dear and weak", "the call is off", "carriers a pool", "one a core"),
    *("a digest is no table", "two parties at least", "power failed", "keeps how far it is"),
    *("what who has", "file an attack", "file a verb", "examples a step", "weights a pool"),
]
"""Phrases that were there once and that nobody says."""

PER = re.compile(
    r"\b(?:one|two|three|four|bits|bytes|carriers|examples|rows|runs|values|weights) an?"
    r" (?:bit|carrier|core|example|head|key|layer|line|module|page|pool|round|row|step|tensor)\b"
)
"""Two carriers a pool: it is "per"."""

WRITTEN = sorted(
    path
    for folder in (
        "*.md",
        "docs/*.md",
        "src/**/*.py",
        "notebooks/*",
        "examples/*",
        "benchmarks/*.*",
    )
    for path in ROOT.glob(folder)
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    nowhere = "http://127.0.0.1:9"  # whoever asks the network fails
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ
        | {"NO_MKDOCS_2_WARNING": "1"}
        | dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), nowhere),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def pages(nav: list[Any]) -> Iterator[str]:
    """Every page that the navigation names."""
    for entry in nav:
        inner = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(inner, list):
            yield from pages(inner)
        else:
            yield inner


class Loaded(HTMLParser):
    """Collects what a browser fetches by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio"):
            self.addresses.append(given.get("src") or "")
        if tag == "link" and given.get("rel") != "canonical":
            self.addresses.append(given.get("href") or "")


def explained() -> list[str]:
    """The terms of the glossary."""
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    return [term.lower() for term in re.findall(r"^\*\*(.+)\*\*\n:   ", glossary, re.MULTILINE)]


def test_the_navigation_is_the_one_that_was_agreed() -> None:
    assert [next(iter(entry)) for entry in CONFIG["nav"]] == SECTIONS


@pytest.mark.parametrize("page", list(pages(CONFIG["nav"])))
def test_every_page_of_the_navigation_is_built(page: str, site: Path) -> None:
    built = re.sub(r"README\.md$", "index.md", page).removesuffix(".md") + ".html"
    assert (site / built).is_file(), page


def test_no_page_is_left_out_of_the_navigation() -> None:
    named = set(pages(CONFIG["nav"]))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= named


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = Loaded()
        loaded.feed(page.read_text(encoding="utf-8"))
        foreign = [where for where in loaded.addresses if re.match(r"(\w+:)?//", where)]
        assert not foreign, f"{page.relative_to(site)}: {foreign}"
    for sheet in site.rglob("*.css"):
        foreign = re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)\"']+", sheet.read_text())
        assert not foreign, f"{sheet.relative_to(site)}: {foreign}"


@pytest.mark.parametrize("term", TERMS)
def test_the_glossary_explains(term: str) -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    explained = [
        line.lower() for line in re.findall(r"^\*\*(.+)\*\*\n:   ", glossary, re.MULTILINE)
    ]
    assert any(line == term or line.startswith(f"{term} (") for line in explained)


def test_pages_code_and_notebooks_speak_plainly() -> None:
    for path in WRITTEN:
        words = " ".join(path.read_text(encoding="utf-8").split()).lower()
        found = [phrase for phrase in CLUMSY if phrase in words]
        found += [each[0] for each in PER.finditer(words) if "how many" not in before(words, each)]
        assert not found, f"{path}: {found}"


def before(words: str, found: re.Match[str]) -> str:
    """What stands just before a place in a text."""
    return words[max(0, found.start() - 10) : found.start()]


@pytest.mark.parametrize("name", ["judge", "owner", "researcher"])
def test_the_notebooks_are_on_the_site(name: str, site: Path) -> None:
    assert (site / "notebooks" / f"{name}.ipynb").is_file()
    assert f'href="notebooks/{name}.ipynb"' in (site / f"{name}.html").read_text("utf-8")


def test_the_glossary_is_in_order() -> None:
    spelt = [term.replace("σz (sigma z)", "sigma z").replace("λ", "lambda") for term in explained()]
    assert spelt == sorted(spelt)


def test_the_reference_has_every_public_name(site: Path) -> None:
    page = (site / "reference.html").read_text(encoding="utf-8")
    for name in neuralmark.__all__:
        if name in ("attacks", "errors", "schemes"):
            inner = getattr(neuralmark, name)
            listed = getattr(inner, "__all__", ["NeuralMarkError", "UsageError", "InputError"])
            assert all(f'id="neuralmark.{name}.{each}"' in page for each in listed), name
        elif name != "__version__":
            assert f'id="neuralmark.{name}"' in page, name
    assert "neuralmark.__version__" in page


def test_links_out_of_docs_are_right_on_the_site() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import site_hooks  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    assert (
        site_hooks.site_link("results/README.md", "../../CONTRIBUTING.md") == "../contributing.md"
    )
    assert site_hooks.site_link("contributing.md", "docs/design.md") == "design.md"
    assert site_hooks.site_link("training.md", "../examples") == "examples.md"
    assert site_hooks.site_link("training.md", "lora.md") == "lora.md"
    assert site_hooks.site_link("owner.md", "../notebooks/owner.ipynb") == "notebooks/owner.ipynb"
    assert site_hooks.site_link("index.md", "https://example.org/x") == "https://example.org/x"
