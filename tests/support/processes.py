"""Starting real processes with torchrun."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.paths import ROOT

PATIENCE = 600
"""Seconds before a test gives a process up: only what hangs takes so long, on any machine."""


def torchrun(
    processes: int, script: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the script in this many processes, on loopback."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [*run, "--nproc-per-node", str(processes), str(script), *arguments],
        cwd=ROOT,
        env=env | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
