"""Where a suite's attacks are fought: in this process, or in several that share the work.

Weights reach other processes through temporary files, the key in memory only.
"""

import hashlib
import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from neuralmark.anchors.anchor import Anchor
from neuralmark.attacks import name_of
from neuralmark.attacks.contract import Attack, Data, Weights
from neuralmark.attacks.engine.card import Skipped
from neuralmark.attacks.engine.launch import launch
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.attacks.engine.result import Result
from neuralmark.attacks.engine.subject import Subject, read_weights, subject_of
from neuralmark.core.encoding import canonical_json
from neuralmark.errors import AttackError, DataMismatchError, MissingExtraError
from neuralmark.keys.key import Key
from neuralmark.marking.evidence import Evidence, evidence_for
from neuralmark.records import Claim
from neuralmark.storage import files
from neuralmark.triggers.triggers import Triggers

Counting = Callable[[str, int, int], None]
"""Called with the attack that was done, how many are done, and how many there are."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""One thread per worker: the workers share the cores already."""

PIPE = 1 << 15
"""What surely fits into the pipe to a new process, even if that never reads it (bytes)."""

BROKEN = (
    "a worker process ended before its time: in a script, call the suite under"
    " 'if __name__ == \"__main__\":' (from stdin, use jobs=1); if memory ran out, use fewer jobs"
    " (jobs=1: none)"
)


@dataclass(frozen=True, eq=False)
class _Lent:
    """Weights of this process that lie in temporary files for the workers to read."""

    label: str
    dtypes: Mapping[str, str]
    files: Mapping[str, Path]
    heads: int = 0

    def read(self) -> Subject:
        """The subject as it was, without its module."""
        weights = {name: np.load(path) for name, path in self.files.items()}
        return replace(subject_of(weights), label=self.label, dtypes=self.dtypes, heads=self.heads)


def _lend(folder: Path, subject: Subject) -> _Lent:
    """Write the weights to a new folder within this one."""
    with files.writing(folder):
        own = Path(tempfile.mkdtemp(dir=folder))
        paths = {name: own / f"{i}.npy" for i, name in enumerate(subject.weights)}
        for name, path in paths.items():
            np.save(path, subject.weights[name], allow_pickle=False)
    return _Lent(subject.label, dict(subject.dtypes), paths, subject.heads)


@dataclass(frozen=True, eq=False)
class Arena:
    """What every attack of a suite is run on. The key travels to the workers in memory only."""

    subject: Subject | Path | _Lent
    key: Key
    claim: Claim | str | Path | None
    others: tuple[str | Path | Weights | _Lent, ...]
    seed: int
    data: Data | None = None
    anchor: Anchor | str | Path | None = None
    evidence: Evidence = field(default_factory=Evidence)
    """Claim and anchor as they were given or found: read once per process."""
    demand: bool = True
    """Whether a model without the mark is refused."""
    triggers: Triggers | str | Path | None = None
    """Of a key whose mark is read from activations."""

    def sought(self) -> Evidence:
        """The claim and the anchor, given or beside the model."""
        return evidence_for(self.subject, self.key, claim=self.claim, anchor=self.anchor)

    def entered(self) -> "Arena":
        """The same with everything read, once per process."""
        subject = self.subject
        subject = subject.read() if isinstance(subject, _Lent) else subject_of(subject)
        others = tuple(map(_table, self.others))
        return replace(self, subject=subject, others=others, evidence=self.sought())

    def lent(self, folder: Path) -> "Arena":
        """The same with all weights in files: a process that dies never reads its pipe."""
        subject = self.subject
        if isinstance(subject, Subject):
            subject = _lend(folder, subject)
        others = tuple(
            _lend(folder, subject_of(other)) if isinstance(other, Mapping) else other
            for other in self.others
        )
        return replace(self, subject=subject, others=others)

    def fight(self, attack: Attack) -> Result | Skipped:
        """Run one attack; one that cannot be run here says why."""
        assert not isinstance(self.subject, _Lent)
        try:
            result = launch(
                attack,
                self.subject,
                self.key,
                options=LaunchOptions(
                    others=[_table(other) for other in self.others],
                    seed=seed_of(attack, self.seed),
                    demand=self.demand,
                    anchor=self.evidence.anchor,
                ),
                claim=self.evidence.claim,
                data=self.data,
                triggers=self.triggers,
            )
        except DataMismatchError:  # the user's own checkpoints do not fit: no card without them
            raise
        except (AttackError, MissingExtraError) as error:
            return Skipped(name_of(attack), str(error), attack.variant)
        return replace(result, weights=None, model=None, key=None, triggers=None)


def _table(other: str | Path | Weights | _Lent) -> Weights:
    return other.read().weights if isinstance(other, _Lent) else read_weights(other)


def seed_of(attack: Attack, seed: int) -> int:
    """The seed of one attack: from the suite's seed and from what the attack is."""
    which = [seed, name_of(attack), attack.variant, repr(attack.strength)]
    return int.from_bytes(hashlib.sha256(canonical_json(which)).digest()[:8], "big") >> 1


def fight_here(
    arena: Arena, members: Sequence[Attack], progress: Counting | None
) -> list[Result | Skipped]:
    """One attack after the other in this process."""
    outcomes: list[Result | Skipped] = []
    for attack in members:
        outcomes.append(arena.fight(attack))
        if progress:
            progress(name_of(attack), len(outcomes), len(members))
    return outcomes


_entered: list[Arena] = []
"""The arena of this process, if it is a worker."""


def _enter(arena: Arena) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for us
    _entered[:] = [arena.entered()]


def _fight(attack: Attack) -> Result | Skipped:
    return _entered[0].fight(attack)


def _fight_in_processes(
    arena: Arena, members: Sequence[Attack], workers: int, progress: Counting | None
) -> list[Result | Skipped]:
    found: dict[int, Result | Skipped] = {}
    with _single_threaded(), tempfile.TemporaryDirectory(prefix="neuralmark-") as folder:
        arena = arena.lent(Path(folder))
        if len(pickle.dumps(arena)) > PIPE:
            _try_a_process()
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _enter, (arena,))
        try:
            futures = {pool.submit(_fight, attack): i for i, attack in enumerate(members)}
            for future in as_completed(futures):
                index = futures[future]
                found[index] = future.result()
                if progress:
                    progress(name_of(members[index]), len(found), len(members))
        except BrokenProcessPool:
            raise AttackError(BROKEN) from None
        except BaseException:
            _stop(pool)
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    return [found[i] for i in range(len(members))]


def _try_a_process() -> None:
    """Raise unless a new process comes up: one that dies would let us wait at its pipe for ever."""
    process = get_context("spawn").Process(target=os.getpid)
    process.start()
    process.join()
    if process.exitcode:
        raise AttackError(BROKEN)


def _stop(pool: ProcessPoolExecutor) -> None:
    """End the workers now: an attack may take minutes, and nobody waits for it any more."""
    for process in list((pool._processes or {}).values()):
        process.terminate()


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Processes started within use one thread each for their algebra."""
    former = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def fight_all(
    arena: Arena,
    subject: Subject,
    members: Sequence[Attack],
    jobs: int | None,
    progress: Counting | None,
) -> list[Result | Skipped]:
    """The attacks on weights alone, in processes where that is worth it."""
    workers = min(jobs or len(os.sched_getaffinity(0)), len(members))
    if workers > 1 and not isinstance(arena.anchor, Anchor):  # an open one stays where it is
        return _fight_in_processes(arena, members, workers, progress)
    others = tuple(map(_table, arena.others))
    ready = replace(arena, subject=subject, others=others, evidence=arena.sought())
    return fight_here(ready, members, progress)
