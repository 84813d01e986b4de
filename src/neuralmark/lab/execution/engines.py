"""Where runs are carried out: processes of this machine, or a Ray cluster.

An engine takes a run and says later how it ended. A worker that dies (killed, out of memory) does
not take its run with it: the run is given to another one and resumes from what it had saved.
"""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neuralmark.errors import NeuralMarkError
from neuralmark.lab.plan.spec import Spec, from_dict, identity, to_dict
from neuralmark.workers.ray_cluster import TRIES, RayCluster

Perform = Callable[[Spec, "Notify"], None]
"""Carries out a run; must be importable by name, so that other processes find it."""
Notify = Callable[[int, int], None]
"""Called with how much of a run is done, and how much there is."""

ENDS = ("done", "failed")
"""What ends a run; other events only tell how it goes."""
PAUSE = 0.25
"""Seconds between two reports of progress, so that they cost nothing."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a run: progress, done, or failed."""

    run: str
    what: str
    done: int = 0
    total: int = 0
    why: str = ""


class Engine(ABC):
    """Carries out runs, some at a time."""

    @abstractmethod
    def free(self) -> int:
        """How many more runs can be begun now."""

    @abstractmethod
    def begin(self, spec: Spec) -> None:
        """Begin a run."""

    @abstractmethod
    def wait(self) -> list[Event]:
        """Wait until something happens."""

    @abstractmethod
    def close(self) -> None:
        """End all workers."""


class Here(Engine):
    """The calling process, one run after the other."""

    def __init__(self, perform: Perform) -> None:
        """`perform` is called with each run."""
        self._perform, self._events = perform, list[Event]()

    def free(self) -> int:
        """One at a time."""
        return 0 if self._events else 1

    def begin(self, spec: Spec) -> None:
        """Carry it out at once."""
        self._events.append(_carried_out(self._perform, spec, lambda done, total: None))

    def wait(self) -> list[Event]:
        """What happened."""
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Nothing to end."""


class Local(Engine):
    """Processes of this machine, each kept for many runs."""

    def __init__(self, perform: Perform, jobs: int) -> None:
        """`jobs` workers, one thread each."""
        self._context = multiprocessing.get_context("spawn")
        self._perform = perform
        self._workers = [self._start() for _ in range(jobs)]
        self._deaths: dict[str, int] = {}

    def _start(self) -> "_Worker":
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._perform), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def free(self) -> int:
        """Workers without a run."""
        return sum(worker.spec is None for worker in self._workers)

    def begin(self, spec: Spec) -> None:
        """Give it to an idle worker."""
        worker = next(worker for worker in self._workers if worker.spec is None)
        worker.spec = spec
        try:
            worker.pipe.send(to_dict(spec))
        except OSError:  # it died idle: the next wait sees it
            return

    def wait(self) -> list[Event]:
        """Messages of the workers, and what became of those that died."""
        waiting: list[Any] = [worker.pipe for worker in self._workers]
        waiting += [worker.process.sentinel for worker in self._workers]
        ready = multiprocessing.connection.wait(waiting)
        events: list[Event] = []
        for i, worker in enumerate(self._workers):
            try:
                while worker.pipe in ready and worker.pipe.poll():
                    event: Event = worker.pipe.recv()
                    events.append(event)
                    if event.what in ENDS:
                        worker.spec = None
            except (EOFError, OSError):
                pass
            if not worker.process.is_alive():
                events += self._replace(i)
        return events

    def _replace(self, index: int) -> list[Event]:
        """Start another worker, and give it the run that the dead one had."""
        dead = self._workers[index]
        self._workers[index] = self._start()
        if dead.spec is None:
            return []
        run = identity(dead.spec)
        self._deaths[run] = self._deaths.get(run, 0) + 1
        if self._deaths[run] < TRIES:
            self._workers[index].spec = dead.spec
            self._workers[index].pipe.send(to_dict(dead.spec))
            return [Event(run, "restarted", why=_cause(dead.process.exitcode))]
        why = f"{TRIES} workers died on it: {_cause(dead.process.exitcode)}"
        return [Event(run, "failed", why=why)]

    def close(self) -> None:
        """End the workers; what they were doing resumes another time."""
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()


@dataclass
class _Worker:
    process: Any
    pipe: Any
    spec: Spec | None = None


def _serve(pipe: Any, perform: Perform) -> None:
    """A worker's life: take a run, carry it out, tell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for us
    threading.Thread(target=_die_with_parent, daemon=True).start()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    while True:
        try:
            spec = from_dict(pipe.recv())
        except (EOFError, OSError):
            return
        ended = _carried_out(perform, spec, _reporter(identity(spec), pipe.send))
        pipe.send(ended)
        if _BROKEN in ended.why:
            return


def _die_with_parent() -> None:
    """A worker whose parent was killed would work on beside the next one's."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _reporter(run: str, send: Callable[[Event], None]) -> Notify:
    """Sends how far a run is, now and then."""
    said = -PAUSE

    def notify(done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= PAUSE:
            said = now
            send(Event(run, "progress", done, total))

    return notify


def _carried_out(perform: Perform, spec: Spec, notify: Notify) -> Event:
    run = identity(spec)
    try:
        perform(spec, notify)
    except NeuralMarkError as error:
        return Event(run, "failed", why=f"{type(error).__name__}: {error}")
    except MemoryError:
        return Event(run, "failed", why=OUT_OF_MEMORY)
    except Exception as error:
        if any(words in str(error).lower() for words in _NO_MEMORY):
            return Event(run, "failed", why=OUT_OF_MEMORY)
        where = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        return Event(run, "failed", why=why)
    return Event(run, "done")


_NO_MEMORY = ("out of memory", "not enough memory", "allocate memory")
_BROKEN = "CUDA error"
"""A process that has seen one of these computes no more."""
OUT_OF_MEMORY = "out of memory: lower `batch` (or `images`) in the preset, or run fewer jobs"


def _cause(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return f"killed (signal 9; {OUT_OF_MEMORY})"
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


class Ray(Engine):
    """A Ray cluster; the results' folder must be one that all its machines see."""

    def __init__(self, perform: Perform, jobs: int | None, *, gpus: bool = True) -> None:
        """Joins the cluster that RAY_ADDRESS names, or starts one here; a GPU a run, if wanted."""
        self._cluster = RayCluster(_carry_out_remotely, jobs, gpus=gpus)
        self._perform = perform

    def free(self) -> int:
        """Cores without a run."""
        return self._cluster.free()

    def begin(self, spec: Spec) -> None:
        """Send it to the cluster."""
        self._cluster.begin(identity(spec), self._perform, to_dict(spec))

    def wait(self) -> list[Event]:
        """Those that ended; Ray itself tries again what a dead worker had."""
        return [
            Event(ended.tag, "failed", why=ended.why) if ended.value is None else ended.value
            for ended in self._cluster.wait()
        ]

    def close(self) -> None:
        """Cancel what runs; a cluster that was there before stays."""
        self._cluster.close()


def _carry_out_remotely(perform: Perform, data: dict[str, Any]) -> Event:
    return _carried_out(perform, from_dict(data), lambda done, total: None)
