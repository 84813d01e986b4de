"""What folding batch norms into the convolutions before them does to a mark.

Every output channel of a convolution is scaled by its norm's factor, so that the norm can be left
out: same function, other weights. Read as stored, a default mark may then fall below the boundary;
read with every output row divided by its size, it must not. Fresh keys on the real CIFAR-10
ResNets, by claim and by search.

    python -m benchmarks.folding --data DIR        (DIR/weights/*resnet20*.th, *resnet56*.th)
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

import neuralmark
from benchmarks._common import Report, parser, scratch
from neuralmark.checkpoints import open_checkpoint
from neuralmark.marking.attempts import claimed
from neuralmark.marking.reading import FileSuspect
from neuralmark.marking.verification import find

EPSILON = 1e-5
PATTERNS = {"ResNet-20": "*resnet20*.th", "ResNet-56": "*resnet56*.th"}
HEAD = ["network", "keys", "unfolded", "as stored", "by rows", "below", "verified", "by search"]


def folded(path: Path) -> dict[str, torch.Tensor]:
    """The weights of a .th file without its batch norms."""
    saved = torch.load(path, weights_only=True, map_location="cpu")["state_dict"]
    state = {name.removeprefix("module."): tensor for name, tensor in saved.items()}
    out = {name: tensor for name, tensor in state.items() if "bn" not in name}
    for name in [name for name in out if "conv" in name]:
        norm = name.removesuffix(".weight").replace("conv", "bn")
        factor = state[f"{norm}.weight"] / torch.sqrt(state[f"{norm}.running_var"] + EPSILON)
        out[name] = out[name] * factor.reshape(-1, 1, 1, 1)
        bias = state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * factor
        out[name.removesuffix("weight") + "bias"] = bias
    return {name: tensor.contiguous() for name, tensor in out.items()}


def measure(source: Path, folder: Path) -> tuple[int, int, int, bool, bool]:
    """Bits before folding, after it as stored and by rows; verified with and without the claim."""
    key, marked = neuralmark.Key.new(), folder / f"marked{source.suffix}"
    unbound = neuralmark.EmbedOptions(anchor=False)  # what is read by position, and searched for
    done = neuralmark.embed(source, key, marked, unbound, overwrite=True)
    assert done.claim is not None
    assert done.verdict is not None
    file = folder / "folded.safetensors"
    save_file(folded(marked), file)
    suspect = FileSuspect(open_checkpoint(file), file.name)
    stored, rows = (
        find(suspect, key, attempt).matched
        for attempt in claimed(suspect.tensors(), done.claim.placement)
    )
    told = neuralmark.verify(file, key, claim=done.claim).verified
    return done.verdict.matched, stored, rows, told, neuralmark.verify(file, key).verified


def measured(report: Report, name: str, source: Path, options: argparse.Namespace) -> list[str]:
    """One network: a row of the table, and its targets."""
    with scratch(options.folder) as folder:
        found = [measure(source, folder) for _ in range(options.keys)]
    before, stored, rows, told, searched = (np.array(column) for column in zip(*found, strict=True))
    report.target(
        f"{name}, keys verified after folding",
        float(told.sum()),
        f"all {options.keys}",
        passed=bool(told.all()),
    )
    return [
        name,
        str(options.keys),
        f"{before.min()}",
        f"{stored.min()}–{stored.max()}",
        f"{rows.min()}–{rows.max()}",
        f"{(stored < 228).sum()}",
        f"{told.sum()}",
        f"{searched.sum()}",
    ]


def main(arguments: list[str] | None = None) -> int:
    """Measure both networks."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="folder with weights/*.th")
    options.add_argument("--keys", type=int, default=32, help="how many random keys")
    options.add_argument("--folder", type=Path, help="where temporary files go")
    chosen = options.parse_args(arguments)
    report = Report("marks after batch norms were folded", chosen.json)
    rows = [
        measured(report, name, next((chosen.data / "weights").glob(pattern)), chosen)
        for name, pattern in PATTERNS.items()
    ]
    report.table(HEAD, rows, "bits of 256: least, or least to most")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
