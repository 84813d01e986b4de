"""Independent models aligned to an anchor: the matched bits must be those of fair coins.

The anchor is of one network; the suspects never had anything to do with it (another depth, random
weights, another training of the same network). Each is put into the anchor's order once; then
10,000 secrets read it, each with a key of its own, derived as the product does.

    python -m benchmarks.anchor_chance --data DIR [--work DIR] [--secrets 10000] [--json]
"""

import argparse
import hashlib
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.stats import binom, chisquare

from benchmarks._anchored import MarkedTable, Table, matched, resnet, restored_flat
from benchmarks._common import Report, parser
from neuralmark import Key
from neuralmark.core import readout
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Parameters, Terms, derive

PARAMETERS = Parameters()
Flat = npt.NDArray[np.float64]


def randomised(table: Table, seed: int) -> Table:
    """Gaussian weights of the same sizes and deviations."""
    rng = np.random.default_rng(seed)
    return {
        n: (rng.standard_normal(v.shape) * v.std()).astype(np.float32) if v.ndim > 1 else v
        for n, v in table.items()
    }


def counts(flat: Flat, terms: Terms, secrets: int, label: str) -> npt.NDArray[np.int64]:
    """How many secrets match how many bits."""
    found = np.zeros(PARAMETERS.bits + 1, np.int64)
    for number in range(secrets):
        secret = hashlib.sha256(f"anchor_chance/{label}/{number}".encode()).digest()
        mark = derive(secret, terms)
        carriers = Carriers.of(mark, len(flat))
        pooled = readout.pool(flat[carriers.positions(0, carriers.size)], carriers.pools)
        found[matched(mark, pooled)] += 1
    return found


def test(seen: npt.NDArray[np.int64]) -> tuple[float, float, float]:
    """Mean, deviation, and p of a chi-square test against the binomial law."""
    total, at = int(seen.sum()), np.arange(len(seen))
    mean = float((seen * at).sum() / total)
    spread = float(np.sqrt((seen * (at - mean) ** 2).sum() / (total - 1)))
    edges = [0, *range(112, 145, 2), len(seen)]
    law = binom.pmf(at, PARAMETERS.bits, 0.5) * total
    bins = [(seen[a:b].sum(), law[a:b].sum()) for a, b in pairwise(edges)]
    p = float(chisquare([s for s, _ in bins], [e for _, e in bins]).pvalue)
    return mean, spread, p


def suspects(data: Path, work: Path | None) -> list[tuple[str, Table, Table]]:
    """Which model is aligned to the anchor of which, and what they are called."""
    small, large = resnet(data, 20), resnet(data, 56)
    pairs = [
        ("ResNet-56 to ResNet-20", small, large),
        ("ResNet-20 to ResNet-56", large, small),
        ("random weights to ResNet-20", small, randomised(small, 1)),
        ("random weights to ResNet-56", large, randomised(large, 2)),
    ]
    if work is not None:
        from safetensors.numpy import load_file

        for name in ("vgg", "gpt2", "llama"):
            one, two = (load_file(work / f"{name}-{seed}" / "model.safetensors") for seed in (0, 1))
            pairs.append((f"another {name} to {name}", one, two))
    return pairs


def main(arguments: list[str] | None = None) -> int:
    """Align each pair once, read it with many secrets."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="folder with weights/*.th")
    options.add_argument("--work", type=Path, help="folder of benchmarks._trained")
    options.add_argument("--secrets", type=int, default=10_000)
    chosen: argparse.Namespace = options.parse_args(arguments)
    report = Report(f"independent models aligned, {chosen.secrets:,} secrets each", chosen.json)
    rows, every = [], np.zeros(PARAMETERS.bits + 1, np.int64)
    for label, original, suspect in suspects(chosen.data, chosen.work):
        marked = MarkedTable(original, Key.new(PARAMETERS))
        flat = restored_flat(marked, suspect)
        terms = Terms(PARAMETERS, marked.placement, b"", marked.anchor.digest)
        seen = counts(flat, terms, chosen.secrets, label)
        mean, spread, p = test(seen)
        every += seen
        largest = int(np.flatnonzero(seen)[-1])
        rows.append([label, f"{mean:.2f}", f"{spread:.2f}", largest, f"{p:.3f}"])
        report.target(f"{label}: mean", mean, "128 +- 0.4", passed=abs(mean - 128) <= 0.4)
        report.target(f"{label}: deviation", spread, "8 +- 0.2", passed=abs(spread - 8) <= 0.2)
    report.table(["aligned", "mean", "deviation", "largest", "chi-square p"], rows)
    mean, spread, p = test(every)
    report.note(f"all together: mean {mean:.3f}, deviation {spread:.3f}, chi-square p = {p:.3f}")
    report.target("chi-square p of all", p, "above 0.001", passed=p > 0.001)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
