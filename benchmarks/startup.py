"""How long the command line takes to start, against `python -c "import numpy"`.

    python -m benchmarks.startup [--repeats 15] [--json]

`neuralmark --help`, and `neuralmark verify` of a small safetensors file with a key file without a
passphrase, as whole processes. Must be reached: each at most 3 times the peer (medians of runs in
turn), and neither imports torch.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

import neuralmark
from benchmarks import _tensors
from benchmarks._common import (
    Report,
    command_line,
    interleaved,
    median,
    median_ratio,
    parser,
    scratch,
    seconds_of,
)

PEER = [sys.executable, "-c", "import numpy"]


def run(command: list[str]) -> None:
    """Run a process that must end well."""
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)


def imports_of(arguments: list[str]) -> set[str]:
    """Top-level modules that the command imports."""
    code = "import sys; from neuralmark.cli import main; main()"
    command = [sys.executable, "-X", "importtime", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip().partition(".")[0] for line in lines}


def small_case(folder: Path) -> list[str]:
    """A small marked model and its key file; the arguments that verify it."""
    source, marked, key_file = (
        folder / name for name in ("source.safetensors", "marked.safetensors", "plain.nmkey")
    )
    weights = np.random.default_rng(0).standard_normal((512, 512), dtype=np.float32)
    _tensors.save(source, {"layer.weight": weights})
    key = neuralmark.Key.new()
    key.save(key_file, None)
    neuralmark.embed(source, key, marked)
    return ["verify", str(marked), "--key", str(key_file)]


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=15)
    chosen = options.parse_args(arguments)
    report = Report("starting the command line", chosen.json)
    rows = []
    with scratch() as folder:
        for name, words in (("--help", ["--help"]), ("verify", small_case(folder))):
            command = [command_line(), *words]
            run(command)
            mine, peer = interleaved(
                chosen.repeats,
                lambda c=command: seconds_of(lambda: run(c)),  # type: ignore[misc]
                lambda: seconds_of(lambda: run(PEER)),
            )
            ratio = median_ratio(mine, peer)
            modules = imports_of(words)
            heavy = sorted(modules & {"torch", "scipy", "cryptography", "rich", "safetensors"})
            rows.append(
                [
                    f"neuralmark {name}",
                    f"{1000 * median(mine):.0f} ms",
                    f"{1000 * median(peer):.0f} ms",
                    f"{ratio:.2f}",
                    len(modules),
                    " ".join(heavy),
                ]
            )
            report.target(f"{name}: times the peer", ratio, "at most 3", passed=ratio <= 3)
            torch = float("torch" in modules)
            report.target(f"{name}: imports torch", torch, "0", passed=not torch)
    head = ["command", "median", "import numpy", "ratio", "packages", "heavy ones imported"]
    report.table(head, rows, f"{chosen.repeats} runs in turn")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
