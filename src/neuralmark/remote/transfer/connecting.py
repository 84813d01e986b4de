"""Connections that look whom they reached before they say anything, and that end in time.

A name is resolved once, its addresses are checked, and the connection goes to a checked address:
a name that resolves to something else a moment later gains nothing by it.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from urllib3.connection import HTTPConnection, HTTPSConnection

from neuralmark.remote.transfer.addresses import is_public, private, unencrypted
from neuralmark.remote.transfer.retrying import PassingTrouble

if TYPE_CHECKING:
    from urllib3.response import HTTPResponse


@dataclass(frozen=True)
class Guard:
    """Whom a connection may reach, and how long it may take to answer."""

    allow_private: bool
    timeout: float
    plain: bool = False
    """Without encryption only machines of one's own are asked: anybody on the way could swap."""

    def connect(self, host: str, port: int, options: Any) -> socket.socket:
        """A connection to a host, at an address that may be reached."""
        try:
            found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise PassingTrouble(f"there is no host {host[:100]!r}") from None
        allowed = [each for each in found if self._may_reach(str(each[4][0]))]
        if found and not allowed:
            raise unencrypted(host) if self.plain else private(host)
        failure: OSError | None = None
        for family, kind, protocol, _, address in allowed:
            try:
                return self._connected(socket.socket(family, kind, protocol), address, options)
            except OSError as error:
                failure = error
        why = failure.strerror or str(failure) if failure else "it has no address"
        raise PassingTrouble(f"{host} cannot be reached ({why})")

    def _connected(self, opened: socket.socket, address: Any, options: Any) -> socket.socket:
        try:
            for option in options or ():
                opened.setsockopt(*option)
            opened.settimeout(self.timeout)
            opened.connect(address)
            reached = str(opened.getpeername()[0])
            if not self._may_reach(reached):
                raise unencrypted(reached) if self.plain else private(reached)
        except BaseException:
            opened.close()
            raise
        return opened

    def _may_reach(self, address: str) -> bool:
        return not is_public(address) if self.plain else self.allow_private or is_public(address)


@contextlib.contextmanager
def ended_after(seconds: float, used: socket.socket) -> Iterator[None]:
    """End a connection that is not done in time, and say that it stalled."""
    own = socket.socket(fileno=os.dup(used.fileno()))
    late = threading.Event()
    timer = threading.Timer(seconds, _end, [own, late])
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception:
        if not late.is_set():
            raise
    finally:
        timer.cancel()
        own.close()
    if late.is_set():
        raise PassingTrouble("the server stalled: no answer came in time")


def _end(connection: socket.socket, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Guarded:
    """What both kinds of connection do: connect by the guard, answer in time."""

    guard: Guard

    def _new_conn(self) -> socket.socket:
        opened: Any = self
        sock = self.guard.connect(opened._dns_host, opened.port, opened.socket_options)
        self._watch.enter_context(ended_after(self.guard.timeout, sock))
        return sock

    def connect(self) -> None:
        """Connect, with the handshake, in time."""
        with contextlib.ExitStack() as self._watch:
            super().connect()  # type: ignore[misc]

    def getresponse(self) -> "HTTPResponse":
        """The head of the answer, in time: a server may not drip it."""
        opened: Any = self
        with ended_after(self.guard.timeout, opened.sock):
            answer: HTTPResponse = super().getresponse()  # type: ignore[misc]
        return answer


class GuardedHttp(_Guarded, HTTPConnection):  # type: ignore[misc]
    """Without encryption: for machines of one's own only."""

    def __init__(self, guard: Guard, *args: Any, **more: Any) -> None:
        """As urllib3 makes them."""
        self.guard = guard
        super().__init__(*args, **more)


class GuardedHttps(_Guarded, HTTPSConnection):  # type: ignore[misc]
    """With encryption."""

    def __init__(self, guard: Guard, *args: Any, **more: Any) -> None:
        """As urllib3 makes them."""
        self.guard = guard
        super().__init__(*args, **more)
