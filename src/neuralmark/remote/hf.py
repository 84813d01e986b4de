"""Models of the Hugging Face hub: `hf://owner/name[@revision][/file]`.

The revision is looked up once and then the commit is read, whatever the branch does meanwhile.
Where the hub is ($HF_ENDPOINT) and who asks ($HF_TOKEN, or the token that `hf auth login` kept) is
found as the hub's own client finds it.
"""

import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, unquote

from neuralmark.core.encoding import strict_json
from neuralmark.errors import AccessError, AddressError, NeuralMarkError, RemoteError
from neuralmark.remote.contract import Entry, FileFacts, FirstLook, RemoteOptions, RemoteService
from neuralmark.remote.transfer import addresses
from neuralmark.remote.transfer.addresses import Address, printable
from neuralmark.remote.transfer.http import Answer, HttpClient, refused
from neuralmark.remote.transfer.ranged import FIRST_LOOK, RangedFile

USUAL_HUB = "https://huggingface.co"
MOST_BYTES = 16 << 20
"""Of an answer of the hub's interface: a page of a listing."""
LOG_IN = "log in with 'hf auth login', or set HF_TOKEN"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NEXT = re.compile(r"<([^<>]{1,4096})>\s*;\s*rel=\"?next\"?")
_OTHER_KINDS = ("datasets", "spaces", "models", "buckets")
_TRUE = ("1", "true", "yes", "on")


class Hub(RemoteService):
    """One repository of the hub at one commit."""

    def __init__(self, repository: str, revision: str | None, options: RemoteOptions) -> None:
        """`repository`: owner/name. The commit is looked up when something is first asked for."""
        super().__init__(options)
        self.repository, self.revision = repository, revision
        self._hub = addresses.parsed(os.environ.get("HF_ENDPOINT", USUAL_HUB).rstrip("/"))
        self._client = HttpClient(options, self._token)
        self._pinned: str | None = None
        self._lock = threading.Lock()
        self._files: dict[str, RangedFile] = {}

    @classmethod
    def at(cls, address: Address, options: RemoteOptions) -> tuple[Self, str]:
        """The repository of a URL, and the file or folder in it."""
        name, _, path = address.path.lstrip("/").partition("/")
        name, at, revision = name.partition("@")
        wanted = unquote(revision)
        owner = address.host if address.port is None else ""
        good = _NAME.fullmatch(owner) and _NAME.fullmatch(name) and owner not in _OTHER_KINDS
        parts = path.rstrip("/").split("/") if path.rstrip("/") else []
        sound = all(part not in ("", ".", "..") for part in parts)
        if not good or not sound or address.query or (at and not wanted):
            raise AddressError(
                f"{address.shown}: is not a model of the hub: write hf://OWNER/NAME,"
                " hf://OWNER/NAME@REVISION or hf://OWNER/NAME/FILE (a revision with slashes in it"
                " with %2F)"
            )
        return cls(f"{owner}/{name}", wanted or None, options), "/".join(parts)

    @property
    def commit(self) -> str:
        """The commit that is read: looked up once."""
        with self._lock:
            if self._pinned is None:
                self._pinned = self._looked_up()
            return self._pinned

    def label(self, path: str) -> str:
        """The URL with the commit, once it is known."""
        revision = self._pinned or self.revision
        at = f"@{quote(revision, safe='')}" if revision else ""
        return printable(f"hf://{self.repository}{at}" + (f"/{path}" if path else ""))

    def identity(self, path: str) -> str:
        """The file at its commit, at this hub."""
        return f"{self._hub.url} {self.repository} {self.commit} {path}"

    def name(self, path: str) -> str:
        """The last part of a path; of the repository, its name."""
        return (path or self.repository).rpartition("/")[2]

    def look(self, path: str, *, head: bool = True) -> FirstLook | None:
        """One request for the first bytes of a file."""
        if not path:
            return None
        looked = self._file(path).look(FIRST_LOOK if head else 1)
        if looked is None:
            return None
        return FirstLook(replace(looked.facts, version=f"commit {self.commit}"), looked.head)

    def fetch(self, path: str, facts: FileFacts, start: int, stop: int) -> bytearray:
        """A range of a file at the commit."""
        return self._file(path).fetch(replace(facts, version=None), start, stop)

    def listing(self, path: str) -> Iterator[Entry]:
        """What lies in a folder, by pages."""
        skip = len(path) + 1 if path else 0
        for entry in self._tree(path, deep=False):
            name = entry["path"][skip:]
            if name and "/" not in name:
                yield Entry(name, entry["type"] == "directory")

    def tree(self, path: str) -> Iterator[str]:
        """All files under a folder, by pages."""
        for entry in self._tree(path, deep=True):
            if entry["type"] == "file":
                yield entry["path"]

    def _tree(self, path: str, *, deep: bool) -> Iterator[dict[str, Any]]:
        folder = f"/{quote(path)}" if path else ""
        at: Address | None = self._api(f"tree/{self.commit}{folder}", "recursive=true" * deep)
        while at is not None:
            data, answer = self._client.document(at, MOST_BYTES)
            if answer.status == 404 and path:
                return
            if answer.status != 200:
                raise self._refusal(self.label(path), answer)
            yield from _entries(self.label(path), data)
            at = self._next_page(at, answer)

    def _next_page(self, at: Address, answer: Answer) -> Address | None:
        found = _NEXT.search(answer.headers.get("Link", ""))
        if found is None:
            return None
        try:
            following = addresses.led_to(at, found[1])
        except AddressError:
            following = at
        if following.origin != at.origin or following == at:
            raise RemoteError(f"{self.label('')}: its listing goes on in an odd place")
        return following

    def _looked_up(self) -> str:
        wanted = self.revision or "main"
        if _COMMIT.fullmatch(wanted) and len(wanted) == 40:
            return wanted
        at = self._api(f"revision/{quote(wanted, safe='')}", "expand%5B%5D=sha")
        data, answer = self._client.document(at, MOST_BYTES)
        if answer.status != 200:
            raise self._refusal(self.label(""), answer)
        commit = _parsed(self.label(""), data, dict).get("sha")
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise RemoteError(f"{self.label('')}: the hub names no commit of {printable(wanted)!r}")
        return commit

    def _api(self, rest: str, query: str = "") -> Address:
        return replace(
            self._hub,
            path=f"{self._hub.path}/api/models/{self.repository}/{rest}",
            query=query,
        )

    def _file(self, path: str) -> RangedFile:
        if path not in self._files:
            raw = f"{self._hub.path}/{self.repository}/resolve/{self.commit}/{quote(path)}"
            address = replace(self._hub, path=raw)
            made = RangedFile(self._client, address, self.label(path), self._refusal)
            self._files[path] = made
        return self._files[path]

    def _refusal(self, shown: str, answer: Answer) -> NeuralMarkError:
        code, status = answer.headers.get("X-Error-Code", ""), answer.status
        if code == "GatedRepo" and status in (401, 403):
            return AccessError(
                f"{shown}: is gated: ask its owner for access on {self._hub.url}/{self.repository},"
                f" then {LOG_IN}"
            )
        if code == "RevisionNotFound":
            return RemoteError(f"{shown}: has no revision {printable(self.revision or 'main')!r}")
        if code == "RepoNotFound" or status in (401, 404):
            return AccessError(
                f"{shown}: the hub has no such model, or shows it only to some: check the name, or"
                f" {LOG_IN}"
            )
        return refused(shown, answer, LOG_IN)

    def _token(self, address: Address) -> Mapping[str, str]:
        token = _token()
        return {"Authorization": f"Bearer {token}"} if token else {}


def _token() -> str | None:
    """The token that the hub's own client would send."""
    given = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    if not given:
        if os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").lower() in _TRUE:
            return None
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
        file = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
        try:
            given = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
    cleaned = given.replace("\r", "").replace("\n", "").strip()
    if not (cleaned.isascii() and cleaned.isprintable()):
        raise AccessError(f"the token of the hub has odd characters: {LOG_IN}")
    return cleaned or None


def _parsed(shown: str, data: bytes, kind: type) -> Any:
    try:
        content = strict_json(data)
    except ValueError as error:
        raise RemoteError(f"{shown}: the hub's answer is not valid ({error})") from None
    if not isinstance(content, kind):
        raise RemoteError(f"{shown}: the hub's answer has another form than expected")
    return content


def _entries(shown: str, data: bytes) -> Iterator[dict[str, Any]]:
    for entry in _parsed(shown, data, list):
        path = entry.get("path") if isinstance(entry, dict) else None
        known = isinstance(path, str) and entry.get("type") in ("file", "directory")
        if not known or not path or ".." in path.split("/"):
            raise RemoteError(f"{shown}: the hub's listing has another form than expected")
        yield entry
