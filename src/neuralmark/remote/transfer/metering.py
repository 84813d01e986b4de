"""How much was fetched by this process: for progress bars and for measurements."""

import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """What was asked for since the process began."""

    requests: int = 0
    fetched: int = 0
    """Bytes of content that came over the network."""
    cached: int = 0
    """Bytes that the cache had already."""

    def __sub__(self, before: "Traffic") -> "Traffic":
        """What came since then."""
        return Traffic(
            self.requests - before.requests,
            self.fetched - before.fetched,
            self.cached - before.cached,
        )


_lock = threading.Lock()
_total = Traffic()


def traffic() -> Traffic:
    """All traffic of this process up to now."""
    return _total


def count(*, requests: int = 0, fetched: int = 0, cached: int = 0) -> None:
    """Add to it; from any thread."""
    global _total
    with _lock:
        _total = Traffic(
            _total.requests + requests, _total.fetched + fetched, _total.cached + cached
        )
