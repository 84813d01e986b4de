"""Runs killed anywhere and started again end with the rows of uninterrupted ones."""

import contextlib
import json
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from neuralmark.lab.execution.store import Store
from neuralmark.lab.execution.work import Workbench, perform
from neuralmark.lab.plan.spec import Assault, MarkingSpec, Spec, Training, settings

VICTIM = Training(
    "digits",
    "digits",
    epochs=6,
    rate=0.05,
    batch=64,
    images=256,
    test_images=64,
    mark=MarkingSpec("votemark", strength=10.0),
)
COURSE = {"epochs": 8, "rate": 0.05, "batch": 64}
RUNS: dict[str, Spec] = {
    "train": VICTIM,
    "finetune": Assault(VICTIM, "finetune", settings(**COURSE), images=128),
    "overwrite": Assault(VICTIM, "overwrite", settings(weight=50.0, **COURSE), images=128),
}
STEPS = 2
"""Of an epoch of the attacks, which tell of steps; the training tells of epochs."""
ALL = 6 + 2 * 8 * STEPS
"""What they tell in all."""
LOADED = ["torch._dynamo", "neuralmark.training.attach", "neuralmark.attacks.overwrite", __name__]

Told = tuple[str, int]
"""Which run, and how far it is."""


def killed_at(step: int) -> None:
    """From now on: before the step-th renaming or removal of a file; 0 is at once."""
    if step == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left = step

    def armed(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        return counted

    for name in ("replace", "unlink"):
        setattr(Path, name, armed(getattr(Path, name)))


def carry_out(folder: Path, pipe: Any, most: int, step: int) -> None:
    """All runs, in a process of their own; after so much was told, it is to be killed."""
    store, told = Store.open(folder), 0
    for name, spec in RUNS.items():

        def tell(done: int, total: int, name: str = name) -> None:
            nonlocal told
            pipe.send((name, done))
            told += 1
            if told == most:
                killed_at(step)

        perform(Workbench(store), spec, tell)


def part(folder: Path, most: int, step: int = 0) -> tuple[list[Told], bool]:
    """What they tell until they end or are killed; whether killed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=carry_out, args=(folder, theirs, most, step))
    process.start()
    theirs.close()
    heard: list[Told] = []
    with contextlib.suppress(EOFError):
        while True:
            heard.append(ours.recv())
    process.join()
    ours.close()
    assert process.exitcode in (0, -signal.SIGKILL)
    return heard, process.exitcode != 0


def least(name: str, done: int) -> int:
    """The first that a run can tell after it was killed when it had told of `done`."""
    return done + 1 if name == "train" else (done - 1) // STEPS * STEPS + 1


def rows(folder: Path) -> list[dict[str, Any]]:
    """Without what time does to them."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: timeless(v) for k, v in value.items() if "seconds" not in k}
        return [timeless(each) for each in value] if isinstance(value, list) else value

    found: list[dict[str, Any]] = timeless(list(Store(folder).rows()))
    return found


def test_killed_runs_end_as_if_they_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    everything, killed = part(whole, ALL + 1)
    assert len(everything) == ALL
    assert not killed
    rng, parts, killed = random.Random(5), [], True
    while killed:
        heard, killed = part(broken, rng.randint(4, 12), rng.randint(0, 3))
        parts.append(heard)
    assert {"finetune", "overwrite"} & {heard[-1][0] for heard in parts[:-1]}
    for before, after in pairwise(heard for heard in parts if heard):
        (name, done), (following, first) = before[-1], after[0]
        assert first >= least(name, done) if following == name else first == 1
    assert len(rows(broken)) == len(RUNS)
    assert json.dumps(rows(broken)) == json.dumps(rows(whole))
    for row in Store(broken).rows():
        assert 0 < row.get("attack_seconds", 0.001) <= row["seconds"]
    assert not list(whole.glob("runs/*/state*"))
