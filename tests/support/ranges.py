"""A real web server on loopback that gives ranges, and lies, cuts off and stalls when told to."""

import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Asked:
    """One request that came."""

    path: str
    headers: dict[str, str]
    status: int = 0
    sent: int = 0


Fault = Callable[["RangeHandler", bytes], bool]
"""Answers in its own way and says True, or says False: the usual answer follows."""


@dataclass
class Served:
    """A file of the server."""

    data: bytes
    etag: str | None = ""
    """Empty: of the content; None: none."""
    modified: str | None = None
    more: dict[str, str] = field(default_factory=dict)

    def headers(self) -> dict[str, str]:
        etag = f'"{hashlib.sha256(self.data).hexdigest()[:16]}"' if self.etag == "" else self.etag
        told = {} if etag is None else {"ETag": etag}
        return {**told, **({"Last-Modified": self.modified} if self.modified else {}), **self.more}


class RangeServer(ThreadingHTTPServer):
    """Files by path, the faults that await the next requests for them, and what was asked."""

    daemon_threads = True

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), RangeHandler)
        self.files: dict[str, Served] = {}
        self.faults: dict[str, list[Fault]] = {}
        self.always: dict[str, Fault] = {}
        self.asked: list[Asked] = []
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, path: str, data: bytes | Path, **more: Any) -> str:
        content = data.read_bytes() if isinstance(data, Path) else data
        self.files[path] = Served(content, **more)
        return f"{self.url}{path}"

    @property
    def sent(self) -> int:
        return sum(each.sent for each in self.asked)

    def handle_error(self, *_: Any) -> None:
        """Clients hang up: that is what is tested."""


class RangeHandler(BaseHTTPRequestHandler):
    """Answers GET."""

    protocol_version = "HTTP/1.1"
    server: RangeServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.now = Asked(self.path, {name.lower(): value for name, value in self.headers.items()})
        self.server.asked.append(self.now)
        served = self.server.files.get(path)
        waiting = self.server.faults.get(path, [])
        fault = waiting.pop(0) if waiting else self.server.always.get(path)
        if fault is not None and fault(self, served.data if served else b""):
            return
        if served is None:
            self.answer(404, b"nothing here")
        else:
            self.serve(served)

    def serve(self, served: Served) -> None:
        told = served.headers()
        match = self.now.headers.get("if-match")
        since = self.now.headers.get("if-unmodified-since")
        if (match and match != told.get("ETag")) or (since and since != told.get("Last-Modified")):
            self.answer(412, b"")
            return
        start, stop = self.range(len(served.data))
        if start is None:
            self.answer(200, served.data, told)
        elif start >= len(served.data):
            self.answer(416, b"", {"Content-Range": f"bytes */{len(served.data)}"})
        else:
            self.part(served.data, start, stop, told)

    def range(self, size: int) -> tuple[int | None, int]:
        given = self.now.headers.get("range", "")
        if not given.startswith("bytes="):
            return None, size
        low, _, high = given.removeprefix("bytes=").partition("-")
        return int(low), min(int(high) + 1, size)

    def part(self, data: bytes, start: int, stop: int, told: dict[str, str] | None = None) -> None:
        told = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}", **(told or {})}
        self.answer(206, data[start:stop], told)

    def head(self, status: int, length: int, told: dict[str, str] | None = None) -> None:
        self.now.status = status
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **(told or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def answer(self, status: int, body: bytes, told: dict[str, str] | None = None) -> None:
        self.head(status, len(body), told)
        self.body(body)

    def body(self, data: bytes) -> None:
        if self.command == "HEAD":
            return
        self.now.sent += len(data)  # before it is sent: a test may look as soon as it has arrived
        self.wfile.write(data)

    def hang_up(self) -> bool:
        self.close_connection = True
        return True


@contextmanager
def range_server(host: str = "127.0.0.1") -> Iterator[RangeServer]:
    """A server while it runs."""
    with RangeServer(host) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            thread.join()


def status(code: int, **told: str) -> Fault:
    """Answers with a status; underscores in headers are hyphens."""
    headers = {name.replace("_", "-"): value for name, value in told.items()}

    def act(handler: RangeHandler, _: bytes) -> bool:
        handler.answer(code, b"no", headers)
        return True

    return act


def cut_after(count: int) -> Fault:
    """Promises the range, sends so many bytes of it and hangs up."""

    def act(handler: RangeHandler, data: bytes) -> bool:
        start, stop = handler.range(len(data))
        assert start is not None
        told = Served(data).headers()
        told["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        handler.head(206, stop - start, told)
        handler.body(data[start : min(stop, start + count)])
        return handler.hang_up()

    return act


def stall(handler: RangeHandler, data: bytes) -> bool:
    """Sends the head of an answer, then nothing for as long as the server runs."""
    start, stop = handler.range(len(data))
    told = {**Served(data).headers(), "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
    handler.head(206, stop - (start or 0), told)
    handler.server.closing.wait(60)
    return handler.hang_up()


def silent(handler: RangeHandler, data: bytes) -> bool:
    """Says nothing at all."""
    handler.server.closing.wait(60)
    return handler.hang_up()


def drip(handler: RangeHandler, data: bytes) -> bool:
    """Sends a byte every now and then: no single wait is long."""
    start, stop = handler.range(len(data))
    told = {**Served(data).headers(), "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
    handler.head(206, stop - (start or 0), told)
    while not handler.server.closing.wait(0.05):
        handler.body(b"x")
        handler.wfile.flush()
    return handler.hang_up()


def drip_head(handler: RangeHandler, data: bytes) -> bool:
    """Sends the head of the answer a letter at a time, without an end."""
    handler.wfile.write(b"HTTP/1.1 206 Partial\r\nX-Long: ")
    while not handler.server.closing.wait(0.05):
        handler.wfile.write(b"x")
        handler.wfile.flush()
    return handler.hang_up()


def whole(handler: RangeHandler, data: bytes) -> bool:
    """Ignores Range."""
    handler.answer(200, data, Served(data).headers())
    return True


def says(content_range: str, length: int | None = None) -> Fault:
    """Sends the right bytes under a wrong Content-Range."""

    def act(handler: RangeHandler, data: bytes) -> bool:
        start, stop = handler.range(len(data))
        body = data[start:stop]
        told = {**Served(data).headers(), "Content-Range": content_range}
        handler.head(206, len(body) if length is None else length, told)
        handler.body(body)
        return handler.hang_up()

    return act


def redirect(url: str, code: int = 302) -> Fault:
    """Leads elsewhere."""

    def act(handler: RangeHandler, _: bytes) -> bool:
        handler.answer(code, b"", {"Location": url})
        return True

    return act


class HubRepository:
    """A repository with the hub's URL layout on a range server: interface, pages, a CDN."""

    def __init__(self, server: RangeServer, name: str, page: int = 1000) -> None:
        self.server, self.name, self.page = server, name, page
        self.commit = COMMIT
        self.token: str | None = None
        self.cdn = server
        self.contents: dict[str, bytes] = {}
        server.always[f"/api/models/{name}/revision/main"] = self._revision

    def put(self, path: str, data: bytes, *, large: bool = False) -> None:
        """A file; a large one lies on the CDN behind a redirect with a signature."""
        self.contents[path] = data
        at = f"/{self.name}/resolve/{self.commit}/{path}"
        if large:
            self.cdn.put(f"/cdn/{path}", data)
            self.server.always[at] = self._guarded(
                redirect(f"{self.cdn.url}/cdn/{path}?X-Amz-Signature=abcdef123456")
            )
        else:
            self.server.put(at, data)
            self.server.always[at] = self._guarded(lambda handler, data: False)
        folders = {"/".join(path.split("/")[:i]) for i in range(path.count("/") + 1)}
        for folder in folders:
            tree = f"/api/models/{self.name}/tree/{self.commit}" + (f"/{folder}" if folder else "")
            self.server.always[tree] = self._guarded(self._tree(folder))

    def _guarded(self, then: Fault) -> Fault:
        def act(handler: RangeHandler, data: bytes) -> bool:
            given = handler.now.headers.get("authorization")
            if self.token is not None and given != f"Bearer {self.token}":
                return status(401, X_Error_Code="GatedRepo")(handler, data)
            return then(handler, data)

        return act

    def _revision(self, handler: RangeHandler, data: bytes) -> bool:
        def act(handler: RangeHandler, _: bytes) -> bool:
            handler.answer(200, json.dumps({"id": self.name, "sha": self.commit}).encode())
            return True

        return self._guarded(act)(handler, data)

    def _tree(self, folder: str) -> Fault:
        def act(handler: RangeHandler, _: bytes) -> bool:
            query = parse_qs(urlsplit(handler.path).query)
            at = int(query.get("cursor", ["0"])[0])
            found = self._listed(folder, "recursive" in query)
            told = {}
            if at + self.page < len(found):
                rest = handler.path.split("?")[0] + f"?cursor={at + self.page}"
                rest += "&recursive=true" if "recursive" in query else ""
                told = {"Link": f'<{self.server.url}{rest}>; rel="next"'}
            page = json.dumps(found[at : at + self.page]).encode()
            handler.answer(200, page, told)
            return True

        return act

    def _listed(self, folder: str, deep: bool) -> list[dict[str, Any]]:
        under = f"{folder}/" if folder else ""
        found: dict[str, dict[str, Any]] = {}
        for path, data in sorted(self.contents.items()):
            if not path.startswith(under):
                continue
            name, deeper, _ = path[len(under) :].partition("/")
            if deeper:
                found[under + name] = {"type": "directory", "oid": "0" * 40, "path": under + name}
            if deep or not deeper:
                found[path] = {"type": "file", "oid": "0" * 40, "size": len(data), "path": path}
        return list(found.values())


def http_date(seconds: float) -> str:
    """A time as headers have it."""
    return formatdate(seconds, usegmt=True)
