"""The same verdict, bit for bit, whatever computes it: threads, numpy, Python.

A restructured ResNet-20 is verified in fresh processes with one and two threads of BLAS, and with
every other interpreter that is named (--python, may be repeated: one of an environment with another
numpy, or of another Python; it must have numpy, scipy, cryptography, click, rich, safetensors).

    python -m benchmarks.anchor_repeat --data DIR [--python PATH ...] [--json]
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import neuralmark
from benchmarks._anchored import resnet
from benchmarks._common import ROOT, Report, parser, scratch
from benchmarks.restructured import rebuilt

PASSPHRASE = "not a secret"
VOLATILE = ("date", "versions", "model")
SCRIPT = """
import json, sys, numpy, neuralmark
key = neuralmark.Key.load(sys.argv[2], sys.argv[4])
told = neuralmark.verify(sys.argv[1], key, claim=sys.argv[3]).to_dict()
told["alignment"].pop("seconds")
told["with"] = [sys.version.split()[0], numpy.__version__]
print(json.dumps(told))
"""


def verdict(python: str, threads: int, files: list[str]) -> dict[str, Any]:
    """A verdict given by a fresh process."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "PYTHONPATH": str(ROOT / "src"),
    }
    done = subprocess.run(
        [python, "-c", SCRIPT, *files, PASSPHRASE],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def main(arguments: list[str] | None = None) -> int:
    """Verify in every way, compare all members."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--python", action="append", default=[], help="another interpreter")
    options.add_argument("--folder", type=Path, help="where temporary files go")
    chosen: argparse.Namespace = options.parse_args(arguments)
    report = Report("the same verdict everywhere", chosen.json)
    with scratch(chosen.folder) as folder:
        save_file(resnet(chosen.data, 20), folder / "model.safetensors")
        key = neuralmark.Key.new()
        key.save(folder / "k.nmkey", PASSPHRASE, cost=12)
        neuralmark.embed(folder / "model.safetensors", key, folder / "marked.safetensors")
        from safetensors.numpy import load_file

        other = rebuilt(dict(load_file(folder / "marked.safetensors")), "all", 8, 0, 0)
        assert other is not None
        rng = np.random.default_rng(0)
        noisy = {
            n: (v + 0.2 * v.std() * rng.standard_normal(v.shape)).astype(np.float32)
            if v.ndim > 1
            else v
            for n, v in other.items()
        }
        save_file(noisy, folder / "suspect.safetensors")
        names = ("suspect.safetensors", "k.nmkey", "marked.safetensors.claim.json")
        files = [str(folder / name) for name in names]
        ways = [(sys.executable, 1), (sys.executable, 2), *((each, 1) for each in chosen.python)]
        told = [verdict(python, threads, files) for python, threads in ways]
    first = {k: v for k, v in told[0].items() if k not in (*VOLATILE, "with")}
    rows = []
    for (_, threads), each in zip(ways, told, strict=True):
        same = {k: v for k, v in each.items() if k not in (*VOLATILE, "with")} == first
        label = f"Python {each['with'][0]}, numpy {each['with'][1]}, {threads} thread(s)"
        rows.append([label, each["matched"], "yes" if same else "no"])
        report.target(label, float(same), "the same verdict", passed=same)
    report.table(["computed with", "bits", "all members equal"], rows)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
