"""Files of web servers: `https://host/path/model.safetensors`.

Web servers list nothing that could be relied on, so in a folder only the names that models usually
have are looked for.
"""

import base64
import netrc
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from neuralmark.errors import AddressError, NeuralMarkError
from neuralmark.remote.contract import Entry, FileFacts, FirstLook, RemoteOptions, RemoteService
from neuralmark.remote.transfer import addresses
from neuralmark.remote.transfer.addresses import Address
from neuralmark.remote.transfer.http import Answer, HttpClient, refused
from neuralmark.remote.transfer.ranged import FIRST_LOOK, RangedFile

USUAL_NAMES = (
    *("model.safetensors.index.json", "model.safetensors", "adapter_model.safetensors"),
    "adapter_config.json",
    *("pytorch_model.bin.index.json", "pytorch_model.bin", "model.pt"),
)
"""What is looked for in a folder of a web server."""
WHERE = "a user and a password are taken from ~/.netrc (or $NETRC) and from nowhere else"


class WebServer(RemoteService):
    """One web server; a path is as URLs write it, with its query."""

    quick_listing = False

    def __init__(self, address: Address, options: RemoteOptions) -> None:
        """Nothing is asked yet."""
        super().__init__(options)
        self._address = replace(address, path="", query="")
        self._client = HttpClient(options, _from_netrc)
        self._files: dict[str, RangedFile] = {}

    @classmethod
    def at(cls, address: Address, options: RemoteOptions) -> tuple[Self, str]:
        """The server of a URL."""
        if not address.host:
            raise AddressError(f"{address.shown}: names no server")
        if address.scheme == "http" and not options.allow_private:
            raise addresses.unencrypted(address.shown)
        return cls(address, options), address.path + (f"?{address.query}" if address.query else "")

    def label(self, path: str) -> str:
        """The URL without what its query asks for."""
        return self._at(path).shown

    def identity(self, path: str) -> str:
        """The URL, whole."""
        return self._at(path).url

    def look(self, path: str, *, head: bool = True) -> FirstLook | None:
        """One request for the first bytes."""
        if path.partition("?")[0].endswith("/") or not path:
            return None
        return self._file(path).look(FIRST_LOOK if head else 1)

    def fetch(self, path: str, facts: FileFacts, start: int, stop: int) -> bytearray:
        """A range, checked against what the server said before."""
        return self._file(path).fetch(facts, start, stop)

    def listing(self, path: str) -> Iterator[Entry]:
        """The usual names that are there."""
        if "?" not in path:
            for name in USUAL_NAMES:
                if self._file(self.child(path, name)).look(1) is not None:
                    yield Entry(name)

    def tree(self, path: str) -> Iterator[str]:
        """The usual names that are there, not deeper."""
        return (self.child(path, entry.name) for entry in self.listing(path))

    def parent(self, path: str) -> str:
        """The folder of a path."""
        return path.partition("?")[0].rstrip("/").rpartition("/")[0]

    def child(self, path: str, name: str) -> str:
        """What lies in a folder."""
        return addresses.joined(path, name)

    def name(self, path: str) -> str:
        """The last part of a path, as people write it; of a server, its host."""
        return addresses.bare_name(path.partition("?")[0]) or self._address.host

    def _at(self, path: str) -> Address:
        raw, _, query = path.partition("?")
        return replace(self._address, path=raw, query=query)

    def _file(self, path: str) -> RangedFile:
        if path not in self._files:
            address = self._at(path)
            self._files[path] = RangedFile(self._client, address, address.shown, _refusal)
        return self._files[path]


def _refusal(shown: str, answer: Answer) -> NeuralMarkError:
    return refused(shown, answer, WHERE)


def _from_netrc(address: Address) -> Mapping[str, str]:
    """What ~/.netrc has for this very host, as curl and wget read it."""
    file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        known = netrc.netrc(str(file)).hosts.get(address.host)
    except (OSError, netrc.NetrcParseError):
        return {}
    if known is None:
        return {}
    user, _, password = known
    code = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
    return {"Authorization": f"Basic {code}"}
