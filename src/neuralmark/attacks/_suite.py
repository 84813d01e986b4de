"""The suite: every attack that can be run, at every strength of its sweep, side by side.

Without data, those on weights alone, shared among processes. With a live module and data, those
that train or look at activations too, one after the other in this process.

Each attack draws from a generator of its own, seeded by the suite's seed and by what the attack
is, so the card does not depend on how many processes share the work.
"""

import hashlib
import os
import pickle
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralmark import files
from neuralmark.attacks import get, name_of, names
from neuralmark.attacks._base import Attack, Data, Weights, checked_seed
from neuralmark.attacks._card import Card, Skipped, make_card
from neuralmark.attacks._launch import Result, _carried, launch
from neuralmark.attacks._subject import Subject, check_data, read_weights, subject_of
from neuralmark.core.encoding import canonical_json
from neuralmark.errors import (
    AttackError,
    DataMismatchError,
    MissingDataError,
    MissingExtraError,
    NeuralMarkWarning,
    ParameterError,
)
from neuralmark.keyfile import Key
from neuralmark.records import Claim

if TYPE_CHECKING:
    import torch

Counting = Callable[[str, int, int], None]
"""Called with the attack that was done, how many are done, and how many there are."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""One thread a worker: the workers share the cores already."""

CALL = "neuralmark.attacks.launch(neuralmark.attacks.get({name!r})(), module, key"
DATA = (
    "needs data: run it from Python, "
    f"{CALL}, data=neuralmark.attacks.Data(inputs, labels, test_inputs, test_labels))"
)
MODEL = f"needs the running network: run it from Python, {CALL})"
HUNGRY = frozenset({"data", "model"})
OTHERS = "needs another checkpoint of the same shape: --other FILE (in Python others=[...])"
ALONE = "has no sweep: run it alone"


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

    def read(self) -> Subject:
        """The subject as it was, without its module."""
        weights = {name: np.load(path) for name, path in self.files.items()}
        return replace(subject_of(weights), label=self.label, dtypes=self.dtypes)


def _lend(folder: Path, subject: Subject) -> _Lent:
    """Write the weights to a new folder within this one."""
    with files.writing(folder):
        own = Path(tempfile.mkdtemp(dir=folder))
        paths = {name: own / f"{i}.npy" for i, name in enumerate(subject.weights)}
        for name, path in paths.items():
            np.save(path, subject.weights[name], allow_pickle=False)
    return _Lent(subject.label, dict(subject.dtypes), paths)


@dataclass(frozen=True, eq=False)
class _Arena:
    """What every attack of a suite is run on. The key travels to the workers in memory only."""

    subject: Subject | Path | _Lent
    key: Key
    claim: Claim | None
    others: tuple[str | Path | Weights | _Lent, ...]
    seed: int
    data: Data | None = None

    def entered(self) -> "_Arena":
        """The same with everything read, once a process."""
        subject = self.subject
        subject = subject.read() if isinstance(subject, _Lent) else subject_of(subject)
        return replace(self, subject=subject, others=tuple(map(_table, self.others)))

    def lent(self, folder: Path) -> "_Arena":
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
                claim=self.claim,
                others=[_table(other) for other in self.others],
                data=self.data,
                seed=seed_of(attack, self.seed),
            )
        except DataMismatchError:  # the user's own checkpoints do not fit: no card without them
            raise
        except (AttackError, MissingExtraError) as error:
            return Skipped(name_of(attack), str(error), attack.variant)
        return replace(result, weights=None, model=None, key=None)


def _table(other: str | Path | Weights | _Lent) -> Weights:
    return other.read().weights if isinstance(other, _Lent) else read_weights(other)


def suite(
    model: "str | Path | Weights | torch.nn.Module",
    key: Key,
    *,
    claim: Claim | str | Path | None = None,
    others: Sequence[str | Path | Weights] = (),
    seed: int = 0,
    jobs: int | None = None,
    only: Sequence[str] | None = None,
    data: Data | None = None,
    progress: Counting | None = None,
) -> Card:
    """Run every attack that needs no data on the model, and give its robustness card.

    A live module is attacked through its weights; with `data` also by the attacks that train it or
    look at its activations (`only` keeps that short). `others` are checkpoints of the same shape,
    for the attacks that merge; `only` names the attacks to run; `jobs` is the number of processes
    (default: one a core; 1: none but this one). In a script, more than one process needs the
    usual guard, `if __name__ == "__main__":`. If none of the attacks can be run, that is an error.
    """
    start = time.perf_counter()
    seed = _checked(seed, jobs, only)
    if isinstance(claim, str | Path):
        claim = Claim.load(claim)
    whole = subject_of(model)
    check_data(data, whole)
    subject = replace(whole, module=None)
    before = _carried(subject, key, claim)
    for other in others:
        read_weights(other)  # what cannot be read is said here, not by a worker
    live = whole.module is not None
    members, here, skipped = _shared_out(only, others=bool(others), live=live, data=bool(data))
    source = Path(model) if isinstance(model, str | Path) else subject
    arena = _Arena(source, key, claim, tuple(others), seed)
    outcomes = _fight_all(arena, subject, members, jobs, progress)
    outcomes += _fight_here(replace(arena, subject=whole, data=data), here, progress)
    fought = [
        (attack, outcome)
        for attack, outcome in zip(members + here, outcomes, strict=True)
        if isinstance(outcome, Result)
    ]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
    skipped += gathered(refused, {name_of(attack) for attack, _ in fought})
    if not fought:
        _nothing_run(skipped, tried=bool(outcomes))
    seconds = time.perf_counter() - start
    return make_card(before, fought, skipped, seed=seed, seconds=seconds)


def _checked(seed: Any, jobs: Any, only: Any) -> int:
    """The seed; numbers and names that cannot be meant are refused."""
    whole = isinstance(jobs, int | np.integer) and not isinstance(jobs, bool)
    if jobs is not None and not (whole and jobs >= 1):
        raise ParameterError(f"jobs must be a whole number, 1 or more, not {jobs!r}")
    named = only is None or (not isinstance(only, str) and all(isinstance(n, str) for n in only))
    if not named or (only is not None and not len(only)):
        raise ParameterError(f'only must be a list of names, as in only=["noise"], not {only!r}')
    return checked_seed(seed)


def _nothing_run(skipped: Sequence[Skipped], *, tried: bool) -> None:
    reasons = "; ".join(f"{each.attack} {each.why}" for each in skipped)
    words = f"none of these attacks could be run here: {reasons}"
    raise AttackError(words) if tried else MissingDataError(words)


def _shared_out(
    only: Sequence[str] | None, *, others: bool, live: bool, data: bool
) -> tuple[list[Attack], list[Attack], list[Skipped]]:
    """Attacks on weights alone, those that are given the live module, and why the rest cannot."""
    trained = live and data
    members, skipped = enlist(only, others=others, data=trained)
    here = [attack for attack in members if live and getattr(attack, "preserves", False)]
    members = [attack for attack in members if attack not in here]
    if trained:
        hungry, more = enlist(only, others=others, data=True, hungry=True)
        here += hungry
        skipped = list(dict.fromkeys(skipped + more))
    return members, here, skipped


def _fight_all(
    arena: _Arena,
    subject: Subject,
    members: Sequence[Attack],
    jobs: int | None,
    progress: Counting | None,
) -> list[Result | Skipped]:
    """The attacks on weights alone, in processes where that is worth it."""
    workers = min(jobs or len(os.sched_getaffinity(0)), len(members))
    if workers > 1:
        return _fight_in_processes(arena, members, workers, progress)
    return _fight_here(replace(arena, subject=subject).entered(), members, progress)


def enlist(
    only: Sequence[str] | None, *, others: bool, data: bool = False, hungry: bool = False
) -> tuple[list[Attack], list[Skipped]]:
    """The sweeps of all attacks (or of those named) that can run, and why the rest cannot.

    Hungry ones need a module or data; with `data` they are left to a list of their own.
    """
    wanted = names() if only is None else [name.replace("_", "-") for name in only]
    members: list[Attack] = []
    skipped: list[Skipped] = []
    for name in dict.fromkeys(wanted):
        try:
            attack = get(name)
        except MissingExtraError as error:
            skipped.append(Skipped(name, str(error)))
            continue
        if data and hungry != bool(attack.needs & HUNGRY):
            continue
        why = obstacle(attack, others=others, data=data)
        sweep, left_out = ((), []) if why else _sweep(attack)
        members += sweep
        reasons = left_out if sweep else [why or ALONE]
        skipped += [Skipped(name, reason) for reason in reasons]
    return members, skipped


def _sweep(attack: type[Attack]) -> tuple[Sequence[Attack], list[str]]:
    """An attack's sweep, and what it warns that it leaves out."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NeuralMarkWarning)
        sweep = attack.sweep()
    return sweep, [str(each.message) for each in caught]


def gathered(refused: Sequence[Skipped], fought: set[str]) -> list[Skipped]:
    """Each refusal once; of an attack that never ran for one reason, without its variants."""
    reasons: dict[str, set[str]] = {}
    for each in refused:
        reasons.setdefault(each.attack, set()).add(each.why)
    whole = {attack for attack, why in reasons.items() if attack not in fought and len(why) == 1}
    return list(dict.fromkeys(replace(e, variant="") if e.attack in whole else e for e in refused))


def obstacle(attack: type[Attack], *, others: bool, data: bool = False) -> str:
    """Why an attack cannot be run on weights alone; empty: it can."""
    if "data" in attack.needs and not data:
        return DATA.format(name=name_of(attack))
    if "model" in attack.needs and not data:
        return MODEL.format(name=name_of(attack))
    return OTHERS if "others" in attack.needs and not others else ""


def seed_of(attack: Attack, seed: int) -> int:
    """The seed of one attack: from the suite's seed and from what the attack is."""
    which = [seed, name_of(attack), attack.variant, repr(attack.strength)]
    return int.from_bytes(hashlib.sha256(canonical_json(which)).digest()[:8], "big") >> 1


def _fight_here(
    arena: _Arena, members: Sequence[Attack], progress: Counting | None
) -> list[Result | Skipped]:
    outcomes: list[Result | Skipped] = []
    for attack in members:
        outcomes.append(arena.fight(attack))
        if progress:
            progress(name_of(attack), len(outcomes), len(members))
    return outcomes


_entered: list[_Arena] = []
"""The arena of this process, if it is a worker."""


def _enter(arena: _Arena) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for us
    _entered[:] = [arena.entered()]


def _fight(attack: Attack) -> Result | Skipped:
    return _entered[0].fight(attack)


def _fight_in_processes(
    arena: _Arena, members: Sequence[Attack], workers: int, progress: Counting | None
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
