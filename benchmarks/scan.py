"""All keys against all models, against loops over `neuralmark verify` and over the library's.

    python -m benchmarks.scan [--models 1000] [--keys 100] [--few 200] [--json]

Small checkpoints of ten architectures (four or eight layers, 100,000 to 400,000 weights), and keys
of which half have a claim (one architecture each) and half are searched for; twenty models are
marked, without anchors. Every scan reads in the sandbox. The loops are measured on a sample of
pairs, drawn at random, and extrapolated to all. Must be reached with two jobs: 20 times faster than
a loop over `neuralmark verify` processes, 5 times faster than a loop over `neuralmark.verify`; each
marked model found and nothing else; memory of the workers flat (the largest resident size in the
second half of the run at most 1.1 times that of the first); two jobs 1.6 times as fast as one (on
--few models).
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import neuralmark
from benchmarks import _tensors
from benchmarks._common import Report, megabytes, parser, scratch, seconds_of
from neuralmark import EmbedOptions, Key, ScanOptions, ScanResult

ARCHITECTURES = 10
MARKED = 20
PAIRS, PROCESSES = 60, 12


@dataclass
class Case:
    """Models, keys and claims."""

    folder: Path
    models: list[Path] = field(default_factory=list)
    keys: dict[str, Key] = field(default_factory=dict)
    claims: dict[str, Path] = field(default_factory=dict)
    marked: set[tuple[str, str]] = field(default_factory=set)


def made(folder: Path, models: int, keys: int) -> Case:
    """Random weights in ten architectures; every other key has a claim on one of them."""
    case = Case(folder)
    rng = np.random.default_rng(0)
    for name in ("models", "keys", "claims"):
        (folder / name).mkdir()
    for number in range(models):
        kind = number % ARCHITECTURES
        side, layers = 160 + 16 * (kind // 2), 4 + 4 * (kind % 2)
        path = folder / "models" / f"{number:05}.safetensors"
        tensors = {
            f"layers.{i}.weight": 0.02 * rng.standard_normal((side, side), dtype=np.float32)
            for i in range(layers)
        }
        _tensors.save(path, tensors)
        case.models.append(path)
    for number in range(keys):
        name = f"{number:03}.nmkey"
        case.keys[name] = Key.new()
        case.keys[name].save(folder / "keys" / name, None)
    _mark(case)
    return case


def _mark(case: Case) -> None:
    """Every other key gets a claim, by marking a model; some of these models are left in place."""
    plain = EmbedOptions(anchor=False)
    for number, (name, key) in enumerate(case.keys.items()):
        model = case.models[(7 * number) % len(case.models)]
        kept = number < MARKED
        if not kept and number % 2:
            continue
        out = case.folder / "made.safetensors"
        neuralmark.embed(model, key, out, options=plain, overwrite=True)
        claim = out.with_name(f"{out.name}.claim.json")
        if number % 2 == 0:
            case.claims[name] = case.folder / "claims" / f"{number:03}.claim.json"
            claim.rename(case.claims[name])
        else:
            claim.unlink()
        if kept:
            out.replace(model)
            case.marked.add((str(model), name))


def resident(pid: int) -> dict[int, int]:
    """Resident bytes of the children of a process."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            lines = Path(f"/proc/{child}/status").read_text().splitlines()
        except OSError:
            continue
        size = next((line for line in lines if line.startswith("VmRSS:")), None)
        if size is not None:
            found[int(child)] = int(size.split()[1]) * 1024
    return found


def processor_time(pid: int) -> dict[int, float]:
    """Seconds of the processor that the children of a process have used."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            used = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:13]
            found[int(child)] = sum(map(int, used)) / os.sysconf("SC_CLK_TCK")
    return found


class Sampler(threading.Thread):
    """Looks at the memory and the processor time of the workers every now and then."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, int]] = []
        self.used: dict[int, float] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        """Until it is ended."""
        begun = time.perf_counter()
        while not self._ended.wait(0.5):
            self.used |= processor_time(os.getpid())
            sizes = resident(os.getpid())
            if sizes:
                self.seen.append((time.perf_counter() - begun, max(sizes.values())))

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self.join()


def scanned(
    case: Case, out: str, jobs: int, models: list[Path]
) -> tuple[float, ScanResult, Sampler]:
    """A scan of these models, how long it took, and what its workers used."""
    results: list[ScanResult] = []

    def run() -> None:
        results.append(
            neuralmark.scan(
                models,
                case.keys,
                case.folder / out,
                claims=case.folder / "claims",
                options=ScanOptions(jobs=jobs),
            )
        )

    sampler = Sampler()
    sampler.start()
    seconds = seconds_of(run)
    sampler.end()
    return seconds, results[0], sampler


def by_library(case: Case, pairs: list[tuple[Path, str]]) -> float:
    """Seconds for each pair, one after the other in this process."""

    def run() -> None:
        for model, name in pairs:
            with contextlib.suppress(neuralmark.errors.NeuralMarkError):
                neuralmark.verify(model, case.keys[name], claim=case.claims.get(name))

    return seconds_of(run) / len(pairs)


def by_processes(case: Case, pairs: list[tuple[Path, str]]) -> float:
    """The same with a process for each."""

    def run() -> None:
        for model, name in pairs:
            words = ["verify", str(model), "--key", str(case.folder / "keys" / name)]
            words += ["--claim", str(case.claims[name])] if name in case.claims else []
            command = [sys.executable, "-m", "neuralmark", *words]
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    return seconds_of(run) / len(pairs)


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--models", type=int, default=1000)
    options.add_argument("--keys", type=int, default=100)
    options.add_argument("--few", type=int, default=200)
    chosen = options.parse_args(arguments)
    report = Report("scanning many models for many keys", chosen.json)
    with scratch() as folder:
        case = made(folder, chosen.models, chosen.keys)
        pairs = chosen.models * chosen.keys
        draw = np.random.default_rng(1)
        names = list(case.keys)
        sample = [
            (case.models[draw.integers(len(case.models))], names[draw.integers(len(names))])
            for _ in range(PAIRS)
        ]
        library, processes = by_library(case, sample), by_processes(case, sample[:PROCESSES])
        seconds, result, sampler = scanned(case, "out", 2, case.models)
        found = {(row.target, str(row.key_name)) for row in result.rows() if row.found}
        few = case.models[: chosen.few]
        one, _, single = scanned(case, "one", 1, few)
        two, _, double = scanned(case, "two", 2, few)
    report.table(
        ["", "seconds a pair", f"{pairs:,} pairs"],
        [
            ["neuralmark verify, processes", f"{processes:.4f}", f"{processes * pairs:,.0f} s"],
            ["neuralmark.verify, a loop", f"{library:.4f}", f"{library * pairs:,.0f} s"],
            ["neuralmark scan, 2 jobs", f"{seconds / pairs:.6f}", f"{seconds:,.0f} s"],
        ],
    )
    report.note(
        f"The loops were measured on {PROCESSES} and {PAIRS} pairs and extrapolated; the scan was"
        f" measured whole. {result.correction}; rows: {result.counts}"
    )
    apart = max(single.used.values()) / max(double.used.values())
    report.note(
        f"{len(few)} models: one job {one:.1f} s, two jobs {two:.1f} s; by processor time, which"
        f" other work does not change, the busier of two workers has {apart:.2f} times less to do"
        f" than one alone; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    middle = len(sampler.seen) // 2
    first, second = (
        max(size for _, size in part) for part in (sampler.seen[:middle], sampler.seen[middle:])
    )
    steps = sampler.seen[:: max(1, len(sampler.seen) // 10)]
    report.table(
        ["after", "largest worker"],
        [[f"{after:.0f} s", megabytes(size)] for after, size in steps],
        "memory",
    )
    ratio = processes * pairs / seconds
    report.target("against processes", ratio, "at least 20 times", passed=ratio >= 20)
    ratio = library * pairs / seconds
    report.target("against the library", ratio, "at least 5 times", passed=ratio >= 5)
    report.target(
        "second half of memory", second / first, "at most 1.1", passed=second <= 1.1 * first
    )
    report.target("two jobs", one / two, "at least 1.6 times", passed=one / two >= 1.6)
    wrong = len(found ^ case.marked)
    report.target("findings that are wrong or missing", wrong, "none", passed=not wrong)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
