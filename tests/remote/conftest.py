"""Servers, options and an environment of their own for every test of URLs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuralmark import RemoteOptions
from neuralmark.remote.transfer import retrying
from tests.support.ranges import RangeServer, range_server

OPTIONS = RemoteOptions(allow_private=True, cache=False, timeout=0.6, retries=2)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache, token or cloud of whoever runs the tests; short pauses."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NEURALMARK_CACHE", str(tmp_path / "cache"))
    clouds = ("AWS_", "GOOGLE_", "AZURE_", "HF_", "HUGGING_FACE")
    for name in [name for name in os.environ if name.startswith(clouds)]:
        monkeypatch.delenv(name)
    for name in ("NETRC", "XDG_CACHE_HOME", "NEURALMARK_CACHE_SIZE", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(retrying, "FIRST_PAUSE", 0.01)


@pytest.fixture
def web() -> Iterator[RangeServer]:
    """A web server that gives ranges, and whatever else it is told to."""
    with range_server() as server:
        yield server


@pytest.fixture
def options() -> RemoteOptions:
    """Loopback is allowed, nothing is kept, patience is short."""
    return OPTIONS
