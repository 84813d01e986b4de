"""Runs that workers of the lab carry out: their processes import this module."""

import os
import signal
import time
from pathlib import Path

from neuralmark.errors import ParameterError
from neuralmark.lab.execution.engines import Notify
from neuralmark.lab.execution.store import Store
from neuralmark.lab.plan.spec import Probe, Spec, identity, settings
from tests.support.processes import PATIENCE


def count(folder: Path, spec: Spec, notify: Notify) -> None:
    """Write a row, and a line for every time it was begun."""
    store = Store.open(folder)
    home = store.folder(spec)
    with (home / "begun").open("a") as file:
        file.write(f"{os.getpid()}\n")
    notify(1, 2)
    store.finish(spec, {"value": len(spec.label)})


def die_once(folder: Path, spec: Spec, notify: Notify) -> None:
    """Be killed in the middle of the first try; the second finds what the first had saved."""
    home = Store.open(folder).folder(spec)
    if not (home / "half").exists():
        (home / "half").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
    count(folder, spec, notify)


def first_dies(folder: Path, first: str, spec: Spec, notify: Notify) -> None:
    """The worker of one run is killed in the middle; the others only count."""
    perform = die_once if identity(spec) == first else count
    perform(folder, spec, notify)


def die_always(folder: Path, spec: Spec, notify: Notify) -> None:
    """Never get anywhere."""
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(folder: Path, spec: Spec, notify: Notify) -> None:
    """Fail with a named error; run out of memory on odd seeds."""
    if getattr(spec, "seed", 0) % 2:
        raise MemoryError
    raise ParameterError("no such thing")


def meet(folder: Path, spec: Spec, notify: Notify) -> None:
    """Wait until another worker is at work too; only what hangs waits for so long."""
    (folder / f"{os.getpid()}.worker").touch()
    until = time.monotonic() + PATIENCE
    while len(list(folder.glob("*.worker"))) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    count(folder, spec, notify)


def sleep(folder: Path, spec: Spec, notify: Notify) -> None:
    """Say who works, and go on for long."""
    (Store.open(folder).folder(spec) / "worker").write_text(str(os.getpid()))
    time.sleep(2 * PATIENCE)


def probes(number: int) -> list[Spec]:
    return [Probe("overlap", settings(rounds=i)) for i in range(number)]


def begun(store: Store, spec: Spec) -> int:
    return len((store.folder(spec) / "begun").read_text().splitlines())
