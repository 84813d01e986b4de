"""What the site shows beyond docs/: pages that live at the top of the repository, and examples.

They stay where readers of the repository look for them. The site gets copies, and links between
them and docs/ are written anew.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {
    "benchmarks.md": "benchmarks/README.md",
    "changes.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
"""Pages of the site, and the files of the repository that they are copied from."""

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

_LINK = re.compile(r"(?<=\]\()([^)#\s]+)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and every file of examples/ and notebooks/."""
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    for given in (*EXAMPLES, *NOTEBOOKS):
        name = f"{given.parent.name}/{given.name}"
        files.append(File.generated(config, name, abs_src_path=str(given)))
    files.append(File.generated(config, "examples.md", content=examples_page()))
    return files


def examples_page() -> str:
    """Every example, as it stands."""
    parts = ["# Examples", "Whole scripts, each at most 60 lines. The tests run them."]
    for script in EXAMPLES:
        text = script.read_text("utf-8").rstrip()
        parts.append(f"## {script.name}\n\n```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are right in the repository become links that are right on the site."""
    here = page.file.src_uri
    return _LINK.sub(lambda found: site_link(here, found[1]), markdown)


def site_link(page: str, target: str) -> str:
    """A link of a page, as it has to be on the site.

    >>> site_link("results/README.md", "../../CONTRIBUTING.md")
    '../contributing.md'
    >>> site_link("contributing.md", "docs/design.md")
    'design.md'
    """
    if "://" in target:
        return target
    source = PAGES.get(page, f"docs/{page}")
    meant = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    homes = {"examples": "examples.md"} | {source: page for page, source in PAGES.items()}
    placed = homes.get(meant, meant.removeprefix("docs/"))
    return posixpath.relpath(placed, posixpath.dirname(page) or ".")
