"""What a mark survives: a 4096 x 4096 Gaussian tensor marked at the default strength.

    python -m benchmarks.survival [--side 4096] [--keys 3] [--json]

Must be reached, for every key: still verified after noise of 50 % of the weights' deviation,
50 % random pruning, bfloat16 and per-channel int8; and in float8 files (E4M3, E5M2) every margin
at least the strength asked for after rounding. Harder treatments are shown without a target.
The peer of every row is a key that did not make the mark, judged on the same treated weights.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

import neuralmark
from benchmarks import _tensors
from benchmarks._common import Report, parser, scratch
from neuralmark.checkpoints import open_checkpoint
from neuralmark.checkpoints.readers.dtypes import encode
from neuralmark.core.readout import scatter_unit
from neuralmark.marking.placement import catalogue, placement_of, select
from neuralmark.marking.reading import Attempt, read_marked, require_carriers
from neuralmark.marking.verification import margins_of

Weights = npt.NDArray[np.float32]
Treatment = Callable[[Weights, np.random.Generator], Weights]
NAME = "layer.weight"


def noise(share: float) -> Treatment:
    def treat(w: Weights, rng: np.random.Generator) -> Weights:
        return w + rng.standard_normal(w.shape, dtype=np.float32) * np.float32(share * w.std())

    return treat


def pruned(share: float) -> Treatment:
    def treat(w: Weights, rng: np.random.Generator) -> Weights:
        return np.where(rng.random(w.shape, dtype=np.float32) >= share, w, np.float32(0))

    return treat


def smallest_pruned(share: float) -> Treatment:
    def treat(w: Weights, rng: np.random.Generator) -> Weights:
        del rng
        size = np.abs(w)
        return np.where(size > np.quantile(size, share), w, np.float32(0))

    return treat


def brain_float(w: Weights, rng: np.random.Generator) -> Weights:
    del rng
    return (_tensors.bfloat16(w).astype(np.uint32) << 16).view(np.float32)


def integers(bits: int, group: int | None = None) -> Treatment:
    """Round to nearest and dequantise, one scale per row (output channel) or per group of a row."""

    def treat(w: Weights, rng: np.random.Generator) -> Weights:
        del rng
        rows = w.reshape(-1, group or w.shape[1])
        scale = np.abs(rows).max(axis=1, keepdims=True) / np.float32(2 ** (bits - 1) - 1)
        whole = np.rint(rows / np.where(scale == 0, 1, scale))
        values: Weights = whole * scale
        return values.reshape(w.shape)

    return treat


REQUIRED: dict[str, Treatment] = {
    "noise 50 %": noise(0.5),
    "random pruning 50 %": pruned(0.5),
    "bfloat16": brain_float,
    "int8 per channel": integers(8),
}
HARDER: dict[str, Treatment] = {
    "noise 100 %": noise(1.0),
    "random pruning 80 %": pruned(0.8),
    "random pruning 90 %": pruned(0.9),
    "magnitude pruning 90 %": smallest_pruned(0.9),
    "int4, groups of 128": integers(4, 128),
}


def gaussian(side: int, seed: int) -> Weights:
    return np.random.default_rng(seed).standard_normal((side, side), dtype=np.float32) * np.float32(
        0.02
    )


def survive(report: Report, folder: Path, side: int, keys: int) -> None:
    """Mark, treat, verify; one row per treatment, the worst of all keys."""
    source, marked, treated = (folder / f"{n}.safetensors" for n in ("source", "marked", "treated"))
    found: dict[str, list[neuralmark.Verdict]] = {name: [] for name in (*REQUIRED, *HARDER)}
    strangers: dict[str, int] = dict.fromkeys(found, 0)
    for seed in range(keys):
        _tensors.save(source, {NAME: gaussian(side, seed)})
        key, stranger = neuralmark.Key.new(), neuralmark.Key.new()
        done = neuralmark.embed(source, key, marked, overwrite=True)
        report.note(
            f"key {seed + 1}: strength {done.strength:.2f}, weights changed by"
            f" {100 * done.change_relative:.2f} %, {done.weights_per_pool} carriers per pool"
        )
        weights = _tensors.load(marked, NAME)
        rng = np.random.default_rng(1000 + seed)
        for name, treat in (REQUIRED | HARDER).items():
            _tensors.save(treated, {NAME: treat(weights, rng)})
            found[name].append(neuralmark.verify(treated, key, claim=done.claim))
            other = neuralmark.verify(treated, stranger, tensors=[NAME])
            strangers[name] = max(strangers[name], other.matched)
    rows = []
    for name, verdicts in found.items():
        worst = min(verdicts, key=lambda verdict: verdict.matched)
        survived = sum(verdict.verified for verdict in verdicts)
        rows.append(
            [
                name,
                f"{worst.matched}/{worst.bits}",
                f"{worst.smallest_margin:+.2f}",
                f"{survived}/{keys}",
                strangers[name],
            ]
        )
        if name in REQUIRED:
            wanted = f"verified for {keys} of {keys} keys"
            report.target(name, survived, wanted, passed=survived == keys)
    head = ["treatment", "bits (worst key)", "smallest margin", "verified", "best stranger's bits"]
    report.table(head, rows, f"{side} x {side}, float32, default strength, {keys} keys")


def float8(report: Report, folder: Path, side: int) -> None:
    """Embed into float8 files; margins against the unmarked file's own unit."""
    rows = []
    for dtype in ("F8_E4M3", "F8_E5M2"):
        source, marked = folder / "source8.safetensors", folder / "marked8.safetensors"
        raw = encode(gaussian(side, 77).ravel().astype(np.float64), dtype).reshape(side, side)
        _tensors.save(source, {NAME: raw}, dtype)
        for strength in (None, 1.0, 2.0):
            key = neuralmark.Key.new()
            done = neuralmark.embed(
                source,
                key,
                marked,
                options=neuralmark.EmbedOptions(strength=strength),
                overwrite=True,
            )
            verdict = neuralmark.verify(marked, key, claim=done.claim)
            assert done.claim is not None
            anchor = done.claim.anchor_digest
            share = smallest_share(source, marked, key, anchor) / done.strength
            rows.append(
                [
                    dtype,
                    "default" if strength is None else strength,
                    f"{done.strength:.3f}",
                    f"{100 * done.change_relative:.2f} %",
                    f"{verdict.matched}/256",
                    f"{share:.4f}",
                ]
            )
            report.target(
                f"{dtype}, strength {done.strength:.2f}: smallest margin / strength asked",
                share,
                "at least 1, all bits",
                passed=share >= 1 - 1e-6 and verdict.matched == verdict.bits,
            )
    head = ["dtype", "asked", "strength", "change", "bits", "smallest margin / strength"]
    report.table(head, rows, f"{side} x {side}, float8 files")


def smallest_share(source: Path, marked: Path, key: neuralmark.Key, anchor: bytes) -> float:
    """Smallest margin in the written file, in units of the scatter of the unmarked one."""
    pooled = []
    for path in (source, marked):
        checkpoint = open_checkpoint(path)
        chosen = select(catalogue(checkpoint), [NAME])
        mark = key.at(placement_of(chosen), anchor)
        carriers = require_carriers(mark, placement_of(chosen))
        attempt = Attempt(placement_of(chosen), chosen, "names")
        pooled.append(read_marked(checkpoint, attempt, carriers).pooled)
    return float(margins_of(mark, pooled[1]).min() / scatter_unit(pooled[0]))


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--side", type=int, default=4096, help="rows and columns of the tensor")
    options.add_argument("--keys", type=int, default=3, help="how many random keys")
    options.add_argument("--folder", type=Path, help="where temporary files go")
    chosen: argparse.Namespace = options.parse_args(arguments)
    report = Report("what a mark survives", chosen.json)
    with scratch(chosen.folder) as folder:
        survive(report, folder, chosen.side, chosen.keys)
        float8(report, folder, chosen.side)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
