"""The house: doors marked private are used by their own package only, and every room has a sign."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from neuralmark import Key
from tests.support import luck
from tests.support.models import QUICK

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "neuralmark"
TESTS = ROOT / "tests"


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


def section(title: str) -> str:
    """A section of the map."""
    told = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    return told.split(f"## {title}\n")[1].split("\n## ")[0]


def at(place: str) -> Path | None:
    """The file of a module or package that the map names."""
    found = (SOURCE / f"{place}.py", SOURCE / place / "__init__.py")
    return next((file for file in found if file.exists()), None)


def calls(caller: str, place: str) -> bool:
    """Whether a module imports another, or it through the package that hands it out."""
    dotted = "neuralmark." + place.replace("/", ".")
    names = set(imported(at(caller) or SOURCE))
    for name in tuple(names):
        package = at(name.removeprefix("neuralmark.").rpartition(".")[0].replace(".", "/") or "?")
        names |= set(imported(package)) if package and package.stem == "__init__" else set()
    return any(f"{name}.".startswith(f"{dotted}.") for name in names)


def test_journeys_go_the_way_the_map_says() -> None:
    journeys = re.findall(r"\*\*(.+?)\*\*: (.+?)(?=\*\*|\Z)", section("Journeys"), re.DOTALL)
    names = {name for name, _ in journeys}
    assert names >= {"verify", "embed", "attach", "attack suite", "arbitrate", "lab run"}
    for name, way in journeys:
        places = re.findall(r"`([\w/]+)`", way)
        for i, place in enumerate(places):
            assert at(place), f"{name}: there is no {place}"
            known = i == 0 or any(calls(caller, place) for caller in places[:i])
            assert known, f"{name}: nothing before {place} calls it"
            back = [each for each in places[:1] if each != place and calls(place, each)]
            assert not back, f"{name}: {place} calls {back}"


def test_changes_go_to_files_that_are_there() -> None:
    for path in re.findall(r"`([\w/]+\.py)`", section("Where a change goes")):
        assert (SOURCE / path).exists() or (SOURCE / path).stem == "NAME", path


OWN_FILES = {
    *("attacks", "schemes", "checkpoints", "cli", "integrations"),
    *("experiments", "families", "models", "sets", "quantised"),
}
"""Rooms whose files are named by what they hold: an attack, a format, a verb, a network."""


def test_the_map_names_every_module() -> None:
    words = set(re.findall(r"\w+", section("Rooms")))
    for file in SOURCE.rglob("*.py"):
        room = file.relative_to(SOURCE).parts[:-1]
        if not room or room[-1] in OWN_FILES or file.stem.startswith("_"):
            continue
        assert file.stem in words, file


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


WORDS = {
    *("mode", "kind", "status", "mapping", "presence", "spread", "target"),
    *("filter", "pooling", "orientation", "scaling", "scope", "classifier", "engine"),
}
"""What such a name stands for is one of a few words."""

OPEN = {
    "checkpoints/readers/torch_tables.py: kind",  # torch's class, whatever a file calls it
    "reports/render/svg.py: kind",  # a class of CSS
}


def annotated(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names of fields and parameters, and what they are said to be."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.annotation
        elif isinstance(node, ast.arg) and node.annotation is not None:
            yield node.arg, node.annotation


def test_modes_kinds_and_statuses_are_one_of_a_few_words() -> None:
    text = {"str", "ClassVar[str]", "str | None"}
    found = {
        f"{file.relative_to(SOURCE)}: {name}"
        for file in SOURCE.rglob("*.py")
        for name, kind in annotated(ast.parse(file.read_text(encoding="utf-8")))
        if name in WORDS and ast.unparse(kind) in text
    }
    assert found <= OPEN, found - OPEN


OPTIONS = {"options", "schedule", "course"}
"""Parameters that are a frozen record of what the caller may choose."""


def wants(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The parameters that a caller gives."""
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def test_functions_take_at_most_six_parameters_or_a_record_of_options() -> None:
    """Verbs of the command line have one for each option."""
    found = [
        f"{file.relative_to(SOURCE)}: {node.name} takes {len(wants(node))}"
        for file in SOURCE.rglob("*.py")
        if file.relative_to(SOURCE).parts[0] != "cli"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if not node.name.startswith("_") and len(wants(node)) > 6 and not OPTIONS & {*wants(node)}
    ]
    assert not found


def test_reports_write_nothing() -> None:
    """They are functions from records to pages; whoever calls them says where these go."""
    writes = re.compile(r"neuralmark\.storage|\.(write|write_text|write_bytes|mkdir|open)\(")
    for file in (SOURCE / "reports").rglob("*.py"):
        assert not writes.search(file.read_text(encoding="utf-8")), file


def test_signs_lead_somewhere() -> None:
    """Pages, folders of tests and sections of the method that a module names are there."""
    method = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    for file in SOURCE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "METHOD" not in text, file
        for path in re.findall(r"\b(?:docs|tests|benchmarks|examples)/[\w./-]*\w", text):
            assert (ROOT / path).exists(), f"{file}: {path}"
        for cited in re.findall(r"docs/method\.md, sections? ([\d and]+)", text):
            for number in re.findall(r"\d+", cited):
                assert f"\n## {number}. " in method, f"{file}: section {number}"


def taken(file: Path) -> Iterator[str]:
    """Modules of the tests that a test imports, in its own code or in a script it holds."""
    text = file.read_text(encoding="utf-8")
    for found in re.finditer(
        r"^\s*(?:from|import) (tests[.\w]*)(?: import ([\w, ]+))?", text, re.M
    ):
        yield from (f"{found[1]}.{name.strip()}" for name in (found[2] or "").split(","))


def test_tests_import_only_what_is_there_to_share() -> None:
    found = [
        f"{file.relative_to(TESTS)}: {name}"
        for file in TESTS.rglob("*.py")
        for name in taken(file)
        if not name.startswith("tests.support.")
    ]
    assert not found


def test_new_keys_have_the_same_luck_in_every_run() -> None:
    drawn = []
    for _ in range(2):
        luck.begin("a name")
        drawn.append([Key.new(QUICK).fingerprint for _ in range(3)])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3


SCRIPTS = {
    *(f"distributed/{name}.py" for name in ("worker", "deepspeed_worker", "keys_worker")),
    *("distributed/saving_worker.py", "distributed/zero_worker.py"),
    "golden/make_release.py",
}
"""Started by themselves, never imported."""


def test_folders_of_tests_hold_tests() -> None:
    for file in TESTS.rglob("*.py"):
        where = file.relative_to(TESTS)
        if where.parts[0] != "support" and str(where) not in SCRIPTS:
            assert re.fullmatch(r"test_\w+|conftest|__init__", file.stem), where
        assert (file.parent / "__init__.py").exists(), where


ABOUT_EVERYTHING = {
    *("benchmarks", "conformance", "docs", "examples", "golden", "hostile", "notebooks"),
    "support",
}
"""Folders of tests that belong to no single package."""


def test_tests_mirror_the_package() -> None:
    packages = {folder.parent.name for folder in SOURCE.glob("*/__init__.py")}
    folders = {folder.parent.name for folder in TESTS.glob("*/__init__.py")}
    assert folders - packages == ABOUT_EVERYTHING | {"distributed"}  # training, in processes
    assert packages - folders <= {"schemes"}  # conformance/test_schemes
    modules = {file.stem for file in SOURCE.glob("*.py")} | {"house"}
    assert {file.stem.removeprefix("test_") for file in TESTS.glob("test_*.py")} <= modules


def test_the_supported_pythons_are_named() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for version in ("3.11", "3.12", "3.13"):
        assert f'"Programming Language :: Python :: {version}"' in text
