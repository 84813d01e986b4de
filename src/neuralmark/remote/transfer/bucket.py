"""Buckets of object stores, through obstore: what S3, Google's and Azure's have in common.

obstore (Rust's object_store) signs, retries and resumes; it takes credentials from the environment
and from the services of the machine it runs on, as each cloud's own clients do.
"""

import os
import re
import socket
from abc import abstractmethod
from collections.abc import Iterator
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from neuralmark.errors import (
    AccessError,
    AddressError,
    MissingExtraError,
    NeuralMarkError,
    RemoteError,
)
from neuralmark.remote.contract import Entry, FileFacts, FirstLook, RemoteOptions, RemoteService
from neuralmark.remote.transfer.addresses import Address, is_public, printable, private, redacted
from neuralmark.remote.transfer.metering import count
from neuralmark.remote.transfer.ranged import changed

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

PAGE = 1000
"""Objects that a page of a listing has."""
FIRST_BYTES = 64 << 10
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._$-]{1,220}")
_LATE = "z" * 16
"""Most names come before it: what lies deeper is skipped by asking for what comes after it."""
MOST_KEYS = 100_000
"""Objects that a listing of one folder goes through."""
_DENIED = re.compile(r"\b40[13]\b|credential|token", re.IGNORECASE)
INSTALL = "reading s3://, gs:// and az:// needs the remote extra: pip install 'neuralmark[remote]'"


class Bucket(RemoteService):
    """One bucket; a path is an object's key, or a part of keys up to a slash."""

    scheme = ""
    skips = True
    """Whether the store begins a listing after a key when asked to."""
    credentials = ""
    """Where credentials are taken from, in words."""

    def __init__(self, bucket: str, options: RemoteOptions) -> None:
        """The store is made, nothing is asked yet."""
        super().__init__(options)
        self.bucket = bucket
        try:
            import obstore
        except ImportError:
            raise MissingExtraError(INSTALL) from None
        self._obstore = obstore
        self._check_endpoint()
        try:
            self._store = self.opened(self._client_options(), self._retries())
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise AccessError(
                f"{self.label('')}: cannot be set up ({_short(error)}); {self.credentials}"
            ) from None

    @abstractmethod
    def opened(self, client: "ClientConfig", retries: "RetryConfig") -> "ObjectStore":
        """The store of this bucket, with what the environment says of it."""

    @abstractmethod
    def endpoint(self) -> str | None:
        """The server that the environment names instead of the cloud's own, if it does."""

    @classmethod
    def at(cls, address: Address, options: RemoteOptions) -> tuple[Self, str]:
        """The bucket of a URL, and a key in it."""
        path = address.path.strip("/")
        sound = all(part not in ("", ".", "..") for part in path.split("/")) if path else True
        good = _BUCKET.fullmatch(address.host) and address.port is None and not address.query
        if not good or not sound:
            raise AddressError(
                f"{address.shown}: names no object: write {cls.scheme}://BUCKET/FOLDER or"
                f" {cls.scheme}://BUCKET/FOLDER/FILE"
            )
        return cls(address.host, options), path

    def label(self, path: str) -> str:
        """The URL of a key."""
        return printable(f"{self.scheme}://{self.bucket}" + (f"/{path}" if path else ""))

    def identity(self, path: str) -> str:
        """The key, at this server."""
        return f"{self.endpoint() or ''} {self.scheme}://{self.bucket}/{path}"

    def name(self, path: str) -> str:
        """The last part of a key; of the bucket, its name."""
        return (path or self.bucket).rpartition("/")[2]

    def look(self, path: str, *, head: bool = True) -> FirstLook | None:
        """The first bytes of an object, or only what is known of it."""
        if not path:
            return None
        try:
            if not head:
                return FirstLook(_facts(self._obstore.head(self._store, path)))
            return self._first(path)
        except FileNotFoundError:
            return None
        except self._obstore.exceptions.BaseError as error:
            raise self._refusal(path, error) from None

    def fetch(self, path: str, facts: FileFacts, start: int, stop: int) -> bytes:
        """A range of the version that was seen; obstore goes on where a transfer was cut."""
        wanted: dict[str, Any] = {"range": (start, stop)}
        if facts.version is not None:
            wanted["version"] = facts.version.removeprefix("version ")
        if facts.etag is not None:
            wanted["if_match"] = facts.etag
        try:
            found = self._got(path, wanted)
            if _facts(found.meta) != facts or tuple(found.range) != (start, stop):
                raise changed(self.label(path))
            data = bytes(found.bytes())
        except FileNotFoundError:
            raise changed(self.label(path)) from None
        except self._obstore.exceptions.BaseError as error:
            raise self._refusal(path, error) from None
        if len(data) != stop - start:
            raise RemoteError(f"{self.label(path)}: the connection was cut off")
        count(fetched=len(data))
        return data

    def listing(self, path: str) -> Iterator[Entry]:
        """What lies in a folder; what lies deeper is skipped where the store can do that."""
        skip = len(path) + 1 if path else 0
        folders: set[str] = set()
        after: str | None = None
        seen = 0
        while True:
            new = None
            for key, size in self._keys(path, after):
                seen += 1
                name, deeper, _ = key[skip:].partition("/")
                if seen > MOST_KEYS:
                    raise self._too_many(path)
                if not deeper:
                    yield Entry(name, size=size)
                elif name not in folders:
                    folders.add(name)
                    yield Entry(name, folder=True)
                    new = name
                    if self.skips:
                        break
            if new is None or not self.skips:
                return
            after = f"{self.child(path, new)}/{_LATE}"

    def _too_many(self, path: str) -> RemoteError:
        return RemoteError(
            f"{self.label(path)}: more than {MOST_KEYS:,} objects lie in and under it: name the"
            " file of the model"
        )

    def tree(self, path: str) -> Iterator[str]:
        """All objects under a folder, page by page."""
        return (key for key, _ in self._keys(path, None))

    def _keys(self, path: str, after: str | None) -> Iterator[tuple[str, int]]:
        try:
            pages = self._obstore.list(
                self._store, f"{path}/" if path else None, offset=after, chunk_size=PAGE
            )
            for page in pages:
                count(requests=1)
                for each in page:
                    if not each["path"].endswith("/"):
                        yield each["path"], each["size"]
        except FileNotFoundError:
            return
        except self._obstore.exceptions.BaseError as error:
            raise self._refusal(path, error) from None

    def _first(self, path: str) -> FirstLook:
        try:
            found = self._got(path, {"range": (0, FIRST_BYTES)})
        except self._obstore.exceptions.GenericError:
            try:
                facts = _facts(self._obstore.head(self._store, path))
            except (self._obstore.exceptions.BaseError, FileNotFoundError):
                facts = None
            if facts is None or facts.size:  # only an empty object has no first byte
                raise
            return FirstLook(facts)
        data = bytes(found.bytes())
        count(fetched=len(data))
        return FirstLook(_facts(found.meta), data)

    def _got(self, path: str, wanted: Any) -> "GetResult":
        count(requests=1)
        return self._obstore.get(self._store, path, options=wanted)

    def _client_options(self) -> "ClientConfig":
        seconds = timedelta(seconds=self.options.timeout)
        told: ClientConfig = {
            "connect_timeout": seconds,
            "read_timeout": seconds,
            "timeout": timedelta(seconds=30 + 10 * self.options.timeout),
        }
        if self.options.allow_private:
            told["allow_http"] = True
        return told

    def _retries(self) -> "RetryConfig":
        return {
            "max_retries": self.options.retries,
            "retry_timeout": timedelta(seconds=30 + 5 * self.options.timeout),
        }

    def _check_endpoint(self) -> None:
        """Refuse a server of one's own network, and one without encryption, unless allowed."""
        given = self.endpoint()
        if given is None or self.options.allow_private:
            return
        shown = f"{self.label('')} at {redacted(given)}"
        try:
            parts = urlsplit(given)
            found = socket.getaddrinfo(parts.hostname or "", parts.port or 443)
        except (OSError, UnicodeError, ValueError):
            raise RemoteError(f"{shown}: there is no such host") from None
        if parts.scheme != "https" or not all(is_public(str(each[4][0])) for each in found):
            raise private(shown)

    def _refusal(self, path: str, error: Exception) -> NeuralMarkError:
        kinds, shown = self._obstore.exceptions, self.label(path)
        if isinstance(error, kinds.PreconditionError):
            return changed(shown)
        said, whole = _short(error), str(error)
        if "invalid path" in whole:
            return RemoteError(
                f"{shown}: holds an object whose name cannot be used (control characters, or"
                " nothing between two slashes): name the file of the model"
            )
        denied = (kinds.PermissionDeniedError, kinds.UnauthenticatedError)
        if isinstance(error, denied) or _DENIED.search(whole):
            return AccessError(
                f"{shown}: access is denied: credentials are missing or wrong; {self.credentials}"
                f" ({said})"
            )
        return RemoteError(f"{shown}: cannot be read ({said})")


def environment(*names: str) -> str | None:
    """The first of these variables that says something."""
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _facts(meta: Any) -> FileFacts:
    version, etag = meta["version"], meta["e_tag"]
    modified = meta["last_modified"].astimezone(UTC).isoformat()
    return FileFacts(
        meta["size"],
        etag,
        None if version is None else f"version {version}",
        None if etag else modified,
    )


_CAUSE = re.compile(r'\b(?:error|message): "([^"\n]{1,200})"')
"""Where obstore's message names what lies at the bottom of an error."""


def _short(error: Exception) -> str:
    """What went wrong, in the fewest words, without what queries and headers hold.

    >>> _short(OSError("GET https://h/x in 1s - HTTP error: error sending request"))
    'HTTP error: error sending request'
    """
    first, _, below = str(error).strip().partition("\n")
    said = first.rpartition(" - ")[2] or first or "no reason given"
    said = ": ".join([said, *_CAUSE.findall(below)[-1:]])
    return " ".join(redacted(said).split())[:200]
