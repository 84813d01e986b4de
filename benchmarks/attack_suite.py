"""The whole attack suite on a real ResNet-56 with its mark: how long, and what the card says.

    python -m benchmarks.attack_suite --data DIR [--jobs 2] [--json]

DIR is as for benchmarks.resnets. The network is marked post hoc with a default key. Must
be reached: every data-free attack in under 3 minutes on 2 cores.
"""

import sys
import time
from pathlib import Path

import neuralmark
from benchmarks._common import Report, parser, scratch
from neuralmark import Key
from neuralmark.attacks import SuiteOptions, suite

FILE = "weights/akamaster_resnet56-4bfd9763.th"


def main(arguments: list[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--data", type=Path, required=True)
    made.add_argument("--jobs", type=int, default=2)
    options = made.parse_args(arguments)
    report = Report("the attack suite on ResNet-56", options.json)
    with scratch() as folder:
        key = Key.new()
        marked = neuralmark.embed(options.data / FILE, key, folder / "marked.th")
        start = time.perf_counter()
        card = suite(
            folder / "marked.th", key, options=SuiteOptions(jobs=options.jobs), claim=marked.claim
        )
        seconds = time.perf_counter() - start
    told = card.to_dict()
    report.note(f"weights changed by {100 * marked.change_relative:.2f} %; {seconds:.0f} s")
    rows = [
        [
            f"{row['attack']} {row['variant']}".strip(),
            "never" if row["flip"] is None else f"{row['flip']:g}",
            " ".join(str(point["matched"]) for point in row["points"]),
        ]
        for row in told["rows"]
    ]
    report.table(["attack", "flips at", "bits along the sweep"], rows)
    report.target("suite, seconds", seconds, "below 180", passed=seconds < 180)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
