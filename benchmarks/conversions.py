"""Every conversion of every kind of network, read with the anchor.

    python -m benchmarks.conversions --data DIR --work DIR [--only NAME] [--moved] [--json]

One secret per network. Two readings, as the product does it: 228 of 256 bits are needed. With
--moved everything is restructured first (channels, streams and heads permuted, flipped, rescaled,
rotated, dummies added), so that nothing lies where names or rows would lead.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from benchmarks._anchored import MarkedTable, Table
from benchmarks._common import Report, parser
from benchmarks.restructured import networks, rebuilt
from neuralmark import Key
from neuralmark.attacks.convert import WAYS, ConversionWay, Convert
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.errors import AttackError

NEEDED = 228


def converted(table: Table, how: ConversionWay, heads: int) -> Table | None:
    """The network in another form; None where there is nothing to convert so."""
    try:
        result = launch(Convert(how, heads), dict(table), options=LaunchOptions(seed=1))
    except AttackError:
        return None
    assert result.weights is not None
    return {n: np.asarray(v, np.float32) for n, v in result.weights.items()}


def main(arguments: list[str] | None = None) -> int:
    """Convert all networks in all ways."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--work", type=Path, required=True)
    options.add_argument("--only", help="one network")
    options.add_argument("--moved", action="store_true", help="restructure everything first")
    chosen: argparse.Namespace = options.parse_args(arguments)
    report = Report("converted networks read with anchors", chosen.json)
    found: dict[str, dict[str, str]] = {}
    names = []
    for name, table, heads in networks(chosen.data, chosen.work, chosen.only):
        marked = MarkedTable(table, Key.new(), heads)
        names.append(name)
        given = rebuilt(marked.table, "all", 1.0, heads, 1) if chosen.moved else marked.table
        assert given is not None  # every network can be restructured
        for how in WAYS:
            other = converted(given, how, heads)
            if other is None:
                continue
            aligned = marked.aligned(other)
            bits = max(marked.by_position(other) or 0, aligned.bits)
            found.setdefault(how, {})[name] = f"{bits} ({100 * aligned.record.found:.0f} %)"
            passed = bits >= NEEDED
            report.target(f"{how}, {name}", bits, f"at least {NEEDED}", passed=passed)
    rows = [[how, *(bits.get(name, "–") for name in names)] for how, bits in found.items()]
    report.table(["conversion", *names], rows, "bits of 256, and the share that was found")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
