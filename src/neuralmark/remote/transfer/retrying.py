"""Trying again: what fails in passing, how often, and after which pause."""

import random
import time
from collections.abc import Callable

from neuralmark.errors import RemoteError

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 30.0
LONG_WAIT = 3.0
"""Seconds; whoever waited so long for nothing is told that it goes on."""
ENOUGH = 64 << 10
"""Bytes after which an interrupted transfer counts as going on, and may be interrupted again."""


class PassingTrouble(Exception):
    """What may be better in a moment: a cut connection, a stall, an overloaded server."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        """`after`: seconds that the server asked to wait."""
        super().__init__(why)
        self.after = after


class Tries:
    """The attempts at one range; each waits twice as long as the one before it."""

    def __init__(self, shown: str, retries: int, tell: Callable[[str], None]) -> None:
        """`shown`: the URL as it may be printed; `tell`: tells the user of a long wait."""
        self._shown, self._retries, self._tell = shown, retries, tell
        self._made, self._begun = 0, time.monotonic()

    def again(self, trouble: PassingTrouble, gained: int = 0) -> None:
        """Wait before the next attempt; raises where there have been enough without a gain."""
        if gained >= ENOUGH:
            self._made = 0
        if self._made >= self._retries:
            times = "once" if not self._retries else f"{self._retries + 1} times"
            raise RemoteError(f"{self._shown}: {trouble} (tried {times})") from None
        pause = FIRST_PAUSE * 2**self._made * random.uniform(0.75, 1.25)  # noqa: S311
        pause = min(max(pause, trouble.after), LONGEST_PAUSE)
        if time.monotonic() - self._begun + pause >= LONG_WAIT:
            left = self._retries - self._made
            more = "once more" if left == 1 else f"up to {left} more times"
            self._tell(f"{self._shown}: {trouble}; trying {more}")
        self._made += 1
        time.sleep(pause)
        self._begun = time.monotonic()
