"""The runner and its engines: real processes, real kills."""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from neuralmark.errors import ResultsError
from neuralmark.lab.execution.engines import Engine, Here, Local
from neuralmark.lab.execution.runner import DONE, FAILED, SKIPPED, Board, carry_out
from neuralmark.lab.execution.store import Store
from neuralmark.lab.plan.spec import Assault, Probe, Spec, Training, identity
from tests.support.commands import PYTHON
from tests.support.paths import ROOT
from tests.support.processes import PATIENCE
from tests.support.runs import begun, count, die_always, die_once, meet, probes, refuse


@pytest.mark.parametrize("jobs", [0, 1, 2])
def test_every_run_is_made_once_and_skipped_the_second_time(tmp_path: Path, jobs: int) -> None:
    store = Store.open(tmp_path / "r")
    perform = partial(count, store.root)
    specs = probes(5)

    def engine() -> Engine:
        return Local(perform, jobs) if jobs else Here(perform)

    seen: list[int] = []
    board = carry_out(specs, store, engine(), lambda b: seen.append(b.count(DONE)))
    assert board.count(DONE) == 5
    assert seen == sorted(seen)
    again = carry_out([*specs, *probes(6)], store, engine())
    assert again.count(DONE) == 6
    assert [begun(store, spec) for spec in probes(6)] == [1] * 6
    assert len(list(store.rows())) == 6


def test_two_jobs_work_at_the_same_time(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "r")
    carry_out(probes(4), store, Local(partial(meet, store.root), 2))
    workers = {(store.folder(s) / "begun").read_text() for s in probes(4)}
    assert len(workers) == 2


def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "r")
    board = carry_out(probes(3), store, Local(partial(die_once, store.root), 2))
    assert board.count(DONE) == 3
    assert [begun(store, spec) for spec in probes(3)] == [1] * 3


def test_a_run_that_always_kills_its_worker_fails_in_the_end(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "r")
    board = carry_out(probes(1), store, Local(partial(die_always, store.root), 1))
    assert board.count(FAILED) == 1
    assert "killed" in board.failures()[0].why
    assert "batch" in board.failures()[0].why


def test_failures_are_named_and_what_waits_for_them_is_skipped(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "r")
    victim = Training("digits", "digits", 1, 0.1, 8)
    specs: list[Spec] = [Assault(victim, "noise"), Probe("overlap", seed=1)]
    board: Board = carry_out(specs, store, Local(partial(refuse, store.root), 1))
    states = {name: each.state for name, each in board.runs.items()}
    assert states[identity(victim)] == FAILED
    assert states[identity(specs[0])] == SKIPPED
    whys = {name: each.why for name, each in board.runs.items()}
    assert "ParameterError: no such thing" in whys[identity(victim)]
    assert "lower `batch`" in whys[identity(specs[1])]


def test_a_folder_of_another_version_or_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "lab.json").write_text('{"lab": 0}')
    with pytest.raises(ResultsError, match="never mixed"):
        Store.open(tmp_path / "old")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("")
    with pytest.raises(ResultsError, match="not a folder of lab results"):
        Store.open(tmp_path / "photos")
    store = Store.open(tmp_path / "new")
    spec = probes(1)[0]
    (store.folder(spec) / "row.json").write_text("{")
    with pytest.raises(ResultsError, match="run again"):
        store.row(spec)


ORPHANS = """
import sys
from functools import partial
from pathlib import Path
from neuralmark.lab.execution.engines import Local
from neuralmark.lab.execution.runner import carry_out
from neuralmark.lab.plan.spec import Probe
from neuralmark.lab.execution.store import Store
from tests.support.runs import sleep
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    two = [Probe("x", seed=seed) for seed in (1, 2)]
    carry_out(two, Store.open(folder), Local(partial(sleep, folder), 2))
"""


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    folder = tmp_path / "r"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    with subprocess.Popen([PYTHON, str(script), str(folder)], env=environment) as parent:
        found: list[Path] = []
        until = time.monotonic() + PATIENCE
        while len(found) < 2 and time.monotonic() < until:
            time.sleep(0.1)
            found = [path for path in folder.glob("runs/*/worker") if path.read_text()]
        parent.kill()
    workers = [int(path.read_text()) for path in found]
    assert len(workers) == 2
    while any(map(alive, workers)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(alive, workers))
