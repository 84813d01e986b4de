"""Embedding into a large sharded checkpoint, against copying it.

    python -m benchmarks.embed_large [--folder DIR] [--gigabytes 4] [--repeats 5] [--json]

`neuralmark embed MODEL --key KEY --tensor NAME -o OUT`, as a whole process, against `cp -r` and an
fsync of every file and folder of the same checkpoint, in turn, outputs removed and the disk synced
before each. Then `--in-place` on the large checkpoint against a checkpoint whose other tensors
are tiny. Must be reached (medians), with `--no-anchor`: at least 0.6 of the speed of the copy; in
place at most 1.5 times the time on the small one (it must not depend on the size of the model).
An anchor is a coarse copy of the marked tensor and its partners (three of 90 MB here), so it takes
longer by their size: at most three times as long as without one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import neuralmark
from benchmarks import _checkpoint
from benchmarks._common import (
    Report,
    command_line,
    interleaved,
    median,
    median_ratio,
    parser,
    scratch,
    seconds_of,
)


def sync_all(folder: Path) -> None:
    """Flush every file and folder below, and the folder above."""
    for path in [*folder.rglob("*"), folder, folder.parent]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def settled(action: Callable[[], object], *outputs: Path) -> float:
    """Seconds of an action on a quiet disk; its outputs are removed."""
    os.sync()
    spent = seconds_of(action)
    for output in outputs:
        shutil.rmtree(output, ignore_errors=True)
        for beside in output.parent.glob(f"{output.name}.*"):
            beside.unlink()
    return spent


def embed(model: Path, key: Path, *rest: str) -> None:
    """Run the command line."""
    command = [command_line(), "embed", str(model), "--key", str(key)]
    done = subprocess.run(
        [*command, "--tensor", _checkpoint.MARKED, *rest],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def against_copy(report: Report, folder: Path, model: Path, size: int, repeats: int) -> None:
    """`-o` against `cp -r`."""
    key, ours, copy = folder / "owner.nmkey", folder / "marked", folder / "copied"
    neuralmark.Key.new().save(key, None)

    def copying() -> None:
        subprocess.run(["cp", "-r", str(model), str(copy)], check=True)
        sync_all(copy)

    copying()  # warms the page cache
    shutil.rmtree(copy)

    def marking(*rest: str) -> float:
        return settled(lambda: embed(model, key, "-o", str(ours), *rest), ours)

    bare, peer = interleaved(
        repeats, lambda: marking("--no-anchor"), lambda: settled(copying, copy)
    )
    whole, again = interleaved(repeats, marking, lambda: marking("--no-anchor"))
    rows = [
        [
            name,
            *spread(times),
            f"{size / 1e6 / median(times):.0f} MB/s",
            f"{median_ratio(peer, times):.2f}",
        ]
        for name, times in (
            ("cp -r, then fsync", peer),
            ("embed -o --no-anchor", bare),
            ("embed -o", whole),
        )
    ]
    head = ["", "median", "least", "most", "throughput", "speed, copy = 1"]
    report.table(head, rows, f"{size / 1e9:.2f} GB, {repeats} rounds")
    speed, longer = median_ratio(peer, bare), median_ratio(whole, again)
    name = "embed -o --no-anchor: share of the copy's speed"
    report.target(name, speed, "at least 0.6", passed=speed >= 0.6)
    report.target("with an anchor / without", longer, "at most 3", passed=longer <= 3)


def in_place(report: Report, folder: Path, large: Path, small: Path, repeats: int) -> None:
    """The same tensor in a large and in a small checkpoint, a fresh key each time."""

    def marking(model: Path) -> float:
        key = folder / "fresh.nmkey"
        neuralmark.Key.new().save(key, None, overwrite=True)
        spent = settled(lambda: embed(model, key, "--in-place", "--no-anchor"))
        for ending in ("claim.json", "anchor"):
            for beside in model.parent.glob(f"{model.name}*.{ending}"):
                beside.unlink()
        return spent

    marking(small)
    marking(large)
    mine, peer = interleaved(repeats, lambda: marking(large), lambda: marking(small))
    ratio = median_ratio(mine, peer)
    rows = [
        ["small checkpoint", *spread(peer), "1.00"],
        ["large checkpoint", *spread(mine), f"{ratio:.2f}"],
    ]
    report.table(["--in-place", "median", "least", "most", "ratio"], rows, "in place")
    report.target("in place: large / small", ratio, "at most 1.5", passed=ratio <= 1.5)


def spread(values: list[float]) -> list[str]:
    """Median, least and most."""
    return [f"{value:.2f} s" for value in (median(values), min(values), max(values))]


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--folder", type=Path, help="where checkpoints are made (and removed)")
    options.add_argument("--gigabytes", type=float, default=4.0)
    options.add_argument("--repeats", type=int, default=5)
    chosen = options.parse_args(arguments)
    report = Report("embedding into a large checkpoint", chosen.json)
    with scratch(chosen.folder) as folder:
        needed = 3 * chosen.gigabytes * 2**30
        if shutil.disk_usage(folder).free < needed:
            sys.exit(f"{folder}: needs {needed / 1e9:.0f} GB of free disk")
        large, small = folder / "large", folder / "small"
        size = _checkpoint.make(large, chosen.gigabytes * 2**30)
        _checkpoint.make(small, chosen.gigabytes * 2**30, small=True)
        against_copy(report, folder, large, size, chosen.repeats)
        in_place(report, folder, large, small, chosen.repeats)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
