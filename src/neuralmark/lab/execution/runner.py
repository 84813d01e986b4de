"""Carrying out runs: each once, after those that it needs, as many at a time as can be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from neuralmark.lab.execution.engines import ENDS, Engine, Event
from neuralmark.lab.execution.store import Store
from neuralmark.lab.plan.spec import Spec, identity, in_order

RunState = Literal["waiting", "running", "done", "failed", "skipped"]
WAITING: Final = "waiting"
RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"


@dataclass
class Progress:
    """How far one run is."""

    spec: Spec
    needs: tuple[str, ...] = ()
    """The runs that must be done before it."""
    state: RunState = WAITING
    done: int = 0
    total: int = 0
    why: str = ""


@dataclass
class Board:
    """All runs and how far they are: what the live table shows."""

    runs: dict[str, Progress] = field(default_factory=dict)

    def count(self, state: RunState) -> int:
        """How many runs are in a state."""
        return sum(each.state == state for each in self.runs.values())

    def failures(self) -> list[Progress]:
        """Runs that failed, and those that waited for them."""
        return [each for each in self.runs.values() if each.state in (FAILED, SKIPPED)]


def carry_out(
    specs: Sequence[Spec],
    store: Store,
    engine: Engine,
    watch: Callable[[Board], None] = lambda board: None,
) -> Board:
    """Carry out all runs that have no result yet, and tell what happens."""
    ordered = in_order(list(specs))
    board = Board({identity(spec): _waiting(spec) for spec in ordered})
    for progress in board.runs.values():
        if store.row(progress.spec) is not None:
            progress.state = DONE
    for progress in reversed(board.runs.values()):  # whoever needs a run comes behind it
        if progress.state == WAITING:
            for run in progress.needs:
                if not store.complete(board.runs[run].spec):
                    board.runs[run].state = WAITING
    try:
        _begin(board, engine)
        watch(board)
        while board.count(RUNNING):
            events = engine.wait()
            for event in events:
                _note(board, event)
            if any(event.what in ENDS for event in events):
                _begin(board, engine)
            watch(board)
        return board
    finally:
        engine.close()


def _waiting(spec: Spec) -> Progress:
    return Progress(spec, tuple(identity(needed) for needed in spec.needs))


def _begin(board: Board, engine: Engine) -> None:
    """Begin what can be begun; what waits for a failed run is skipped."""
    for progress in board.runs.values():
        if progress.state != WAITING:
            continue
        needed = [board.runs[run].state for run in progress.needs]
        if any(state in (FAILED, SKIPPED) for state in needed):
            progress.state, progress.why = SKIPPED, "a run that it needs failed"
        elif all(state == DONE for state in needed) and engine.free():
            progress.state = RUNNING
            engine.begin(progress.spec)


def _note(board: Board, event: Event) -> None:
    progress = board.runs[event.run]
    if event.what == "progress":
        progress.done, progress.total = event.done, event.total
    elif event.what == "restarted":
        progress.why = event.why
    else:
        progress.state = DONE if event.what == "done" else FAILED
        progress.why = event.why
