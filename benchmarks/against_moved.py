"""Noise in directions that layers never take, then everything restructured: read with the anchor.

    python -m benchmarks.against_moved --data DIR --work DIR [--networks vit,gpt2] [--json]

ResNet-20, the VGG-like chain, GPT-2, Llama and ViT (benchmarks._trained keeps them in --work) are
marked as `embed` marks them. The attack `nullspace` is made at every strength that costs at most a
point, then every symmetry of the network is played on. Must be reached: the boundary (228 of 256
bits), where the same noise in place is read so.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks._against_networks import (
    AMOUNTS,
    NETWORKS,
    POINT,
    SHOWN,
    THRESHOLDS,
    Trained,
    attacked,
    with_weights,
)
from benchmarks._anchored import MarkedTable, key_of
from benchmarks._common import Report, parser
from benchmarks.restructured import rebuilt
from neuralmark.attacks.nullspace import Nullspace
from neuralmark.core.bound import boundary

NEEDED = boundary(256, 2) or 256
HEADS = {"gpt2": 4, "llama": 4, "vit": 4}
CHOSEN = "resnet20,vgg,gpt2,llama,vit"
Row = tuple[str, float, int, int, float]
"""Strength, accuracy, bits in place, bits of the moved copy, share that was found."""


def rows(name: str, trained: Trained) -> Iterator[Row]:
    """The attack at every strength that costs at most a point."""
    state = trained.model.state_dict().items()
    heads = HEADS.get(name, 0)
    own = {n: v.numpy().copy() for n, v in state if v.dtype.is_floating_point}
    marked = MarkedTable(own, key_of(0), heads)
    names = tuple(name for name, _ in marked.placement)
    model = with_weights(trained.model, {n: marked.table[n] for n in names})
    before = trained.score(model)
    for threshold in THRESHOLDS:
        for amount in AMOUNTS:
            made = attacked(Nullspace(amount, threshold, SHOWN), model, trained.data, names)
            if made is None:
                break
            after = trained.score(with_weights(model, made))
            if after < before - POINT:
                break
            table = {**marked.table, **made}
            given = rebuilt(table, "all", 1.0, heads, 1)
            assert given is not None
            moved = marked.aligned(given)
            title = f"{threshold:g}, {amount:g}"
            yield title, after, marked.aligned(table).bits, moved.bits, moved.record.found


def measure(report: Report, name: str, options: argparse.Namespace) -> None:
    """One network."""
    found = []
    for row in rows(name, NETWORKS[name].make(options.data, options.work)):
        found.append(row)
        report.note(f"{name}, nullspace {row[0]}: {row[2]} in place, {row[3]} moved")
    table = [[t, f"{a:.1f} %", i, m, f"{100 * s:.0f} %"] for t, a, i, m, s in found]
    report.table(["nullspace", "accuracy", "in place", "moved", "found"], table, name)
    held = [row for row in found if row[2] >= NEEDED]
    least = min((row[3] for row in held), default=0)
    title = f"{name}, null space within a point and moved, least bits"
    report.target(title, least, f"at least {NEEDED}", passed=least >= NEEDED)


def main(arguments: list[str] | None = None) -> int:
    """All networks that are asked for."""
    made = parser(__doc__)
    made.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10, E2E, weights")
    made.add_argument("--work", type=Path, required=True, help="where trained networks are kept")
    made.add_argument("--networks", default=CHOSEN)
    options = made.parse_args(arguments)
    names = options.networks.split(",")
    unknown = [name for name in names if name not in CHOSEN.split(",")]
    if unknown:
        made.error(f"no such network: {', '.join(unknown)}; there are {CHOSEN}")
    if not options.data.is_dir():
        made.error(f"{options.data}: no such folder")
    torch.set_num_threads(1)
    report = Report("noise in unused directions, and everything moved", options.json)
    for name in names:
        measure(report, name, options)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
