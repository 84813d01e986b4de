"""The suite: every attack that can be run, at every strength of its sweep, side by side.

Without data, those on weights alone, shared among processes. With a live module and data, those
that train or look at activations too, one after the other in this process.

Each attack draws from a generator of its own, seeded by the suite's seed and by what the attack
is, so the card does not depend on how many processes share the work.
"""

import hashlib
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from neuralmark.attacks import get, name_of, names
from neuralmark.attacks._base import Attack, Data, Weights
from neuralmark.attacks._card import Card, Skipped, make_card
from neuralmark.attacks._launch import Result, _carried, launch
from neuralmark.attacks._subject import Subject, read_weights, subject_of
from neuralmark.core.encoding import canonical_json
from neuralmark.errors import (
    AttackError,
    DataMismatchError,
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


@dataclass(frozen=True, eq=False)
class _Arena:
    """What every attack of a suite is run on. It travels to the workers in memory only."""

    subject: Subject | Path
    key: Key
    claim: Claim | None
    others: tuple[str | Path | Weights, ...]
    seed: int
    data: Data | None = None

    def entered(self) -> "_Arena":
        """The same with everything read, once a process."""
        subject = self.subject
        if isinstance(subject, Path):
            subject = subject_of(subject)
        else:  # what came through a pipe has lost its protection against writing
            weights = subject_of(subject.weights).weights
            subject = replace(subject, weights=weights, module=None)
        return replace(self, subject=subject, others=tuple(map(read_weights, self.others)))

    def fight(self, attack: Attack) -> Result | Skipped:
        """Run one attack; one that cannot be run here says why."""
        try:
            result = launch(
                attack,
                self.subject,
                self.key,
                claim=self.claim,
                others=self.others,
                data=self.data,
                seed=seed_of(attack, self.seed),
            )
        except DataMismatchError:  # the user's own checkpoints do not fit: no card without them
            raise
        except (AttackError, MissingExtraError) as error:
            return Skipped(name_of(attack), str(error), attack.variant)
        return replace(result, weights=None, model=None, key=None)


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
    usual guard, `if __name__ == "__main__":`.
    """
    start = time.perf_counter()
    if jobs is not None and jobs < 1:
        raise ParameterError(f"jobs must be 1 or more, not {jobs}")
    if isinstance(claim, str | Path):
        claim = Claim.load(claim)
    subject = replace(subject_of(model), module=None)
    before = _carried(subject, key, claim)
    for other in others:
        read_weights(other)  # what cannot be read is said here, not by a worker
    live = subject_of(model) if data is not None else None
    trained = data is not None and live is not None and live.module is not None
    members, skipped = enlist(only, others=bool(others), data=trained)
    source = Path(model) if isinstance(model, str | Path) else subject
    arena = _Arena(source, key, claim, tuple(others), seed)
    outcomes = _fight_all(arena, subject, members, jobs, progress)
    if trained:
        assert live is not None
        hungry, _ = enlist(only, others=bool(others), data=True, hungry=True)
        stage = replace(arena, subject=live, data=data)
        outcomes += _fight_here(stage, hungry, progress)
        members = members + hungry
    fought = [
        (attack, outcome)
        for attack, outcome in zip(members, outcomes, strict=True)
        if isinstance(outcome, Result)
    ]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
    skipped += gathered(refused, {name_of(attack) for attack, _ in fought})
    seconds = time.perf_counter() - start
    return make_card(before, fought, skipped, seed=seed, seconds=seconds)


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
    with _single_threaded():
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _enter, (arena,))
        try:
            futures = {pool.submit(_fight, attack): i for i, attack in enumerate(members)}
            for future in as_completed(futures):
                index = futures[future]
                found[index] = future.result()
                if progress:
                    progress(name_of(members[index]), len(found), len(members))
        except BrokenProcessPool:
            raise AttackError(
                "a worker process ended before its time: in a script, call the suite under"
                " 'if __name__ == \"__main__\":'; if memory ran out, use fewer jobs (jobs=1: none)"
            ) from None
        except BaseException:
            _stop(pool)
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    return [found[i] for i in range(len(members))]


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
