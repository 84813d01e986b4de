"""A run killed at a random moment and started again ends with the rows of an uninterrupted one."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
victim = Training("digits", "digits", epochs=9, rate=0.05, batch=64, images=512, test_images=64,
                  mark=Marking("votemark", strength=10.0))
attack = Assault(victim, "finetune", settings(epochs=1, batch=64), images=128)
for spec in (victim, attack):
    perform(store, None, spec, lambda done, total: print(done, flush=True))
"""


@contextmanager
def started(folder: Path) -> "Iterator[subprocess.Popen[str]]":
    """A run in a process of its own; its pipe is closed and its end awaited."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [PYTHON, "-c", SCRIPT, str(folder)], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def finish(folder: Path) -> None:
    with started(folder) as process:
        process.communicate()
    assert process.returncode == 0


def kill(folder: Path) -> None:
    """Let it do one step or more, then kill it at any moment."""
    with started(folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        time.sleep(random.uniform(0, 0.6))
        process.send_signal(signal.SIGKILL)  # does nothing to one that has ended


def rows(folder: Path) -> list[dict[str, Any]]:
    """Without what time does to them."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: timeless(v) for k, v in value.items() if "seconds" not in k}
        return [timeless(each) for each in value] if isinstance(value, list) else value

    found: list[dict[str, Any]] = timeless(list(Store(folder).rows()))
    return found


def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(whole)
    kill(broken)
    assert len(rows(broken)) < 2  # it was killed on the way
    finish(broken)
    assert json.dumps(rows(broken)) == json.dumps(rows(whole))
    assert not list(broken.glob("runs/*/state.pt"))
