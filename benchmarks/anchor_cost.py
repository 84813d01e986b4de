"""What alignment costs: against plain verification, on a large matrix, on a whole ResNet-56.

Honest conversions (renamed, transposed) must take at most 3 times the plain verification of the
same file. A 4096 x 11008 matrix whose rows were permuted: under 60 s and 2 GB on one core.
ResNet-56, everything restructured: under 20 s. These two are limits of their own, not ratios.

    OMP_NUM_THREADS=1 python -m benchmarks.anchor_cost --data DIR [--json]
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import neuralmark
from benchmarks._anchored import MarkedTable, resnet
from benchmarks._common import Report, parser, peak_bytes, scratch
from benchmarks.restructured import rebuilt
from neuralmark import Key

REPEATS = 3
WIDE = (4096, 11008)


def best(work: Callable[[], object]) -> float:
    """The quickest of a few runs, in seconds."""
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def honest(report: Report, folder: Path) -> None:
    """Renamed and transposed files against the file as it was marked."""
    rng = np.random.default_rng(0)
    table = {
        f"layers.{i}.weight": rng.standard_normal((1024, 2048)).astype(np.float32) * 0.02
        for i in range(8)
    }
    save_file(table, folder / "model.safetensors")
    key = Key.new()
    neuralmark.embed(folder / "model.safetensors", key, folder / "marked.safetensors")
    claim = folder / "marked.safetensors.claim.json"
    from safetensors.numpy import load_file

    marked = load_file(folder / "marked.safetensors")
    others = {
        "renamed": {f"net.block{i}.w": v for i, v in enumerate(marked.values())},
        "transposed": {n: np.ascontiguousarray(v.T) for n, v in marked.items()},
    }
    plain = best(lambda: neuralmark.verify(folder / "marked.safetensors", key, claim=claim))
    rows = [["as marked", f"{plain:.2f} s", "1.0"]]
    for what, table in others.items():
        file = folder / f"{what}.safetensors"
        save_file(table, file)
        spent = best(partial(neuralmark.verify, file, key, claim=claim))
        assert neuralmark.verify(file, key, claim=claim).verified
        ratio = spent / plain
        rows.append([what, f"{spent:.2f} s", f"{ratio:.1f}"])
        report.target(f"{what} / plain", ratio, "at most 3", passed=ratio <= 3)
    report.table(["file of 16.8 million weights", "time", "ratio"], rows)


def large(report: Report) -> None:
    """One large matrix with its rows permuted."""
    rng = np.random.default_rng(1)
    table = {"up.weight": rng.standard_normal(WIDE).astype(np.float32) * 0.02}
    marked = MarkedTable(table, Key.new())
    other = {"up.weight": marked.table["up.weight"][rng.permutation(WIDE[0])]}
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    held = int(sum(v.nbytes for v in (*marked.table.values(), *other.values(), *table.values())))
    read = marked.aligned(other)
    peak = (peak_bytes() - held) / 2**30
    report.note(
        f"4096 x 11008, rows permuted: {read.bits} bits, {read.seconds:.1f} s, {peak:.2f} GB"
    )
    report.target("4096 x 11008, bits", read.bits, "at least 250", passed=read.bits >= 250)
    report.target("4096 x 11008, seconds", read.seconds, "under 60", passed=read.seconds < 60)
    report.target("peak beside the models, GB", peak, "under 2", passed=peak < 2)


def whole(report: Report, data: Path) -> None:
    """ResNet-56, everything at once."""
    marked = MarkedTable(resnet(data, 56), Key.new())
    other = rebuilt(marked.table, "all", 8, 0, 0)
    assert other is not None
    read = marked.aligned(other)
    report.note(f"ResNet-56, everything restructured: {read.bits} bits, {read.seconds:.1f} s")
    report.target("ResNet-56, seconds", read.seconds, "under 20", passed=read.seconds < 20)


def main(arguments: list[str] | None = None) -> int:
    """Measure all three."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--folder", type=Path, help="where temporary files go")
    chosen: argparse.Namespace = options.parse_args(arguments)
    report = Report("the cost of alignment", chosen.json)
    with scratch(chosen.folder) as folder:
        large(report)
        honest(report, folder)
    whole(report, chosen.data)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
