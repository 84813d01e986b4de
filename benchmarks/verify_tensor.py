"""Verifying one large tensor, against hashing its bytes.

    python -m benchmarks.verify_tensor [--repeats 9] [--json]

A marked 4096 x 11008 bfloat16 tensor in a safetensors file; `neuralmark.verify` by its name (it
reads, hashes, finds the carriers, pools and judges) against SHA-256 over the same bytes in memory,
in turn. Must be reached with a key of default parameters: at most 3 times SHA-256 (medians). Keys
of more rounds and of the published filter are shown beside it, and what an unmarked tensor takes,
which is read again with its rows levelled.
"""

import hashlib
import sys
from functools import partial
from pathlib import Path

import numpy as np

import neuralmark
from benchmarks import _tensors
from benchmarks._common import Report, interleaved, median, parser, scratch, seconds_of
from neuralmark import Key, Parameters

NAME, SHAPE = "model.layers.0.mlp.down_proj.weight", (4096, 11008)
KEYS = {
    "default: stream, R=1": Parameters(),
    "stream, R=4": Parameters(rounds=4),
    "tiled, R=4 (as published)": Parameters(rounds=4, filter="tiled"),
}


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=9)
    options.add_argument("--folder", type=Path, help="where the file is made (and removed)")
    chosen = options.parse_args(arguments)
    report = Report("verifying one tensor against hashing it", chosen.json)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(SHAPE, dtype=np.float32) * np.float32(0.02)
    raw = _tensors.bfloat16(weights)
    rows, default = [], 0.0
    with scratch(chosen.folder) as folder:
        path = folder / "model.safetensors"
        _tensors.save(path, {NAME: raw}, "BF16")
        hashing = partial(seconds_of, lambda: hashlib.sha256(raw.data).digest())
        for name, parameters in KEYS.items():
            key = Key.new(parameters)
            marked = folder / "marked.safetensors"
            alone = neuralmark.EmbedOptions(tensors=[NAME], anchor=False)
            neuralmark.embed(path, key, marked, alone, overwrite=True)
            files = {"marked": marked, "unmarked": path}
            for kind, file in files.items():
                verify = partial(neuralmark.verify, file, key, tensors=[NAME])
                assert verify().verified == (kind == "marked")
                mine, peer = interleaved(chosen.repeats, partial(seconds_of, verify), hashing)
                ratio = median(mine) / median(peer)
                default = default or ratio
                times = [f"{1000 * median(each):.0f} ms" for each in (mine, peer)]
                rows.append([name, kind, *times, f"{ratio:.2f}"])
    head = ["key", "tensor", "verify", "SHA-256", "ratio"]
    report.table(head, rows, "4096 x 11008, bfloat16, 90 MB")
    report.target("verify / SHA-256", default, "at most 3", passed=default <= 3)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
