"""What the mutation tester changes, and what it leaves alone."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from benchmarks._mutations import mutations
from benchmarks.mutants import EXPLAINED, TESTS, Coverage

ROOT = Path(__file__).resolve().parents[2]
SOURCE_FOLDER = ROOT / "src" / "neuralmark"

SOURCE = '''"""A docstring with 1 + 1."""

LIMIT = 3


@cache(size=4)
def clipped(x: "int | float" = 0, *, ü: bytes = b"a") -> int:
    """Another one: 2 < 3."""
    assert x < 9, "not 7"
    if x > LIMIT and not ü:
        raise ValueError(f"{x + 1} is too much")
    x = min(x, LIMIT)
    return -x if x == "é" else x  # 5
'''


def changed(source: str) -> set[str]:
    made = mutations("m.py", source.encode())
    return {mutation.apply(source.encode()).decode() for mutation in made}


def test_one_thing_is_changed_at_a_time() -> None:
    expected = {
        SOURCE.replace("LIMIT = 3", "LIMIT = (3 + 1)"),
        SOURCE.replace("= 0,", "= (0 + 1),"),
        SOURCE.replace('= b"a"', "= b'aX'"),
        SOURCE.replace("if x > LIMIT and not ü:", "if (not (x > LIMIT and not ü)):"),
        SOURCE.replace("> LIMIT", ">= LIMIT"),
        SOURCE.replace("and not ü", "or not ü"),
        SOURCE.replace("not ü", "(ü)"),
        SOURCE.replace('raise ValueError(f"{x + 1} is too much")', "pass"),
        SOURCE.replace("x = min(x, LIMIT)", "pass"),
        SOURCE.replace("min(", "max("),
        SOURCE.replace("-x if", "(x) if"),
        SOURCE.replace('if x == "é" else', 'if (not (x == "é")) else'),
        SOURCE.replace('x == "é"', 'x != "é"'),
        SOURCE.replace('"é"', "'éX'"),
    }
    assert changed(SOURCE) == expected


def test_lines_tell_which_tests_reach_a_change() -> None:
    made = mutations("m.py", SOURCE.encode())
    for mutation in made:
        assert mutation.lines == (frozenset({mutation.line}) if mutation.line > 7 else set())
    assert len({mutation.name for mutation in made}) == len(made)


@pytest.mark.parametrize("package", ["core", "marking"])
def test_mutants_of_the_library_can_be_compiled(package: str) -> None:
    for file in sorted((SOURCE_FOLDER / package).glob("*.py")):
        source = file.read_bytes()
        for mutation in mutations(file.name, source)[::15]:
            assert mutation.apply(source) != source
            ast.parse(mutation.apply(source))


def test_likely_killers_and_quick_tests_come_first() -> None:
    changes = mutations("core/m.py", SOURCE.encode())
    first = next(m for m in changes if m.line == 12)
    names = ["a.py::slow", "a.py::quick", "test_m.py::slow", "test_m.py::quick", "b.py::else"]
    seconds = dict(zip(names, (9.0, 1.0, 8.0, 2.0, 3.0), strict=True))
    tests = Coverage({"core/m.py": {"12": names[:4], "9": names[4:]}}, seconds)
    own = ["test_m.py::quick", "a.py::quick", "test_m.py::slow"]
    assert tests.reaching(first, 20.0) == [*own, "a.py::slow"]
    assert tests.reaching(first, 11.0) == own
    assert tests.reaching(first, 10.9) == own[:2]
    assert tests.reaching(first, 0.1) == own[:1]
    tests.count("core/m.py", 12, "a.py::slow")
    assert tests.reaching(first, 10.0)[0] == "a.py::slow"
    tests.count("core/m.py", 9, "a.py::quick")
    assert tests.reaching(first, 10.0)[0] == "a.py::quick"
    assert tests.reaching(changes[0], 3.0) == ["a.py::quick", "test_m.py::quick"]
    unreached = next(m for m in changes if m.line == 11)
    assert tests.reaching(unreached, 10.0) == []


MODULE = """from functools import cache

LIMIT = 3


@cache
def doubled(x: int) -> int:
    return x * 2


class Box:
    @property
    def size(self) -> int:
        return max(doubled(n) for n in (1, LIMIT))
"""


def test_code_is_exchanged_where_it_is_and_cached_results_are_forgotten(tmp_path: Path) -> None:
    """In a process of its own, which has the change's module loaded when it is made."""
    (tmp_path / "src" / "neuralmark").mkdir(parents=True)
    module = tmp_path / "src" / "neuralmark" / "exchanged.py"
    module.write_text(MODULE)
    (tmp_path / "test_it.py").write_text(
        "from exchanged import Box, doubled\n\nFIRST = doubled(3)\n\n\n"
        "def test_it():\n    assert FIRST == doubled(3) == Box().size == 6\n\n\n"
        "def test_never():\n    assert False\n"
    )
    script = f"""
import json, sys
from pathlib import Path
from benchmarks import _mutant_runs, _mutant_server
from benchmarks._mutations import mutations
folder = Path({str(tmp_path)!r})
for part in (_mutant_runs, _mutant_server):
    part.SOURCE = folder / "src" / "neuralmark"
_mutant_runs.ROOT = folder
_mutant_runs.prepare()
sys.path.insert(0, str(_mutant_runs.SOURCE))
path = _mutant_runs.SOURCE / "exchanged.py"
text = path.read_bytes()
with _mutant_server.Collected(["test_it.py"], folder) as tests:
    names = ["test_it.py::test_never", "test_it.py::test_it"]
    found = [
        (m.name.split(" | ")[-1], tests.tried(path, m.apply(text), sorted(m.lines), names, 60.0))
        for m in mutations("exchanged.py", text)
    ]
    found.append(("", tests.tried(path, text, [8], names, 60.0)))
print(json.dumps(found))
"""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    killer = "test_it.py::test_it"
    assert json.loads(done.stdout) == [
        ["LIMIT = (3 + 1)", None],
        ["return x / 2", killer],
        ["return x * (2 + 1)", killer],
        ["return min(doubled(n) for n in (1, LIMIT))", killer],
        ["return max(doubled(n) for n in ((1 + 1), LIMIT))", ""],
        ["", ""],
    ]


def test_explanations_are_of_mutants_that_there_are() -> None:
    names = [
        mutation.name
        for package in TESTS
        for file in sorted((SOURCE_FOLDER / package).glob("*.py"))
        for mutation in mutations(f"{package}/{file.name}", file.read_bytes())
    ]
    for group in tomllib.loads(EXPLAINED.read_text())["group"]:
        assert group["why"]
        for entry in group["mutants"]:
            known = [n for n in names if n == entry or n.startswith(entry.rstrip("*"))]
            assert known, entry


def test_the_page_claims_no_more_than_was_run() -> None:
    told = (ROOT / "docs" / "mutation.md").read_text(encoding="utf-8").split("## Last result")[1]
    figures = r"^\| (.+?) " + r"\| ([\d,]+) " * 5 + r"\|$"
    rows = re.findall(figures, told, re.MULTILINE)
    assert rows
    sums, whole = [0] * 5, set[str]()
    for name, *texts in rows:
        numbers = [int(each.replace(",", "")) for each in texts]
        mutants, run, *known = numbers
        assert mutants >= run == sum(known), name
        if not name.startswith("**"):
            sums = [a + b for a, b in zip(sums, numbers, strict=True)]
            continue
        assert sums == numbers, name
        share = rf"{run:,} of the {mutants:,}[\w\s`]+ \({100 * run / mutants:.0f} %\)"
        assert re.search(share, told), name
        sums, whole = [0] * 5, whole | {name}
    assert whole == {"**core**", "**marking**"}
