"""The house: doors marked private are used by their own package only, and every room has a sign."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "neuralmark"


def imported(file: Path) -> Iterator[str]:
    """Dotted names of what a module imports from the package."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("neuralmark"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("neuralmark"))


def foreign(file: Path) -> Iterator[str]:
    """What a module imports from behind a private door of another package."""
    here = ("neuralmark", *file.relative_to(SOURCE).parts[:-1])
    for name in imported(file):
        parts = name.split(".")
        private = (i for i, part in enumerate(parts) if part.startswith("_") and part[1:2] != "_")
        first = next(private, None)
        if first is not None and here[:first] != tuple(parts[:first]):
            yield name


def test_private_modules_are_imported_by_their_own_package_only() -> None:
    found = {
        f"{file.relative_to(SOURCE)}: {name}"
        for file in SOURCE.rglob("*.py")
        for name in foreign(file)
    }
    assert not found


def test_every_module_says_what_it_is_for() -> None:
    for file in SOURCE.rglob("*.py"):
        told = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
        assert told, file


def test_the_top_holds_rooms_not_furniture() -> None:
    top = {file.name for file in SOURCE.glob("*.py")}
    assert top == {
        *("__init__.py", "__main__.py", "api.py", "errors.py", "registry.py"),
        *("torchvision_loading.py", "version.py"),
    }


def test_the_map_shows_every_room() -> None:
    told = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    for package in SOURCE.rglob("__init__.py"):
        name = package.parent.name
        assert f"{name}/" in told, name


SAME_ON_PURPOSE = {"NeuralMarkCallback"}
"""One for each framework, imported from its own module."""


def test_class_names_are_found_by_grep() -> None:
    names = Counter(
        node.name
        for file in SOURCE.rglob("*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in names.items() if count > 1} == SAME_ON_PURPOSE


def messages(file: Path) -> Iterator[str]:
    """The strings of a module, without its docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in told:
            yield str(node.value)


def test_the_library_speaks_python() -> None:
    """Options belong to the command line, which translates (cli/_language)."""
    option = re.compile(r"(?<![\w-])--[a-z]|\buse -o\b")
    shown = {"cli", "reports", "demo"}
    found = [
        f"{file.relative_to(SOURCE)}: {text!r}"
        for file in SOURCE.rglob("*.py")
        if file.relative_to(SOURCE).parts[0] not in shown
        for text in messages(file)
        if option.search(text)
    ]
    assert not found
