"""One round: every target gets its rows, whatever becomes of workers and files."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from neuralmark.errors import NeuralMarkError, RecordError, SandboxError
from neuralmark.records import Verdict
from neuralmark.scanning.contract import (
    ERROR,
    FINDINGS,
    HEADERS,
    SCAN_STATUSES,
    WEIGHTS,
    Errand,
    ScanRow,
    TargetName,
    Todo,
    readable,
)
from neuralmark.scanning.journal import Listing, RoundJournal
from neuralmark.scanning.planning import Head, batches
from neuralmark.scanning.readers import Readers, Returned
from neuralmark.scanning.work import Outcome, failed

WINDOW = 4096
"""Targets whose headers are read before weights are: those with one header are read together."""
AT_ONCE = 32
"""Targets whose headers one worker reads at a time."""


@dataclass
class Tally:
    """How far a round is: what the live table shows."""

    targets: int = 0
    done: int = 0
    by_status: dict[str, int] = field(default_factory=dict)
    ruled_out: int = 0
    """Done after a look at the header."""
    latest: list[ScanRow] = field(default_factory=list)
    """The last findings."""
    marks: int = 0
    turn: int = 1
    aligning: list[TargetName] = field(default_factory=list)
    """Models that are put back in order now; on a cluster they are not known."""

    def note(self, rows: Sequence[ScanRow], *, header: bool = False) -> None:
        """Count a finished target."""
        self.done += 1
        self.ruled_out += header
        for row in rows:
            self.by_status[row.status] = self.by_status.get(row.status, 0) + 1
        self.latest = [*self.latest, *(row for row in rows if row.status in FINDINGS)][-8:]


Watch = Callable[[Tally], None]


class RoundRunner:
    """Gives out the targets of a round, in windows, and takes their rows."""

    def __init__(
        self, listing: Listing, journal: RoundJournal, readers: Readers, tally: Tally, watch: Watch
    ) -> None:
        """Nothing is begun yet."""
        self._listing, self._journal, self._readers = listing, journal, readers
        self._tally, self._watch = tally, watch
        self._workers = max(1, readers.free())
        self._stamps: dict[int, str | None] = {}
        self._heads: list[Head] = []
        self._queue: deque[Errand] = deque()

    def run(self) -> None:
        """Until every target has its rows."""
        waiting = self._journal.waiting()
        while window := list(islice(waiting, WINDOW)):
            found = list(self._listing.read(window))
            self._stamps = {todo.number: stamp for todo, stamp in found}
            todo = [each for each, _ in found]
            at_once = max(1, min(AT_ONCE, -(-len(todo) // self._workers)))
            self._queue.extend(Errand(HEADERS, part) for part in _parts(todo, at_once))
            self._until_empty()
            self._queue.extend(
                Errand(WEIGHTS, batch) for batch in batches(self._heads, self._workers)
            )
            self._heads = []
            self._until_empty()

    def _until_empty(self) -> None:
        running = 0
        while self._queue or running:
            while self._queue and self._readers.free():
                self._readers.begin(self._queue.popleft())
                running += 1
            ended = self._readers.wait()
            running -= len(ended)
            for each in ended:
                self._take(each)
            self._tally.aligning = self._readers.aligning()
            self._watch(self._tally)

    def _take(self, ended: Returned) -> None:
        stage, todo = ended.errand
        if ended.error is not None:
            self._retry(ended.errand, ended.error)
            return
        by_number = {each.number: each for each in todo}
        rows: list[tuple[int, list[ScanRow]]] = []
        for outcome in ended.outcomes:
            number = outcome["number"]
            if stage == HEADERS and "signature" in outcome:
                size = int(outcome["size"])
                self._heads.append(Head(by_number[number], str(outcome["signature"]), size))
            else:
                rows.append((number, self._checked(by_number[number], outcome)))
        self._journal.add(rows)
        for _, each in rows:
            self._tally.note(each, header=stage == HEADERS)

    def _retry(self, errand: Errand, error: NeuralMarkError) -> None:
        """A worker died, or ran out of memory or time: each model alone, then it is a row."""
        if len(errand.todo) > 1:
            self._queue.extend(Errand(errand.stage, (todo,)) for todo in errand.todo)
            return
        (todo,) = errand.todo
        rows = self._checked(todo, failed(todo, error))
        self._journal.add([(todo.number, rows)])
        self._tally.note(rows)

    def _checked(self, todo: Todo, outcome: Outcome) -> list[ScanRow]:
        """The rows of a model as we write them; what a worker made up of others is refused."""
        try:
            rows = [ScanRow.from_dict(row) for row in outcome["rows"]]
            sound = bool(rows) and all(_sound(row, todo) for row in rows)
        except (TypeError, KeyError, RecordError):
            sound, rows = False, []
        if not sound:
            target = readable(todo.target)
            error = SandboxError("the sandboxed process answered nonsense")
            rows = [ScanRow(target, ERROR, str(error), error=type(error).__name__)]
        stamp, turn = self._stamps.get(todo.number), self._tally.turn
        return [replace(row, stamp=stamp, round=turn) for row in rows]


def _sound(row: ScanRow, todo: Todo) -> bool:
    """Whether a row is of this model, and says of a finding what its verdict says."""
    if row.target != readable(todo.target) or row.status not in SCAN_STATUSES:
        return False
    if row.status not in FINDINGS:
        return row.verdict is None
    verdict = Verdict.from_dict(row.verdict or {})
    told = verdict.status, verdict.matched, verdict.trials, verdict.fingerprint
    return told == (row.status, row.matched, row.trials, row.key)


def _parts(todo: Sequence[Todo], size: int) -> Iterator[tuple[Todo, ...]]:
    for start in range(0, len(todo), size):
        yield tuple(todo[start : start + size])
