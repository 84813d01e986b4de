"""The same verdict, bit for bit, whatever computes it: threads, numpy, Python.

A restructured ResNet-20 (and, with --work, the small GPT-2, Llama and ViT of benchmarks._trained,
rotated as well) with noise is verified in fresh processes with one and two threads of BLAS, and
with every other interpreter that is named (--python, may be repeated: one of an environment with
another numpy, or of another Python; it must have numpy, scipy, cryptography, click, rich,
safetensors).

    python -m benchmarks.anchor_repeat --data DIR [--work DIR] [--python PATH ...] [--json]
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

import neuralmark
from benchmarks._anchored import Table
from benchmarks._common import ROOT, Report, parser, scratch
from benchmarks.restructured import networks, rebuilt

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


def written(network: tuple[str, Table, int], folder: Path) -> list[str]:
    """A marked network restructured and with noise: the suspect, the key, the claim."""
    name, table, heads = network
    save_file(table, folder / f"{name}.safetensors")
    key = neuralmark.Key.new()
    key.save(folder / f"{name}.nmkey", PASSPHRASE, cost=12)
    marked = folder / f"{name}-marked.safetensors"
    options = neuralmark.EmbedOptions(heads=heads)
    neuralmark.embed(folder / f"{name}.safetensors", key, marked, options)
    other = rebuilt(dict(load_file(marked)), "all", 8, heads, 0)
    assert other is not None
    rng = np.random.default_rng(0)
    noisy = {
        n: (v + 0.2 * v.std() * rng.standard_normal(v.shape)).astype(np.float32)
        if v.ndim > 1
        else v
        for n, v in other.items()
    }
    suspect = folder / f"{name}-suspect.safetensors"
    save_file(noisy, suspect)
    return [str(suspect), str(folder / f"{name}.nmkey"), f"{marked}.claim.json"]


def main(arguments: list[str] | None = None) -> int:
    """Verify in every way, compare all members."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--work", type=Path, help="folder of benchmarks._trained")
    options.add_argument("--python", action="append", default=[], help="another interpreter")
    options.add_argument("--folder", type=Path, help="where temporary files go")
    chosen: argparse.Namespace = options.parse_args(arguments)
    report = Report("the same verdict everywhere", chosen.json)
    ways = [(sys.executable, 1), (sys.executable, 2), *((each, 1) for each in chosen.python)]
    wanted = ("resnet20", "gpt2", "llama", "vit")
    rows = []
    with scratch(chosen.folder) as folder:
        for network in networks(chosen.data, chosen.work or folder, None):
            if network[0] not in wanted:
                continue
            files = written(network, folder)
            told = [verdict(python, threads, files) for python, threads in ways]
            first = members(told[0])
            for (_, threads), each in zip(ways, told, strict=True):
                same = members(each) == first
                made = f"Python {each['with'][0]}, numpy {each['with'][1]}, {threads} thread(s)"
                label = f"{network[0]}, {made}"
                rows.append([label, each["matched"], "yes" if same else "no"])
                report.target(label, float(same), "the same verdict", passed=same)
    report.table(["computed with", "bits", "all members equal"], rows)
    return report.finish()


def members(told: dict[str, Any]) -> dict[str, Any]:
    """What must be the same."""
    return {name: value for name, value in told.items() if name not in (*VOLATILE, "with")}


if __name__ == "__main__":
    sys.exit(main())
