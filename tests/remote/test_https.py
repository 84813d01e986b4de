"""Web servers: ranges that hold, and servers that lie, cut off, stall and lead astray."""

import logging
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from neuralmark import RemoteOptions, at_url
from neuralmark.errors import (
    AccessError,
    AddressError,
    ChangedError,
    NeuralMarkWarning,
    RemoteError,
)
from neuralmark.remote.transfer import retrying
from neuralmark.storage.places import FarPlace
from tests.support import ranges
from tests.support.ranges import RangeServer
from tests.support.serving import Quiet

DATA = np.random.default_rng(5).bytes(700_000)


def read(place: FarPlace, at: int, length: int) -> bytes:
    room = bytearray(length)
    return bytes(room[: place.read_into(memoryview(room), at)])


@pytest.fixture
def place(web: RangeServer, options: RemoteOptions) -> FarPlace:
    return at_url(web.put("/m.bin", DATA), options)


def test_a_file_is_read_in_ranges_and_no_more_than_is_asked_for(
    place: FarPlace, web: RangeServer
) -> None:
    assert place.is_file()
    assert place.size() == len(DATA)
    assert read(place, 300_000, 200_000) == DATA[300_000:500_000]
    assert read(place, len(DATA) - 5, 50) == DATA[-5:]
    assert read(place, len(DATA) + 5, 50) == b""
    assert [each.status for each in web.asked] == [206] * 3
    assert web.sent < 65_536 + 200_000 + 131_072
    assert web.asked[1].headers["range"] == "bytes=300000-499999"


def test_small_reads_in_a_row_are_one_request(place: FarPlace, web: RangeServer) -> None:
    with place.open() as file:
        assert b"".join(file.read(1000) for _ in range(60)) == DATA[:60_000]
    assert len(web.asked) == 1


def test_what_is_expected_comes_in_parallel_in_order_and_once(
    web: RangeServer, options: RemoteOptions
) -> None:
    data = np.random.default_rng(6).bytes(30 << 20)
    place = at_url(web.put("/big.bin", data), options)
    together = threading.Barrier(2, timeout=5)

    def meet(handler: ranges.RangeHandler, _: bytes) -> bool:
        together.wait()  # two requests are under way at once, or this fails
        return False

    place.size()
    web.faults["/big.bin"] = [meet, meet]
    place.expect([(1 << 20, 20 << 20)])
    got = b"".join(read(place, at, 1 << 20) for at in range(1 << 20, 21 << 20, 1 << 20))
    assert got == data[1 << 20 : 21 << 20]
    assert web.sent == 65_536 + (20 << 20)


def test_neighbours_are_fetched_together(place: FarPlace, web: RangeServer) -> None:
    place.size()
    place.expect([(200_000 + 1000 * i, 990) for i in range(100)])
    for i in reversed(range(100)):
        start = 200_000 + 1000 * i
        assert read(place, start, 990) == DATA[start : start + 990]
    assert len(web.asked) == 2


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_server_that_is_busy_is_asked_again(place: FarPlace, web: RangeServer, code: int) -> None:
    web.faults["/m.bin"] = [ranges.status(code, Retry_After="0")] * 2
    assert place.size() == len(DATA)
    web.faults["/m.bin"] = [ranges.status(code)] * 3
    with pytest.raises(RemoteError, match=rf"answered {code} \(tried 3 times\)"):
        read(place, 100_000, 100_000)


def test_a_transfer_that_was_cut_goes_on_where_it_was_cut(
    place: FarPlace, web: RangeServer
) -> None:
    place.size()
    web.faults["/m.bin"] = [ranges.cut_after(70_000)] * 5
    assert read(place, 100_000, 600_000) == DATA[100_000:]
    starts = [each.headers["range"] for each in web.asked[1:]]
    assert starts == [f"bytes={100_000 + 70_000 * i}-699999" for i in range(6)]


def test_a_server_that_always_cuts_off_is_given_up(place: FarPlace, web: RangeServer) -> None:
    place.size()
    web.always["/m.bin"] = ranges.cut_after(10)
    with pytest.raises(RemoteError, match="cut off"):
        read(place, 100_000, 600_000)
    assert len(web.asked) == 4


@pytest.mark.parametrize("fault", [ranges.stall, ranges.silent, ranges.drip, ranges.drip_head])
def test_a_server_that_stalls_is_given_up(
    place: FarPlace, web: RangeServer, fault: ranges.Fault
) -> None:
    place.size()
    web.always["/m.bin"] = fault
    begun = time.monotonic()
    with pytest.raises(RemoteError, match="stalled"):
        read(place, 100_000, 100_000)
    assert time.monotonic() - begun < 15


def test_a_long_wait_is_told_of_once(
    web: RangeServer, options: RemoteOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sits before a stalled server hears that it goes on, and for how long."""
    monkeypatch.setattr(retrying, "LONG_WAIT", 0.5)
    place = at_url(web.put("/m.bin", DATA), options)
    web.always["/m.bin"] = ranges.silent
    with pytest.warns(NeuralMarkWarning) as told, pytest.raises(RemoteError, match="3 times"):
        place.size()
    with pytest.raises(RemoteError, match="3 times"):
        place.size()  # the same server: nothing new
    (heard,) = (str(each.message) for each in told)
    assert heard.startswith(
        f"{web.url}/m.bin: the server stalled: "
    )  # which wait ended first is luck
    assert heard.endswith("; trying up to 2 more times")


def test_what_fails_quickly_is_tried_again_without_a_word(
    web: RangeServer, options: RemoteOptions
) -> None:
    web.faults["/m.bin"] = [ranges.status(503)] * 2
    assert at_url(web.put("/m.bin", DATA), options).size() == len(DATA)  # a warning is an error


def test_a_server_without_ranges_does_for_small_files_only(
    web: RangeServer, options: RemoteOptions
) -> None:
    small, large = web.put("/s.json", b"{}"), web.put("/l.bin", DATA)
    web.always.update({"/s.json": ranges.whole, "/l.bin": ranges.whole})
    assert at_url(small, options).read_bytes() == b"{}"
    with pytest.raises(RemoteError, match=r"does not offer ranges.*download the file first"):
        at_url(large, options).size()


def test_a_server_that_stops_giving_ranges_is_not_relied_on(
    place: FarPlace, web: RangeServer
) -> None:
    place.size()
    web.always["/m.bin"] = ranges.whole
    with pytest.raises(RemoteError, match="whole file"):
        read(place, 100_000, 100_000)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("bytes 100001-200000/700000", RemoteError),
        ("bytes 100000-199999/800000", ChangedError),
        ("bytes 100000-299999/700000", RemoteError),
        ("bytes 100000-199999/*", RemoteError),
        ("bytes 199999-100000/700000", RemoteError),
        ("chapters 1-2/3", RemoteError),
        ("", RemoteError),
        (f"bytes 100000-{'9' * 40}/700000", RemoteError),
    ],
)
def test_lies_about_the_range_are_found_out(
    place: FarPlace, web: RangeServer, said: str, error: type[RemoteError]
) -> None:
    place.size()
    web.always["/m.bin"] = ranges.says(said)
    with pytest.raises(error):
        read(place, 100_000, 100_000)


def test_an_endless_answer_is_not_read_on(place: FarPlace, web: RangeServer) -> None:
    """A body that is longer than promised costs no memory: only what was asked for is taken."""

    def longer(handler: ranges.RangeHandler, data: bytes) -> bool:
        told = ranges.Served(data).headers()
        told["Content-Range"] = "bytes 100000-199999/700000"
        handler.send_response(206)
        for name, value in told.items():
            handler.send_header(name, value)
        handler.send_header("Connection", "close")
        handler.end_headers()
        while not handler.server.closing.is_set():
            handler.wfile.write(data[100_000:])
        return handler.hang_up()

    place.size()
    web.always["/m.bin"] = longer
    assert read(place, 100_000, 100_000) == DATA[100_000:200_000]


def test_packed_answers_are_refused(web: RangeServer, options: RemoteOptions) -> None:
    url = web.put("/m.bin", DATA, more={"Content-Encoding": "gzip"})
    with pytest.raises(RemoteError, match="packed bytes"):
        at_url(url, options).size()


def heedless(handler: ranges.RangeHandler, data: bytes) -> bool:
    """Knows no If-Match, but says which file it sends."""
    start, stop = handler.range(len(data))
    handler.part(data, start or 0, stop, ranges.Served(data).headers())
    return True


@pytest.mark.parametrize("obeys", [True, False])
def test_a_swapped_file_is_noticed(web: RangeServer, options: RemoteOptions, obeys: bool) -> None:
    url = web.put("/m.bin", DATA)
    place = at_url(url, options)
    place.size()
    before = place.stamp()
    assert place.stamp() == before
    web.put("/m.bin", DATA[::-1])
    if not obeys:
        web.always["/m.bin"] = heedless
    with pytest.raises(ChangedError, match="changed while it was read"):
        read(place, 100_000, 100_000)
    assert place.stamp() != before


def test_without_an_etag_date_and_size_tell(web: RangeServer, options: RemoteOptions) -> None:
    url = web.put("/m.bin", DATA, etag=None, modified=ranges.http_date(1e9))
    place = at_url(url, options)
    assert place.pinned() == "last modified Sun, 09 Sep 2001 01:46:40 GMT, 700,000 bytes"
    web.put("/m.bin", DATA[::-1], etag=None, modified=ranges.http_date(2e9))
    with pytest.raises(ChangedError):
        read(place, 100_000, 100_000)


def test_a_weak_etag_is_held_to_but_never_sent_as_a_condition(
    web: RangeServer, options: RemoteOptions
) -> None:
    place = at_url(web.put("/m.bin", DATA, etag='W/"a"'), options)
    with pytest.warns(NeuralMarkWarning, match="neither a version nor a date"):
        place.size()
    assert read(place, 100_000, 100_000) == DATA[100_000:200_000]
    assert "if-match" not in web.asked[-1].headers
    web.put("/m.bin", DATA, etag='W/"b"')
    with pytest.raises(ChangedError):
        read(place, 300_000, 100_000)


def test_a_server_that_tells_nothing_is_told_of(web: RangeServer, options: RemoteOptions) -> None:
    place = at_url(web.put("/m.bin", DATA, etag=None), options)
    with pytest.warns(NeuralMarkWarning, match="might not be noticed"):
        assert "a swap might not be noticed" in str(place.pinned())


def test_missing_and_empty_files(web: RangeServer, options: RemoteOptions) -> None:
    gone = at_url(f"{web.url}/none.bin", options)
    assert not gone.exists()
    with pytest.raises(FileNotFoundError):
        gone.size()
    assert at_url(web.put("/empty.bin", b""), options).read_bytes() == b""


def test_names_in_folders_are_quoted(web: RangeServer, options: RemoteOptions) -> None:
    web.put("/a folder/model.safetensors", b"1")
    folder = at_url(f"{web.url}/a%20folder/", options)
    assert folder.is_dir()
    assert folder.name == "a folder"
    assert [each.name for each in folder.iterdir()] == ["model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == b"1"
    assert not (folder / "../secret#?x").is_file()
    assert web.asked[-1].path.endswith("/a%20folder/..%2Fsecret%23%3Fx")


def test_redirects_are_followed_remembered_and_renewed(
    place: FarPlace, web: RangeServer, options: RemoteOptions
) -> None:
    web.always["/link"] = ranges.redirect("/m.bin?X-Amz-Signature=secret1")
    linked = at_url(f"{web.url}/link", options)
    linked.size()
    assert read(linked, 100_000, 100_000) == DATA[100_000:200_000]
    paths = [each.path.partition("?")[0] for each in web.asked]
    assert paths == ["/link", "/m.bin", "/m.bin"]
    web.faults["/m.bin"] = [ranges.status(403)]  # the signature has expired
    assert read(linked, 300_000, 100_000) == DATA[300_000:400_000]
    assert [each.path.partition("?")[0] for each in web.asked[3:]] == ["/m.bin", "/link", "/m.bin"]


def test_endless_redirects_end(web: RangeServer, options: RemoteOptions) -> None:
    web.always["/round"] = ranges.redirect("/round")
    with pytest.raises(RemoteError, match="redirects without an end"):
        at_url(f"{web.url}/round", options).size()
    assert len(web.asked) == 11
    web.always["/nowhere"] = ranges.status(302)
    with pytest.raises(RemoteError, match="to nowhere"):
        at_url(f"{web.url}/nowhere", options).size()
    web.always["/file"] = ranges.redirect("file:///etc/passwd")
    with pytest.raises(AddressError) as caught:
        at_url(f"{web.url}/file", options).size()
    told = "redirects to file:///etc/passwd: is not on a web server"
    assert str(caught.value) == f"{web.url}/file: {told}"


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("https://[::1/x", r"redirects to https://\[::1/x: is not a URL"),
        ("https://host:99999/x", r"redirects to https://host:99999/x: is not a URL"),
        ("https://me:hunter2@host/x", r"redirects to https://host/x: has a user or a password"),
        ("http://1.1.1.1/x", r"redirects to http://1\.1\.1\.1/x: .*http is not encrypted"),
    ],
)
def test_a_redirect_that_is_refused_is_told_with_both_addresses(
    web: RangeServer, options: RemoteOptions, target: str, told: str
) -> None:
    web.always["/link"] = ranges.redirect(target)
    with pytest.raises(AddressError, match=rf"^{web.url}/link: {told}") as caught:
        at_url(f"{web.url}/link", options).size()
    assert "hunter2" not in str(caught.value)


def test_dead_links(options: RemoteOptions) -> None:
    with pytest.raises(RemoteError, match="cannot be reached"):
        at_url("http://127.0.0.1:1/m.bin", options).size()
    with pytest.raises(RemoteError, match="there is no host"):
        at_url("https://nowhere.invalid/m.bin", options).size()


def test_wrong_credentials(web: RangeServer, options: RemoteOptions) -> None:
    web.always["/m.bin"] = ranges.status(401)
    with pytest.raises(AccessError, match=r"access is denied.*netrc"):
        at_url(f"{web.url}/m.bin", options).size()


def test_netrc_is_sent_to_its_host_and_not_after_a_redirect(
    web: RangeServer, options: RemoteOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login me password hunter2\n")
    file.chmod(0o600)
    monkeypatch.setenv("NETRC", str(file))
    with ranges.range_server() as other:
        other.put("/m.bin", DATA)
        web.always["/link"] = ranges.redirect(f"{other.url}/m.bin")
        assert at_url(f"{web.url}/link", options).size() == len(DATA)
        assert web.asked[0].headers["authorization"].startswith("Basic ")
        assert "authorization" not in other.asked[0].headers


def test_logs_hold_no_signatures(
    place: FarPlace, web: RangeServer, options: RemoteOptions, caplog: pytest.LogCaptureFixture
) -> None:
    web.always["/link"] = ranges.redirect("/m.bin?X-Amz-Signature=hunter2&other=hunter3")
    with caplog.at_level(logging.DEBUG):
        at_url(f"{web.url}/link", options).size()
    assert "/m.bin?…" in caplog.text
    assert "hunter" not in caplog.text


def test_https_is_checked_against_certificates(
    server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, options: RemoteOptions
) -> None:
    address, folder = server
    (folder / "s.json").write_bytes(b"{}")  # this server knows no ranges: small files only
    assert at_url(f"{address}/s.json", options).read_bytes() == b"{}"
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(RemoteError, match=r"of 127\.0\.0\.1 is not to be trusted.*SSL_CERT_FILE"):
        at_url(f"{address}/s.json", options).size()


def test_https_never_leads_to_http(
    server: tuple[str, Path],
    web: RangeServer,
    options: RemoteOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = web.put("/m.bin", DATA)

    def do_get(handler: Quiet) -> None:
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    monkeypatch.setattr(Quiet, "do_GET", do_get)
    with pytest.raises(AddressError, match="from https to http"):
        at_url(f"{server[0]}/x", options).size()
    assert not web.asked
