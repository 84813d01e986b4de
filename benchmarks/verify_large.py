"""Verifying one tensor of a large sharded checkpoint, against loading all of it.

    python -m benchmarks.verify_large [--folder DIR] [--gigabytes 4] [--repeats 5] [--json]

Makes a sharded bfloat16 checkpoint in the Hugging Face layout, marks its 4096 x 11008
`model.layers.0.mlp.down_proj.weight` and verifies that tensor. Peer, in the same run: a process
that materialises every tensor with `safetensors` and computes the published read-out (of a second
mark, with the published filter) in float32 with torch. Interpreter start and imports are outside
the clock for both; the page cache is warm for both (a cold row is added where caches may be
dropped). Must be reached, with a claim and with tensors=[name]: at least 8 times faster; peak
memory at most a quarter of the peer's, and at most 6 times the marked tensor plus 150 MB.
"""

import shutil
import sys
from pathlib import Path

import numpy as np

import neuralmark
from benchmarks import _checkpoint
from benchmarks._common import (
    Report,
    drop_caches,
    median,
    megabytes,
    parser,
    run_child,
    scratch,
)

WAYS = {"claim": "claim=…", "tensor": "tensors=[name]", "search": "neither (searches)"}
LIMIT = 6 * _checkpoint.MARKED_BYTES + 150e6


def prepare(folder: Path, gigabytes: float) -> tuple[Path, Path, int]:
    """The marked checkpoint, its key file (K, b, R of the peer's mark beside it), its bytes."""
    model, key_file = folder / "model", folder / "owner.nmkey"
    size = _checkpoint.make(model, gigabytes * 2**30)
    key = neuralmark.Key.new(owner="benchmark")
    key.save(key_file, None)
    options = neuralmark.EmbedOptions(tensors=[_checkpoint.MARKED], anchor=False)
    published = neuralmark.Key.new(neuralmark.Parameters(rounds=4, filter="tiled"))
    theirs = neuralmark.embed(
        model,
        published,
        options=options,
        in_place=True,
    )
    Path(f"{model}.claim.json").unlink()
    neuralmark.embed(model, key, options=options, in_place=True)
    Path(f"{model}.claim.json").rename(f"{model}.kept.json")  # not beside it: else it is followed
    assert theirs.claim is not None
    mark = published.at(theirs.claim.placement)
    np.savez(key_file.with_suffix(".npz"), K=mark.matrix, b=mark.bits, R=4)
    return model, key_file, size


def measure(
    repeats: int, model: Path, key_file: Path, *, cold: bool = False
) -> dict[str, dict[str, list[float]]]:
    """Seconds and peaks of every way, in turn, another one first each time."""
    found: dict[str, dict[str, list[float]]] = {
        way: {"seconds": [], "peak": [], "matched": []} for way in ("baseline", *WAYS)
    }
    ways = list(found)
    for turn in range(repeats):
        for place in range(len(ways)):
            way = ways[(turn + place) % len(ways)]
            if cold:
                drop_caches()
            answer = run_child("_verify_child", way, str(model), str(key_file))
            for name, series in found[way].items():
                series.append(answer[name])
    return found


def rows_of(found: dict[str, dict[str, list[float]]]) -> list[list[str]]:
    """A row a way: median seconds and peak, and both as ratios to the peer."""
    peer_time = median(found["baseline"]["seconds"])
    peer_peak = median(found["baseline"]["peak"])
    rows = []
    for way, values in found.items():
        spent, peak = median(values["seconds"]), median(values["peak"])
        rows.append(
            [
                WAYS.get(way, "peer: everything with safetensors and torch"),
                f"{spent:.3f} s",
                f"{peer_time / spent:.1f} x",
                megabytes(peak),
                f"{peak / peer_peak:.3f}",
                f"{min(values['matched']):.0f}/256",
            ]
        )
    return rows


def judge(report: Report, found: dict[str, dict[str, list[float]]]) -> None:
    """The targets, on warm figures."""
    peer = found["baseline"]
    for way in ("claim", "tensor"):
        label, mine = WAYS[way], found[way]
        faster = median(peer["seconds"]) / median(mine["seconds"])
        report.target(f"{label}: times faster", faster, "at least 8", passed=faster >= 8)
        share = max(mine["peak"]) / median(peer["peak"])
        report.target(
            f"{label}: share of the peer's memory", share, "at most 0.25", passed=share <= 0.25
        )
        peak = max(mine["peak"])
        report.target(
            f"{label}: peak memory in MB",
            peak / 1e6,
            f"at most {LIMIT / 1e6:.0f}: 6 tensors + 150 MB",
            passed=peak <= LIMIT,
        )


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--folder", type=Path, help="where the checkpoint is made (and removed)")
    options.add_argument("--gigabytes", type=float, default=4.0)
    options.add_argument("--repeats", type=int, default=5)
    chosen = options.parse_args(arguments)
    report = Report("verifying one tensor of a large checkpoint", chosen.json)
    with scratch(chosen.folder) as folder:
        if shutil.disk_usage(folder).free < 1.3 * chosen.gigabytes * 2**30:
            sys.exit(f"{folder}: too little free disk for a checkpoint of {chosen.gigabytes} GB")
        model, key_file, size = prepare(folder, chosen.gigabytes)
        report.note(
            f"checkpoint of {size / 1e9:.2f} GB, marked tensor {_checkpoint.MARKED_BYTES / 1e6:.0f}"
            " MB; page cache warm for all; medians"
        )
        measure(1, model, key_file)  # warms the cache
        found = measure(chosen.repeats, model, key_file)
        head = ["way", "time", "peer / this", "peak memory", "of the peer's", "bits"]
        report.table(head, rows_of(found), "warm page cache")
        judge(report, found)
        if drop_caches():
            report.table(head, rows_of(measure(1, model, key_file, cold=True)), "cold, one run")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
