"""Mutation testing: tests have to fail when `core` or `marking` does something else.

    python -m benchmarks.mutants core
    python -m benchmarks.mutants marking --sample 300 --seed 1
    python -m benchmarks.mutants core --module core/bound.py --again

One operator, number, condition or statement is changed at a time; the tests that run this line are
run until one fails. What no test notices is printed. Results are kept in .mutants/, so a run that
was stopped goes on; `--again` tries the survivors again (after tests were added), `--fresh` all.
Survivors that are explained stand in benchmarks/mutants.toml; docs/mutation.md says more.
"""

import hashlib
import json
import random
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks._common import ROOT, Report, parser, scratch
from benchmarks._mutant_runs import SOURCE, prepare, tried, watched
from benchmarks._mutant_server import Collected
from benchmarks._mutations import Mutation, mutations

TESTS = {
    "core": ("tests/core", "tests/golden", "src/neuralmark/core"),
    "marking": ("tests/marking", "tests/golden", "src/neuralmark/marking"),
}
"""What is run on a package."""
EXPLAINED = ROOT / "benchmarks" / "mutants.toml"
KEPT = ROOT / ".mutants"
_NEAR = 4
"""Lines at which a kill counts half."""


@dataclass
class Coverage:
    """Which tests run which lines; those that killed changes nearby come first."""

    lines: dict[str, dict[str, list[str]]]
    seconds: dict[str, float]
    kills: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def count(self, module: str, line: int, killer: str) -> None:
        """Remember what killed a mutant of a module."""
        if killer in self.seconds:
            self.kills.setdefault(module, []).append((line, killer))

    def reaching(self, mutation: Mutation, budget: float) -> list[str]:
        """Tests that run the change, as many as take so many seconds, but one at least.

        First those that have the best prospect of killing it in a second: they, or others of their
        file, killed changes nearby, or they are quick.
        """
        table = self.lines.get(mutation.module, {})
        lines = map(str, mutation.lines) if mutation.lines else iter(table)
        found = {test for line in lines for test in table.get(line, ())}
        tests, files = defaultdict[str, float](float), defaultdict[str, float](float)
        for line, killer in self.kills.get(mutation.module, ()):
            near = 1.0 / (1.0 + abs(line - mutation.line) / _NEAR)
            tests[killer] += near
            files[_file(killer)] += near
        stem, total = Path(mutation.module).stem, max(sum(files.values()), 1.0)

        def prospect(test: str) -> float:
            of_file = files[_file(test)] / total + (stem in _file(test))
            return (tests[test] + 0.1 * of_file + 0.02) / (self.seconds[test] + 0.05)

        order = sorted(found, key=lambda test: (-prospect(test), test))
        spent = accumulate(self.seconds[test] for test in order)
        return [t for t, total in zip(order, spent, strict=True) if total <= budget] or order[:1]


def _file(test: str) -> str:
    return test.partition("::")[0]


def changes(package: str, only: Sequence[str]) -> list[Mutation]:
    """Every change of a package's modules, or of some of them."""
    files = sorted((SOURCE / package).glob("*.py"))
    names = [str(file.relative_to(SOURCE)) for file in files]
    unknown = set(only) - set(names)
    if unknown:
        raise SystemExit(f"no module {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    made = (mutations(n, (SOURCE / n).read_bytes()) for n in names if not only or n in only)
    return [mutation for some in made for mutation in some]


def tests_of(package: str, folder: Path, only: Sequence[str]) -> Coverage:
    """What each test file reaches; watched anew where it, or the package, changed."""
    source = _digest(*(SOURCE / package).glob("*.py"))
    files = [
        str(f.relative_to(ROOT)) for part in TESTS[package] for f in (ROOT / part).rglob("*.py")
    ]
    unknown = set(only) - set(files)
    if unknown:
        raise SystemExit(f"{', '.join(sorted(unknown))}: not among the tests of {package}")
    files = [name for name in files if not only or name in only]
    digests = {name: source + _digest(ROOT / name) for name in sorted(files)}
    kept = KEPT / f"{package}-tests.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    stale = [name for name in digests if known.get(name, {}).get("digest") != digests[name]]
    found = watched([package], stale, folder) if stale else {"lines": {}, "seconds": {}}
    for name in stale:
        known[name] = {"digest": digests[name], "lines": {}, "seconds": {}}
    for test, seconds in found["seconds"].items():
        known[_file(test)]["seconds"][test] = seconds
    for module, table in found["lines"].items():
        for line, tests in table.items():
            for test in tests:
                reached = known[_file(test)]["lines"].setdefault(module, {})
                reached.setdefault(str(line), []).append(test)
    kept.write_text(json.dumps(known))
    return _merged([known[name] for name in digests])


def _merged(files: Sequence[dict[str, Any]]) -> Coverage:
    whole = Coverage({}, {})
    for file in files:
        whole.seconds.update(file["seconds"])
        for module, table in file["lines"].items():
            for line, tests in table.items():
                whole.lines.setdefault(module, {}).setdefault(line, []).extend(tests)
    return whole


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()


def results_in(path: Path) -> dict[str, dict[str, Any]]:
    """What earlier runs found, by the change's name; the last word counts."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def explained(names: Sequence[str]) -> dict[str, str]:
    """Why a survivor is not a gap, by its name; an entry that ends in `*` is for many."""
    groups = tomllib.loads(EXPLAINED.read_text()).get("group", []) if EXPLAINED.exists() else []
    entries = {entry: group["why"] for group in groups for entry in group["mutants"]}
    starts = {entry[:-1]: why for entry, why in entries.items() if entry.endswith("*")}
    wide = {name: why for name in names for start, why in starts.items() if name.startswith(start)}
    return wide | {name: entries[name] for name in names if name in entries}


def run(
    chosen: Sequence[Mutation], tests: Coverage, folder: Path, budget: float
) -> Iterator[dict[str, Any]]:
    """Try one after the other."""
    if not chosen:
        return
    with Collected(sorted({_file(test) for test in tests.seconds}), folder) as collected:
        for mutation in chosen:
            names, start = tests.reaching(mutation, budget), time.monotonic()
            killer = _killer(mutation, names, tests, collected, folder)
            tests.count(mutation.module, mutation.line, killer)
            yield {
                "name": mutation.name,
                "line": mutation.line,
                "killer": killer,
                "tests": len(names),
                "seconds": round(time.monotonic() - start, 2),
            }


def _killer(
    mutation: Mutation, names: list[str], tests: Coverage, collected: Collected, folder: Path
) -> str:
    """What kills a change: the code of a function is exchanged, what runs at import loaded anew."""
    path = SOURCE / mutation.module
    text = mutation.apply(path.read_bytes())
    limit = 20 + 3 * sum(tests.seconds[name] for name in names)
    if not names:
        return ""
    if mutation.lines:
        killer = collected.tried(path, text, sorted(mutation.lines), names, limit)
        if killer is not None:
            return killer
    likely = _file(names[0])
    first = [name for name in names if _file(name) == likely]
    rest = [name for name in names if _file(name) != likely]
    return tried(path, text, first, folder, limit) or (
        tried(path, text, rest, folder, limit) if rest else ""
    )


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("package", choices=sorted(TESTS))
    options.add_argument("--module", action="append", default=[], help="only this one, core/key.py")
    options.add_argument("--tests", action="append", default=[], help="only this file of tests")
    options.add_argument("--sample", type=int, help="so many, drawn by the seed")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--budget", type=float, default=15.0, help="seconds of tests for each")
    options.add_argument("--again", action="store_true", help="try the survivors again")
    options.add_argument("--fresh", action="store_true", help="forget earlier results")
    given = options.parse_args(arguments)
    KEPT.mkdir(exist_ok=True)
    kept = KEPT / f"{given.package}.jsonl"
    if given.fresh:
        kept.unlink(missing_ok=True)
    every = changes(given.package, given.module)
    order = random.Random(given.seed).sample(every, len(every))[: given.sample]
    report = Report(f"{len(order)} of {len(every)} mutants of {given.package}", given.json)
    known, why = results_in(kept), explained([mutation.name for mutation in every])
    again = {name for name, row in known.items() if given.again and not row["killer"]}
    left = [m for m in order if m.name not in known or m.name in again - set(why)]
    prepare()
    with scratch() as folder, kept.open("a") as out:
        tests = tests_of(given.package, folder, given.tests) if left else Coverage({}, {})
        for row in known.values():
            tests.count(row["name"].partition(" | ")[0], row["line"], row["killer"])
        for row in run(left, tests, folder, given.budget):
            known[row["name"]] = row
            print(json.dumps(row), file=out, flush=True)
            if not row["killer"] and row["name"] not in why:
                print(f"survived: {row['line']}: {row['name']}", file=sys.stderr, flush=True)
    return summary(report, order, known, why)


def summary(
    report: Report,
    chosen: Sequence[Mutation],
    known: dict[str, dict[str, Any]],
    why: dict[str, str],
) -> int:
    """One row per module; survivors that nobody explained, one per line."""
    rows, total = [], Counter[str]()
    for module in sorted({mutation.module for mutation in chosen}):
        mine = [mutation.name for mutation in chosen if mutation.module == module]
        alive = [name for name in mine if not known[name]["killer"]]
        count = Counter(mutants=len(mine), killed=len(mine) - len(alive), survivors=len(alive))
        count["explained"] = sum(name in why for name in alive)
        total += count
        rows.append([module, *(count[part] for part in ("mutants", "killed", "explained"))])
    rows.append(["all", *(total[part] for part in ("mutants", "killed", "explained"))])
    open_ = sorted(m.name for m in chosen if not known[m.name]["killer"] and m.name not in why)
    report.table(["module", "mutants", "killed", "explained"], rows)
    for name in open_:
        report.note(f"survived: {name}")
    report.target("survivors without an explanation", len(open_), "0", passed=not open_)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
