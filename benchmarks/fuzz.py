"""Mutational fuzzing of every reader: checkpoints, key files, claims, imported matrices.

    python -m benchmarks.fuzz [--inputs 200000] [--seed 0] [--processes 2] [--only WORD]
                              [--dump DIR] [--json]

Must be reached: whatever the input, only subclasses of NeuralMarkError come out, no warning is
given, and no input takes 5 seconds or 300 MB of memory. The same seed gives the same inputs. An
input that breaks a rule is written to --dump with its traceback. The peer of each row is the
unchanged file, which must read.
"""

import argparse
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType

import neuralmark
from benchmarks import _corpus
from benchmarks._common import Report, parser, scratch
from benchmarks._mutate import mutate
from benchmarks._seed import Seed
from neuralmark.checkpoints import open_checkpoint
from neuralmark.checkpoints.readers.dtypes import FLOATS, decode
from neuralmark.errors import NeuralMarkError
from neuralmark.marking.placement import catalogue

SECONDS = 5.0
MEMORY = 300 << 20
READ_LIMIT = 32 << 20
BATCH = 500


class TooSlowError(BaseException):
    """Not an Exception, so that no reader catches it by mistake."""


@dataclass
class Outcome:
    """What a batch of inputs gave."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    offences: list[str] = field(default_factory=list)
    slowest: float = 0.0
    growth: int = 0

    def add(self, other: "Outcome") -> None:
        """Join two batches."""
        self.counts += other.counts
        self.offences += other.offences
        self.slowest = max(self.slowest, other.slowest)
        self.growth = max(self.growth, other.growth)


class Fuzzer:
    """Seeds on disk, and one input at a time."""

    def __init__(self, folder: Path, seeds: list[Seed], dump: Path) -> None:
        """`folder` holds the sound models that `_corpus.seeds` left there."""
        self.folder = folder
        self.seeds = seeds
        self.dump = dump
        self.key = _corpus.tiny_key()
        self.work = folder / f"work-{os.getpid()}"
        self.work.mkdir(exist_ok=True)
        self.model = self.work / "sharded"
        self.model.mkdir(exist_ok=True)
        self.changed = ""

    def input(self, seed: int, number: int) -> tuple[Seed, bytes]:
        """The number-th input under this seed."""
        rng = random.Random(f"{seed}/{number}")
        chosen = self.seeds[number % len(self.seeds)]
        return chosen, mutate(chosen.data, [other.data for other in self.seeds], rng)

    def run(self, seed: Seed, data: bytes, number: int, outcome: Outcome) -> None:
        """Read one input; note what came out."""
        path, before, start = self._put(seed, data), peak(), time.monotonic()
        result, trace = "read", ""
        try:
            with deadline(SECONDS), warnings.catch_warnings():
                warnings.simplefilter("error")
                self.consume(seed.reader, path)
        except NeuralMarkError as error:
            result = type(error).__name__
            if "\n" in str(error):
                trace = f"the message has several lines: {str(error)[:300]!r}"
        except (Exception, TooSlowError) as error:  # everything else is what is looked for
            result, trace = f"!{type(error).__name__}", traceback.format_exc()
        spent, growth = time.monotonic() - start, peak() - before
        if growth > MEMORY:
            result, trace = "!memory", f"peak memory grew by {growth >> 20} MB\n{trace}"
        outcome.slowest, outcome.growth = (
            max(outcome.slowest, spent),
            max(outcome.growth, growth),
        )
        outcome.counts[seed.name, result] += 1
        if trace:
            self._offence(seed, data, number, f"{result}\n{trace}", outcome)

    def consume(self, reader: str, path: Path) -> None:
        """All that a command would do with such a file."""
        if reader == "key":
            neuralmark.Key.load(path, _corpus.PASSPHRASE).at((("a.weight", (16, 24)),))
        elif reader == "claim":
            claim = neuralmark.Claim.load(path)
            neuralmark.verify(self.folder / "claimed.safetensors", self.key, claim=claim)
        elif reader == "matrix":
            neuralmark.import_key(path, rounds=1)
        else:
            self._read(self.model if reader in ("index", "shard") else path)

    def _read(self, path: Path) -> None:
        checkpoint, left = open_checkpoint(path), READ_LIMIT
        for tensor in catalogue(checkpoint):
            if tensor.info.obstacle is None or tensor.info.dtype not in FLOATS:
                left -= self._take(checkpoint.read(tensor.info.name), tensor.info.dtype, left)
        if left > 0:
            neuralmark.verify(path, self.key)

    @staticmethod
    def _take(pieces: Iterator[object], dtype: str, limit: int) -> int:
        """Read and decode pieces up to a limit; gives the bytes taken."""
        import numpy as np

        taken = 0
        for piece in pieces:
            assert isinstance(piece, np.ndarray)
            taken += len(piece)
            if dtype in FLOATS:
                decode(piece, dtype)
            if taken >= limit:
                break
        return taken

    def _put_within(self, seed: Seed, data: bytes) -> Path:
        """A folder of sound files, one of them replaced."""
        if self.changed:
            (self.work / self.changed).unlink()
        for entry in (self.folder / seed.place.split("/")[0]).rglob("*"):
            target = self.work / entry.relative_to(self.folder)
            if entry.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(entry, target)
        (self.work / seed.place).write_bytes(data)
        self.changed = seed.place
        return self.work / seed.opens

    def _put(self, seed: Seed, data: bytes) -> Path:
        if seed.reader == "within":
            return self._put_within(seed, data)
        if seed.reader in ("index", "shard"):
            sound = self.folder / "sharded"
            for entry in sound.iterdir():
                target = self.model / entry.name
                if not target.exists():
                    shutil.copyfile(entry, target)  # a link would change the inode under others
            name = _corpus.INDEX if seed.reader == "index" else _corpus.SHARD
            (self.model / name).unlink()
            (self.model / name).write_bytes(data)
            other = _corpus.SHARD if seed.reader == "index" else _corpus.INDEX
            (self.model / other).unlink()
            shutil.copyfile(sound / other, self.model / other)
            return self.model
        path = self.work / f"input{seed.suffix}"
        path.write_bytes(data)
        return path

    def _offence(self, seed: Seed, data: bytes, number: int, text: str, outcome: Outcome) -> None:
        self.dump.mkdir(parents=True, exist_ok=True)
        stem = f"{number:07d}-{seed.name.replace(' ', '-')}"
        (self.dump / f"{stem}{seed.suffix}").write_bytes(data)
        (self.dump / f"{stem}.txt").write_text(text)
        outcome.offences.append(f"{stem}: {text.strip().splitlines()[-1][:160]}")


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise TooSlowError in this block when the time is over."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError(f"took more than {seconds:g} s")

    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def peak() -> int:
    """Peak resident bytes of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit_memory() -> None:
    """Let an allocation far beyond the rule fail at once instead of hurting the machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 4 * MEMORY, resource.RLIM_INFINITY))


_FUZZER: Fuzzer | None = None


def start_worker(folder: Path, seeds: list[Seed], dump: Path) -> None:
    """Make this process's fuzzer; read every seed unchanged (which imports all); set limits."""
    global _FUZZER
    _FUZZER = Fuzzer(folder, seeds, dump)
    for seed in seeds:
        outcome = Outcome()
        _FUZZER.run(seed, seed.data, 0, outcome)
        if set(outcome.counts) != {(seed.name, "read")}:
            raise RuntimeError(f"the unchanged seed {seed.name!r} gave {outcome}")
    limit_memory()


def run_batch(seed: int, first: int, last: int) -> Outcome:
    """The inputs first … last-1."""
    assert _FUZZER is not None
    outcome, base = Outcome(), peak()
    for number in range(first, last):
        chosen, data = _FUZZER.input(seed, number)
        _FUZZER.run(chosen, data, number, outcome)
    outcome.growth = max(outcome.growth, peak() - base)
    return outcome


def run_all(chosen: argparse.Namespace) -> Outcome:
    """All inputs, spread over processes; progress on a terminal only."""
    inputs, seed, processes, dump = chosen.inputs, chosen.seed, chosen.processes, chosen.dump
    total, done = Outcome(), 0
    cuts = [*range(0, inputs, BATCH), inputs]
    with scratch() as folder:
        seeds = _corpus.seeds(folder)
        words = chosen.only or [""]
        seeds = [each for each in seeds if any(word in each.name for word in words)]
        if not seeds:
            raise SystemExit(f"no seed has one of {chosen.only} in its name")
        setup = (folder, seeds, dump.absolute())
        with ProcessPoolExecutor(processes, initializer=start_worker, initargs=setup) as pool:
            jobs = [pool.submit(run_batch, seed, a, b) for a, b in pairwise(cuts)]
            for job in as_completed(jobs):
                total.add(job.result())
                done += BATCH
                if sys.stderr.isatty():
                    print(f"\r{min(done, inputs):,} of {inputs:,} ", end="", file=sys.stderr)
    return total


def show(report: Report, total: Outcome) -> None:
    """Counts by format and by error name."""
    formats = sorted({name for name, _ in total.counts})
    results = sorted({result for _, result in total.counts})
    rows = [[name, *(total.counts[name, result] or "" for result in results)] for name in formats]
    whole = [sum(total.counts[name, result] for name in formats) for result in results]
    short = [result.removesuffix("Error") for result in results]
    report.table(["format", *short], [*rows, ["all", *whole]])
    kinds: dict[str, list[str]] = {}
    for offence in total.offences:
        stem, _, what = offence.partition(": ")
        kinds.setdefault(what, []).append(stem)
    for what, stems in kinds.items():
        report.note(f"{len(stems)} times {what} (first: {min(stems)})")


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--inputs", type=int, default=200_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--dump", type=Path, default=Path("fuzz-offences"))
    options.add_argument("--only", action="append", default=[], help="words in seeds' names")
    chosen = options.parse_args(arguments)
    report = Report(f"fuzzing the readers with {chosen.inputs:,} inputs", chosen.json)
    total = run_all(chosen)
    show(report, total)
    ran = sum(total.counts.values())
    report.target("inputs run", ran, f"{chosen.inputs}", passed=ran == chosen.inputs)
    bad = len(total.offences)
    report.target("inputs that broke a rule", bad, "0", passed=bad == 0)
    report.target(
        "slowest input in seconds",
        total.slowest,
        f"under {SECONDS:g}",
        passed=total.slowest < SECONDS,
    )
    report.target(
        "largest growth of a worker's memory in MB",
        total.growth / 2**20,
        f"under {MEMORY >> 20}",
        passed=total.growth < MEMORY,
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
