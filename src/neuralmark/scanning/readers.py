"""Workers of this machine: processes that read in a sandbox, each kept for many batches."""

import select
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from neuralmark.checkpoints import place_of
from neuralmark.errors import NeuralMarkError, SandboxError
from neuralmark.sandbox.confined import Confined, Protection
from neuralmark.sandbox.limits import SandboxLimits
from neuralmark.sandbox.served import PlaceServer
from neuralmark.scanning import work
from neuralmark.scanning.contract import Errand, ScanOptions, ScanTerms, TargetName, Todo
from neuralmark.scanning.keyring import Keyring
from neuralmark.scanning.work import Outcome

SOON = 1.0
"""Seconds after which whoever watches is told how far it is, though nothing has ended."""
START = 120.0
"""Seconds for the libraries of a worker to be loaded, on a busy machine."""


class Returned(NamedTuple):
    """How an errand ended: what was found, or why the worker could not carry it out."""

    errand: Errand
    outcomes: list[Outcome]
    error: NeuralMarkError | None = None


class Readers(ABC):
    """Workers that carry out errands, some at a time."""

    protection: Protection
    """By what they are kept from harm."""

    @abstractmethod
    def free(self) -> int:
        """How many more errands can be begun now."""

    @abstractmethod
    def begin(self, errand: Errand) -> None:
        """Begin one."""

    @abstractmethod
    def wait(self) -> list[Returned]:
        """Wait until something ends, or for a while."""

    def aligning(self) -> list[TargetName]:
        """Models that are put back in order now, as far as workers can tell."""
        return []

    @abstractmethod
    def close(self) -> None:
        """End all workers."""


class LocalReaders(Readers):
    """Processes of this machine."""

    def __init__(self, keyring: Keyring, terms: ScanTerms, options: ScanOptions) -> None:
        """As many as the options say; each is told the keys first."""
        self._keyring, self._terms = keyring, terms
        self._limits = options.sandbox
        self._servers: dict[Confined, PlaceServer] = {}
        self._aligning: set[int] = set()
        self._workers = [self._start() for _ in range(options.workers)]
        self._errands: dict[Confined, Errand] = {}
        self.protection = self._workers[0].protection

    def _start(self) -> Confined:
        server = PlaceServer(lambda target: place_of(target, self._terms.remote))
        worker = started(self._keyring, self._limits, server)
        self._servers[worker] = server
        return worker

    def _hear(self, what: str, number: int, begun: int) -> None:
        """Take what a worker tells of itself; what it makes up of others is not kept."""
        if what != work.ALIGNING or not any(todo.number == number for todo in self._given()):
            return
        (self._aligning.add if begun else self._aligning.discard)(number)

    def _given(self) -> Iterator[Todo]:
        return (todo for errand in self._errands.values() for todo in errand.todo)

    def aligning(self) -> list[TargetName]:
        """Those of which a worker said so, and has not said that it has ended."""
        return [todo.target for todo in self._given() if todo.number in self._aligning]

    def free(self) -> int:
        """Workers without an errand."""
        return len(self._workers) - len(self._errands)

    def begin(self, errand: Errand) -> None:
        """Give it to an idle worker."""
        worker = next(each for each in self._workers if each not in self._errands)
        self._errands[worker] = errand
        self._servers[worker].allow(todo.target for todo in errand.todo)
        todo = tuple(map(tuple, errand.todo))
        words = errand.stage, todo, self._terms
        worker.begin(work.carry_out, *words, models=len(todo), progress=self._hear)

    def wait(self) -> list[Returned]:
        """What ended, soon, or nothing; a dead worker is replaced."""
        soonest = min(SOON, *(worker.left for worker in self._errands))
        select.select(list(self._errands), [], [], soonest)
        found = []
        for worker in list(self._errands):
            ended = worker.heard()
            if ended is None:
                continue
            errand = self._errands.pop(worker)
            self._aligning -= {todo.number for todo in errand.todo}
            if ended.dead:
                del self._servers[worker]
                self._workers[self._workers.index(worker)] = self._start()
            found.append(returned(errand, ended.value, ended.error))
        return found

    def close(self) -> None:
        """End them."""
        for worker in self._workers:
            worker.close()


def started(keyring: Keyring, limits: SandboxLimits | None, server: PlaceServer) -> Confined:
    """A worker that knows the keys; without limits, one that is not confined.

    The time that its libraries take to load is no model's.
    """
    worker = Confined(limits, server.answer, confine=limits is not None)
    usual = worker.limits
    try:
        worker.limits = replace(usual, seconds=max(START, usual.seconds))
        worker.call(work.prepare, keyring)
        worker.limits = usual
    except BaseException:
        worker.close()
        raise
    return worker


def returned(errand: Errand, value: Any, error: NeuralMarkError | None) -> Returned:
    """What a worker said, checked: for each model of the errand one outcome."""
    if error is not None:
        return Returned(errand, [], error)
    numbers = {todo.number for todo in errand.todo}
    try:
        if len(value) == len(numbers) and {each["number"] for each in value} == numbers:
            return Returned(errand, value)
    except (TypeError, KeyError):
        pass
    return Returned(errand, [], SandboxError("the sandboxed process answered nonsense"))
