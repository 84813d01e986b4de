"""Setting up the carriers of a tensor of 50 million weights.

    python -m benchmarks.carrier_setup [--weights 50000000] [--json]

Must be reached: at most 10 times a `numpy.flatnonzero` over a random mask of that size in the
same run, for R = 4; memory in proportion to the carriers.
"""

import sys
import tracemalloc

import numpy as np

from benchmarks._common import Report, interleaved, median, parser, seconds_of
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Parameters, Terms, derive


def main(arguments: list[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--weights", type=int, default=50_000_000)
    options = made.parse_args(arguments)
    report = Report(f"carriers of {options.weights:,} weights", options.json)
    mask = np.random.default_rng(0).random(options.weights, dtype=np.float32) < 0.5
    rows, ratio = [], 0.0
    for rounds in range(1, 9):
        mark = derive(bytes(32), Terms(Parameters(rounds=rounds), (("w", (options.weights,)),)))
        carriers = Carriers.of(mark, options.weights)
        ours, peer = interleaved(
            5,
            lambda carriers=carriers: seconds_of(carriers.positions),  # type: ignore[misc]
            lambda: seconds_of(lambda: np.flatnonzero(mask)),
        )
        tracemalloc.start()
        carriers.positions()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        share = median(ours) / median(peer)
        ratio = share if rounds == 4 else ratio
        rows.append([rounds, f"{carriers.size:,}", f"{share:.2f}", f"{peak / carriers.size:.1f}"])
    report.table(["R", "carriers", "time / flatnonzero", "peak bytes per carrier"], rows)
    report.target("set-up / flatnonzero, R=4", ratio, "at most 10", passed=ratio <= 10)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
