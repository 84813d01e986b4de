"""What a worker does with a batch: headers first, then weights; rows come out, as plain values.

Whatever is wrong with one model becomes its row. What kills the worker is found by its parent,
which gives the models of the batch to others, one by one.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.locating.suspect import CheckpointWeights
from neuralmark.anchors.sealed import load_anchor
from neuralmark.api import verify
from neuralmark.checkpoints import Checkpoint, open_checkpoint
from neuralmark.errors import CheckpointError, InputError
from neuralmark.marking import coverage
from neuralmark.marking.options import VerifyOptions
from neuralmark.marking.placement import Tensor, catalogue
from neuralmark.records import Verdict
from neuralmark.remote import is_url
from neuralmark.sandbox import child
from neuralmark.sandbox.served import ServedPlace
from neuralmark.scanning.contract import (
    ALWAYS,
    FINDINGS,
    HEADERS,
    NEVER,
    NOTHING,
    UNREADABLE,
    ScanFailure,
    ScanRow,
    ScanStatus,
    ScanTerms,
    Stage,
    TargetName,
    Todo,
    readable,
)
from neuralmark.scanning.keyring import Keyring, Sought, claim_names, keys_beside
from neuralmark.scanning.kin import FAR, AnchorSketch
from neuralmark.scanning.planning import HeaderPlan, Ways, plan_for, signature
from neuralmark.scanning.pooling import MarkCache
from neuralmark.scanning.screening import Screened, screen

RULED_OUT = "headers and shapes rule every mark out"
KEPT_PLANS = 64
KEPT_ANCHORS = 16
KEPT_FOLDERS = 64

Outcome = dict[str, Any]
"""Of a model: its place in the list, and its rows; or what its header says, to be read later."""


T = TypeVar("T")


class _Recent(Generic[T]):
    """What was made last, up to a count."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, T] = OrderedDict()

    def get(self, name: str, make: Callable[[], T]) -> T:
        """What goes by this name, made where it is not there."""
        if name in self._kept:
            self._kept.move_to_end(name)
        else:
            self._kept[name] = make()
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return self._kept[name]


@dataclass
class WorkBench:
    """What a worker keeps between batches."""

    keyring: Keyring
    marks: MarkCache = field(default_factory=MarkCache)
    plans: _Recent[HeaderPlan] = field(default_factory=lambda: _Recent(KEPT_PLANS))
    anchors: _Recent[tuple[Anchor, AnchorSketch]] = field(
        default_factory=lambda: _Recent(KEPT_ANCHORS)
    )
    folders: _Recent[tuple[str, ...]] = field(default_factory=lambda: _Recent(KEPT_FOLDERS))


_bench: WorkBench | None = None


def prepare(keyring: Keyring) -> None:
    """Take the keys, before the first batch."""
    global _bench
    _bench = WorkBench(keyring)


def carry_out(stage: Stage, todo: Sequence[Todo], terms: ScanTerms) -> list[Outcome]:
    """Look at these models, in order."""
    assert _bench is not None
    if stage == HEADERS:
        return [_from_header(_bench, Todo(*each), terms) for each in todo]
    return list(_from_weights(_bench, [Todo(*each) for each in todo], terms))


ALIGNING = "aligning"
"""How a worker tells its parent the number of the model that it puts back in order."""


def _beat() -> None:
    if child.sandboxed():
        child.tell("", 0, 0)


@contextmanager
def _aligning(todo: Todo) -> Iterator[None]:
    """Tell the parent that a model is put back in order, and when that has ended."""
    if not child.sandboxed():
        yield
        return
    child.tell(ALIGNING, todo.number, 1)
    try:
        yield
    finally:
        child.tell(ALIGNING, todo.number, 0)


# Headers.


@dataclass(frozen=True)
class _OpenModel:
    todo: Todo
    model: Checkpoint
    known: list[Tensor]
    signature: str
    stamps: list[tuple[Any, ...]]

    @classmethod
    def of(cls, todo: Todo) -> "_OpenModel":
        _refuse_dead_link(todo.target)
        model = open_checkpoint(_place(todo.target)).with_others()
        known = catalogue(model)
        return cls(todo, model, known, signature(known), model.stamps())


def _refuse_dead_link(target: TargetName) -> None:
    """Say what is wrong with a link to nothing: a file of its name is there, after all."""
    if not is_url(target) and os.path.lexists(target) and not Path(target).exists():
        raise InputError(f"{target}: a link to nothing")


def _place(target: TargetName) -> str | ServedPlace:
    """A path, or a model that is far: the parent reads it for a worker."""
    return ServedPlace(target) if is_url(target) and child.sandboxed() else target


def _from_header(bench: WorkBench, todo: Todo, terms: ScanTerms) -> Outcome:
    _beat()
    try:
        opened = _OpenModel.of(todo)
        plan = _plan(bench, opened, terms)
        if plan.empty and not _claims(bench, todo.target):
            lost = {
                place: _lost(opened, bench.keyring.sought[way.sought], way.failure)
                for place, way in enumerate(plan.ways)
                if way.failure is not None
            }
            return _outcome(todo, _without(_not_found(opened, plan, RULED_OUT), plan, lost))
        return {"number": todo.number, "signature": opened.signature, "size": plan.size}
    except MemoryError:
        raise
    except Exception as error:
        return failed(todo, error)


def _plan(bench: WorkBench, opened: _OpenModel, terms: ScanTerms) -> HeaderPlan:
    return bench.plans.get(
        opened.signature,
        lambda: plan_for(opened.known, bench.keyring, align=terms.align != NEVER),
    )


def failed(todo: Todo, error: Exception) -> Outcome:
    """The row of a model that could not be read."""
    return _outcome(todo, [ScanFailure.of(error).row(todo.target)])


def _outcome(todo: Todo, rows: Sequence[ScanRow]) -> Outcome:
    return {"number": todo.number, "rows": [readable(row.to_dict()) for row in rows]}


def _not_found(opened: _OpenModel, plan: HeaderPlan, why: str, lost: int = 0) -> ScanRow:
    status: ScanStatus = NOTHING
    unread = plan.unread + lost
    if plan.weights and unread >= coverage.FROM * plan.weights:
        share = 100 * min(1.0, unread / plan.weights)
        form = plan.why or "NaN or infinity"
        status, why = UNREADABLE, f"{share:.3g} % of its weights could not be read: {form}; {why}"
    row = ScanRow(opened.todo.target, status, why)
    return replace(row, format=opened.model.format, weights=plan.weights)


# Weights.


def _from_weights(bench: WorkBench, todo: Sequence[Todo], terms: ScanTerms) -> Iterator[Outcome]:
    alike: dict[str, list[_OpenModel]] = {}
    for each in todo:
        try:
            opened = _OpenModel.of(each)
        except MemoryError:
            raise
        except Exception as error:
            yield failed(each, error)
            continue
        alike.setdefault(opened.signature, []).append(opened)
    for group in alike.values():
        yield from _group(bench, group, terms)


def _group(bench: WorkBench, group: Sequence[_OpenModel], terms: ScanTerms) -> Iterator[Outcome]:
    """Models with one header; one that breaks the reading of all is found by reading each alone."""
    plan = _plan(bench, group[0], terms)
    try:
        models = [opened.model for opened in group]
        seen = screen(models, plan, bench.keyring, bench.marks, terms.among, _beat)
    except MemoryError:
        raise
    except Exception as error:
        if len(group) == 1:
            yield failed(group[0].todo, error)
            return
        for opened in group:
            yield from _group(bench, [opened], terms)
        return
    for number, opened in enumerate(group):
        _beat()
        try:
            rows = _rows(bench, opened, seen, number, terms)
            if opened.model.stamps() != opened.stamps:
                raise CheckpointError(f"{opened.todo.target}: changed while it was read")
            yield _outcome(opened.todo, rows)
        except MemoryError:
            raise
        except Exception as error:
            yield failed(opened.todo, error)


def _rows(
    bench: WorkBench, opened: _OpenModel, seen: Screened, number: int, terms: ScanTerms
) -> list[ScanRow]:
    """The findings in a model, or the one row that says that there are none.

    A mark that could not be looked for has a row of its own, and hides no other.
    """
    beside = _claims(bench, opened.todo.target)
    found: list[ScanRow] = []
    lost: dict[int, ScanRow] = {}
    aligned = 0
    for place, way in enumerate(seen.plan.ways):
        sought, failure = bench.keyring.sought[way.sought], seen.failure(place, number)
        try:
            worth = _followed(sought, beside) or seen.promising(place, number)
            if not worth and way.aligned:
                worth = _alike(bench, opened.model, sought, terms)
                aligned += worth
            verdict = _verdict(opened.todo, way, sought, terms) if worth else None
        except MemoryError:
            raise
        except Exception as error:
            lost[place] = _lost(opened, sought, error)
            continue
        if verdict is not None and verdict.status in FINDINGS:
            row = ScanRow.of_verdict(opened.todo.target, sought.name, verdict)
            found.append(replace(row, format=opened.model.format, weights=seen.plan.weights))
        elif failure is not None:
            lost[place] = _lost(opened, sought, failure)
    if found:
        return [*found, *dict.fromkeys(lost.values())]
    unread = sum(opened.model.info(name).size for name in seen.broken[number])
    told = _told(bench, seen, number, aligned, lost)
    return _without(_not_found(opened, seen.plan, told, unread), seen.plan, lost)


def _followed(sought: Sought, beside: set[str]) -> bool:
    """Whether a claim beside the model says where the mark is, and nobody else did."""
    return sought.claim is None and sought.anchor is None and sought.key.fingerprint in beside


def _lost(opened: _OpenModel, sought: Sought, why: Exception | ScanFailure) -> ScanRow:
    """The row of a mark that could not be looked for; of the model, where it cannot be read."""
    target = opened.todo.target
    if isinstance(why, CheckpointError | OSError):
        return ScanFailure.of(why).row(target)
    failure = ScanFailure.of(why) if isinstance(why, Exception) else why
    return failure.row_of(target, sought.key.fingerprint, sought.name)


def _without(nothing: ScanRow, plan: HeaderPlan, lost: Mapping[int, ScanRow]) -> list[ScanRow]:
    """The rows of a model without a finding: that there is none, if any mark was looked for."""
    rows = list(dict.fromkeys(lost.values()))
    whole = len(lost) < len(plan.ways) and all(row.key is not None for row in rows)
    return [nothing, *rows] if whole else rows


def _told(
    bench: WorkBench, seen: Screened, number: int, aligned: int, lost: Mapping[int, ScanRow]
) -> str:
    """What was looked for in vain."""
    tried = [
        way
        for place, way in enumerate(seen.plan.ways)
        if (way.attempts or way.aligned) and place not in lost
    ]
    ways = sum(way.trials for way in tried)
    words = f"{len(tried)} of {len(seen.plan.ways)} marks looked for in {ways} ways"
    closest = seen.closest(number)
    if closest is not None:
        bits = bench.keyring.sought[seen.plan.ways[closest].sought].key.parameters.bits
        matched = int(seen.best[closest, number])
        words += f"; at most {matched} of {bits} bits match, {seen.needed[closest]} are needed"
    return words + (f"; put in order for {aligned} of them" if aligned else "")


def _alike(bench: WorkBench, model: Checkpoint, sought: Sought, terms: ScanTerms) -> bool:
    """Whether weights are to be put back in order for a mark."""
    if terms.align == ALWAYS:
        return True
    path = sought.anchor
    assert path is not None
    _, sketch = bench.anchors.get(path, lambda: _sketched(path, sought))
    return sketch.distance(CheckpointWeights(model)) <= FAR


def _sketched(path: str, sought: Sought) -> tuple[Anchor, AnchorSketch]:
    anchor = load_anchor(path, sought.key)
    return anchor, AnchorSketch(anchor)


def _verdict(todo: Todo, way: Ways, sought: Sought, terms: ScanTerms) -> Verdict:
    """The verdict that `verify` gives, for a look among many."""
    options = VerifyOptions(sought.anchor, terms.effort, terms.align_limit, among=terms.among)
    claim = sought.claim_file or sought.claim
    with _aligning(todo) if way.aligned else nullcontext():
        verdict = verify(_place(todo.target), sought.key, claim=claim, options=options)
    return replace(verdict, date=terms.date)


def _claims(bench: WorkBench, target: TargetName) -> set[str]:
    """Fingerprints of keys of which a claim lies beside a model; folders are listed once."""
    return keys_beside(target, lambda at: bench.folders.get(str(at), lambda: claim_names(at)))
