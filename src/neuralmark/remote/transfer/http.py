"""Asking web servers: redirects, credentials, statuses and bodies, each with its limits."""

import contextlib
import logging
import ssl
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError, SSLError
from urllib3.response import BaseHTTPResponse

from neuralmark.errors import (
    AccessError,
    AddressError,
    NeuralMarkError,
    NeuralMarkWarning,
    RemoteError,
)
from neuralmark.remote.contract import RemoteOptions
from neuralmark.remote.transfer.addresses import Address, led_to, printable, redacted, unencrypted
from neuralmark.remote.transfer.connecting import Guard, GuardedHttp, GuardedHttps
from neuralmark.remote.transfer.metering import count
from neuralmark.remote.transfer.retrying import PassingTrouble, Tries
from neuralmark.version import __version__

MOST_REDIRECTS = 10
MOST_HOSTS = 16
LOWEST_SPEED = 1024
"""Bytes in a second; a body that comes more slowly has stalled."""
_STEP = 256 << 10
_LEFT_OVER = 16 << 10
_MOVED = (301, 302, 303, 307, 308)
_PASSING = (408, 425, 429, 500, 502, 503, 504)

Authorise = Callable[[Address], Mapping[str, str]]
"""The headers that hold credentials for an address, if there are any."""


class _WithoutQueries(logging.Filter):
    """Takes signatures and tokens out of what urllib3 logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_without_query(value) for value in record.args)
        return True


def _without_query(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    cut = value.split("?", 1)[0] + "?…" if value.startswith("/") and "?" in value else value
    return redacted(cut)


for _name in ("urllib3.connectionpool", "urllib3.util.retry"):
    logging.getLogger(_name).addFilter(_WithoutQueries())


class Answer:
    """The head of an answer, and its body as it comes."""

    def __init__(self, response: BaseHTTPResponse, address: Address, timeout: float) -> None:
        """`address`: who answered, after all redirects."""
        self.status, self.headers, self.address = response.status, response.headers, address
        self._response, self._timeout = response, timeout

    def __enter__(self) -> "Answer":
        return self

    def __exit__(self, *failure: object) -> None:
        """Let the connection be used again if nothing more would come of it."""
        left = self._response.length_remaining
        if failure[0] is None and left is not None and left <= _LEFT_OVER:
            with contextlib.suppress(HTTPError, OSError):
                self._response.drain_conn()
                self._response.release_conn()
                return
        self._response.close()

    def body(self, most: int) -> Iterator[bytes]:
        """Pieces of the body, at most so many bytes of it; a stall is a passing trouble."""
        begun, seen, got = time.monotonic(), 0, 0
        while got < most:
            try:
                piece = self._response.read1(min(_STEP, most - got))
            except (HTTPError, OSError, ValueError) as error:
                raise _trouble(error) from None
            if not piece:
                return
            got, seen = got + len(piece), seen + len(piece)
            count(fetched=len(piece))
            yield piece
            now = time.monotonic()
            if now - begun > self._timeout:
                if seen < LOWEST_SPEED * (now - begun):
                    raise PassingTrouble("the server stalled: next to nothing came any more")
                begun, seen = now, 0


class HttpClient:
    """Makes requests of one kind: whom it may reach and how long it waits is fixed."""

    def __init__(self, options: RemoteOptions, authorise: Authorise | None = None) -> None:
        """`authorise` is asked for the address that somebody gave, not for what it leads to."""
        self.options = options
        self._authorise = authorise
        self._pools: OrderedDict[tuple[Any, ...], urllib3.HTTPConnectionPool] = OrderedDict()
        self._lock = threading.Lock()
        self._context = ssl.create_default_context()
        self._has_told = False

    def open(
        self, address: Address, headers: Mapping[str, str], home: Address | None = None
    ) -> Answer:
        """The answer to a GET after redirects; every hop is checked, credentials stay at home.

        `home`: whom credentials are for, where the address is one that redirects led to before.
        """
        home = home or address
        shown = home.shown
        secrets = self._authorise(home) if self._authorise else {}
        for _ in range(MOST_REDIRECTS + 1):
            same = address.origin == home.origin
            try:
                answer = self._ask(address, {**headers, **(secrets if same else {})})
            except NeuralMarkError as error:
                raise (error if address == home else _redirected(shown, error)) from None
            if answer.status not in _MOVED:
                return answer
            with answer:
                target = answer.headers.get("Location")
            if not target:
                raise RemoteError(f"{shown}: the server redirects to nowhere")
            try:
                following = led_to(address, target)
            except AddressError as error:
                raise _redirected(shown, error) from None
            if address.scheme == "https" and following.scheme == "http":
                raise AddressError(
                    f"{shown}: redirects from https to http ({following.host}), which is not"
                    " encrypted: nothing is read from there"
                )
            address = following
        raise RemoteError(f"{shown}: redirects without an end (more than {MOST_REDIRECTS} times)")

    def document(self, address: Address, most: int) -> tuple[bytes, Answer]:
        """A small answer, whole; statuses that are no answer are raised by whoever asked."""
        tries = self.tries(address.shown)
        while True:
            try:
                with self.open(address, {"Accept-Encoding": "identity"}) as answer:
                    passing(answer)
                    data = b"".join(answer.body(most + 1))
                if len(data) > most:
                    raise RemoteError(f"{address.shown}: its answer is over {most:,} bytes")
                return data, answer
            except PassingTrouble as trouble:
                tries.again(trouble)

    def tries(self, shown: str) -> Tries:
        """The attempts at one thing; that the first ones take long is told once by a client."""
        return Tries(shown, self.options.retries, self._tell)

    def _tell(self, message: str) -> None:
        with self._lock:
            told, self._has_told = self._has_told, True
        if not told:
            warnings.warn(message, NeuralMarkWarning, stacklevel=2)

    def _ask(self, address: Address, headers: Mapping[str, str]) -> Answer:
        told = {"User-Agent": f"neuralmark/{__version__}", **headers}
        path = address.path or "/"
        target = f"{path}?{address.query}" if address.query else path
        count(requests=1)
        try:
            response = self._pool(address).urlopen(
                "GET",
                target,
                headers=told,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                assert_same_host=False,
            )
        except NeuralMarkError as error:
            raise type(error)(_with_place(address, error)) from None
        except (HTTPError, OSError, ValueError) as error:
            if isinstance(error, SSLError) and "CERTIFICATE" in str(error).upper():
                raise RemoteError(
                    f"{address.shown}: the certificate of {address.host} is not to be trusted;"
                    " if it is your own, name the file that holds it (PEM) in SSL_CERT_FILE"
                ) from None
            raise _trouble(error) from None
        return Answer(response, address, self.options.timeout)

    def _pool(self, address: Address) -> urllib3.HTTPConnectionPool:
        plain = address.scheme == "http"
        if address.scheme not in ("http", "https") or not address.host:
            raise AddressError(f"{address.shown}: is not on a web server")
        if plain and not self.options.allow_private:
            raise unencrypted(address.shown)
        with self._lock:
            pool = self._pools.get(address.origin)
            if pool is None:
                pool = self._pools[address.origin] = self._new_pool(address, plain)
                while len(self._pools) > MOST_HOSTS:
                    self._pools.popitem(last=False)[1].close()
            self._pools.move_to_end(address.origin)
            return pool

    def _new_pool(self, address: Address, plain: bool) -> urllib3.HTTPConnectionPool:
        options = self.options
        guard = Guard(options.allow_private, options.timeout, plain)
        waits = urllib3.Timeout(connect=options.timeout, read=options.timeout)
        size = options.connections + 4  # one for whoever reads what nobody announced
        host = f"[{address.host}]" if ":" in address.host else address.host
        port = address.origin[2]  # without one, http.client cuts an IPv6 address at a colon
        pool: urllib3.HTTPConnectionPool
        kind: Any
        if plain:
            pool, kind = urllib3.HTTPConnectionPool(host, port, waits, size), GuardedHttp
        else:
            pool = urllib3.HTTPSConnectionPool(host, port, waits, size, ssl_context=self._context)
            kind = GuardedHttps
        pool.ConnectionCls = partial(kind, guard)  # type: ignore[assignment]
        return pool


def passing(answer: Answer) -> None:
    """Raise a passing trouble for a server that has too much to do, or fails."""
    if answer.status in _PASSING:
        after = answer.headers.get("Retry-After", "")
        wait = float(after) if after.isascii() and after.isdigit() and len(after) < 6 else 0.0
        raise PassingTrouble(f"the server answered {answer.status}", wait)


def refused(shown: str, answer: Answer, where: str) -> RemoteError:
    """The error for a status that is no answer; `where`: where credentials come from."""
    if answer.status in (401, 403):
        return AccessError(
            f"{shown}: access is denied ({answer.status}): credentials are missing or wrong;"
            f" {where}"
        )
    reason = printable(answer.headers.get("X-Error-Message", ""))[:120]
    return RemoteError(
        f"{shown}: the server answered {answer.status}" + (f" ({reason})" if reason else "")
    )


def _redirected(shown: str, error: NeuralMarkError) -> NeuralMarkError:
    """The error of a place that redirects led to, with the URL that was given."""
    return type(error)(f"{shown}: redirects to {error}")


def _with_place(address: Address, error: Exception) -> str:
    """A message that begins with the URL, whatever machine it led to."""
    told = str(error)
    return told if told.startswith(address.shown) else f"{address.shown}: {told}"


def _trouble(error: Exception) -> PassingTrouble:
    """What urllib3 says, in a few words and without addresses."""
    said = type(error).__name__
    if "Timeout" in said or "timed out" in str(error):
        return PassingTrouble("the server stalled: nothing came any more")
    return PassingTrouble(f"the connection was cut off ({said})")
