"""A run killed at a random moment and started again ends with the rows of an uninterrupted one."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.conftest import PYTHON

from neuralmark.lab.store import Store

SCRIPT = """
import sys
from pathlib import Path
from neuralmark.lab.spec import Assault, Marking, Training, settings
from neuralmark.lab.store import Store
from neuralmark.lab.work import perform
store = Store.open(sys.argv[1])
victim = Training("digits", "digits", epochs=6, rate=0.05, batch=64, images=512, test_images=64,
                  mark=Marking("votemark", strength=10.0))
attack = Assault(victim, "finetune", settings(epochs=1, batch=64), images=128)
for spec in (victim, attack):
    perform(store, None, spec, lambda done, total: print(done, flush=True))
"""


def start(folder: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [PYTHON, "-c", SCRIPT, str(folder)], env=environment, stdout=subprocess.PIPE, text=True
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    """Without what time does to them."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: timeless(v) for k, v in value.items() if "seconds" not in k}
        return [timeless(each) for each in value] if isinstance(value, list) else value

    found: list[dict[str, Any]] = timeless(list(Store(folder).rows()))
    return found


def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = start(tmp_path / "whole")
    assert whole.wait() == 0
    broken = tmp_path / "broken"
    kills = 0
    for _ in range(3):
        running = start(broken)
        assert running.stdout is not None
        running.stdout.readline()  # at least one epoch, then at any moment
        time.sleep(random.uniform(0, 0.5))
        if running.poll() is None:
            running.send_signal(signal.SIGKILL)
            kills += 1
        running.wait()
        running.stdout.close()
    assert kills
    last = start(broken)
    assert last.wait() == 0
    assert json.dumps(rows(broken)) == json.dumps(rows(tmp_path / "whole"))
    assert not list(broken.glob("runs/*/state.pt"))
