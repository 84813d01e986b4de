"""The cache: fetched once, never stale, never larger than allowed, shared by processes."""

import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from neuralmark import RemoteOptions, at_url
from neuralmark.errors import ParameterError
from neuralmark.remote.transfer import metering
from neuralmark.remote.transfer.cache import RangeCache, cache_folder, cache_limit
from tests.support.commands import call
from tests.support.ranges import RangeServer

DATA = np.random.default_rng(4).bytes(900_000)


def read(url: str, options: RemoteOptions, at: int, length: int) -> bytes:
    room = bytearray(length)
    got = at_url(url, options).read_into(memoryview(room), at)
    return bytes(room[:got])


@pytest.fixture
def kept(options: RemoteOptions) -> RemoteOptions:
    return replace(options, cache=True)


def test_a_range_is_fetched_once(web: RangeServer, kept: RemoteOptions) -> None:
    url = web.put("/m.bin", DATA)
    assert read(url, kept, 200_000, 300_000) == DATA[200_000:500_000]
    before = metering.traffic()
    sent = web.sent
    assert read(url, kept, 200_000, 300_000) == DATA[200_000:500_000]
    assert read(url, kept, 250_000, 100_000) == DATA[250_000:350_000]
    assert web.sent - sent == 2 * 65_536  # what the first look at a file brings
    assert (metering.traffic() - before).cached == 400_000


def test_what_is_missing_is_fetched_around_what_is_there(
    web: RangeServer, kept: RemoteOptions
) -> None:
    url = web.put("/m.bin", DATA)
    read(url, kept, 300_000, 100_000)
    sent = web.sent
    assert read(url, kept, 200_000, 400_000) == DATA[200_000:600_000]
    assert web.sent - sent == 65_536 + 300_000


def test_a_changed_file_is_fetched_anew(web: RangeServer, kept: RemoteOptions) -> None:
    url = web.put("/m.bin", DATA)
    read(url, kept, 200_000, 100_000)
    web.put("/m.bin", DATA[::-1])
    assert read(url, kept, 200_000, 100_000) == DATA[::-1][200_000:300_000]


def test_what_cannot_be_told_apart_is_not_kept(web: RangeServer, kept: RemoteOptions) -> None:
    from tests.support.ranges import http_date

    url = web.put("/m.bin", DATA, etag=None, modified=http_date(1e9))
    read(url, kept, 200_000, 100_000)
    assert RangeCache().usage().files == 0


def test_no_cache_keeps_nothing(web: RangeServer, options: RemoteOptions) -> None:
    read(web.put("/m.bin", DATA), options, 200_000, 100_000)
    assert not cache_folder().exists()


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_damaged_ranges_are_fetched_again(
    web: RangeServer, kept: RemoteOptions, damage: str
) -> None:
    url = web.put("/m.bin", DATA)
    read(url, kept, 200_000, 100_000)
    (file,) = [path for path in cache_folder().rglob("*-*") if path.is_file()]
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    content = {"cut": data[:-9], "flip": data, "other": bytearray(os.urandom(len(data)))}
    file.write_bytes(content.get(damage, bytearray()))
    assert read(url, kept, 200_000, 100_000) == DATA[200_000:300_000]
    assert read(url, kept, 200_000, 100_000) == DATA[200_000:300_000]


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path / "c", 100_000)
    for i in range(9):
        cache.keep("a", 10_000 * i, bytes(10_000))
        os.utime(next((tmp_path / "c").rglob(f"{10_000 * i}-*")), (i, i))
    assert cache.read("a", 0, 10)  # used again
    cache.keep("b", 0, bytes(20_000))
    assert cache.usage().size <= 100_000
    fresh = RangeCache(tmp_path / "c", 100_000)
    assert fresh.read("b", 0, 10)
    assert fresh.read("a", 0, 10)
    assert not fresh.read("a", 10_000, 10_010)


def test_the_limit_holds_while_it_fills(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path / "c", 1_000_000)
    for i in range(200):
        cache.keep("a", 50_000 * i, bytes(50_000))
        assert cache.usage().size <= 1_000_000
    cache.keep("a", 1 << 40, bytes(600_000))  # too much of the room for one range
    assert not cache.read("a", 1 << 40, (1 << 40) + 1)


def hammer(folder: Path, seed: int) -> int:
    """Keep and read ranges of few files in a small cache; count what was wrong."""
    cache, wrong = RangeCache(folder, 400_000), 0
    rng = np.random.default_rng(seed)
    for _ in range(300):
        name, at = f"file{rng.integers(3)}", int(rng.integers(40)) * 5_000
        want = bytes([hash((name[4], at)) % 251]) * 5_000
        got = cache.read(name, at, at + 5_000)
        wrong += bool(got) and got != want
        cache.keep(name, at, want)
    return wrong


def test_processes_share_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with context.Pool(4) as pool:
        found = pool.starmap(hammer, [(tmp_path / "c", seed) for seed in range(4)])
    assert found == [0, 0, 0, 0]
    usage = RangeCache(tmp_path / "c", 400_000).usage()
    assert 0 < usage.size <= 4 * 400_000 // 16 + 400_000
    assert not list((tmp_path / "c").rglob(".*-*"))


def test_a_full_or_forbidden_disk_only_costs_a_fetch(
    web: RangeServer, kept: RemoteOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("NEURALMARK_CACHE", str(tmp_path / "file"))
    url = web.put("/m.bin", DATA)
    assert read(url, kept, 200_000, 100_000) == DATA[200_000:300_000]


def test_where_it_is_and_how_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache" / "ranges"
    monkeypatch.delenv("NEURALMARK_CACHE")
    assert cache_folder() == tmp_path / "home/.cache/neuralmark/ranges"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x/neuralmark/ranges"
    assert cache_limit() == 10**10
    for text, size in (("5", 5), ("20GB", 20 * 10**9), ("3 m", 3_000_000)):
        monkeypatch.setenv("NEURALMARK_CACHE_SIZE", text)
        assert cache_limit() == size
    monkeypatch.setenv("NEURALMARK_CACHE_SIZE", "much")
    with pytest.raises(ParameterError, match="such as 20GB"):
        cache_limit()


def test_the_command_shows_and_clears_it(web: RangeServer, kept: RemoteOptions) -> None:
    read(web.put("/m.bin", DATA), kept, 200_000, 100_000)
    shown = call("cache", "show", "--json").json
    assert (shown["files"], shown["size"]) == (1, 100_016)
    assert "10,000,000,000 bytes" in call("cache", "show").out
    assert call("cache", "clear", "--json").json["files"] == 1
    assert call("cache", "show", "--json").json["files"] == 0
