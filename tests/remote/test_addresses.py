"""Which URLs are refused, what of them is printed, and which machines are never asked."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neuralmark import RemoteOptions, at_url
from neuralmark.checkpoints import place_of
from neuralmark.errors import (
    AddressError,
    MissingExtraError,
    ParameterError,
    RemoteError,
    UsageError,
)
from neuralmark.remote.transfer import connecting
from neuralmark.remote.transfer.addresses import is_public, is_url, redacted
from tests.support.ranges import RangeServer, range_server, redirect
from tests.support.serving import Quiet

PRIVATE = (
    *("127.0.0.1", "127.8.9.1", "10.0.0.1", "172.16.0.9", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1", "198.18.0.1"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::7f00:1", "64:ff9b::7f00:1"),
    *("64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:db8::1"),
)


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_of_ones_own_are_private(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


SECRETS = (
    "https://me:hunter2@host/m.bin",
    "https://hunter2@host/m.bin",
    "hf://me:hunter2@acme/bert",
    "s3://AKIA:hunter2@bucket/m.bin",
    "https://host/m.bin?X-Amz-Signature=hunter2",
    "https://host/m.bin?a=1&X-Goog-Signature=hunter2",
    "https://host/m.bin?sv=2020&sig=hunter2",
    "https://host/m.bin?token=hunter2",
    "https://host/m.bin?access_token=hunter2",
    "https://host/m.bin?api_key=hunter2",
    "az://container/m.bin?sig=hunter2",
    "s3://bucket/m.bin?X-Amz-Security-Token=hunter2",
)


@pytest.mark.parametrize("url", SECRETS)
def test_urls_with_credentials_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(AddressError) as caught:
        at_url(url)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in redacted(f"cannot open '{url}' (why)")


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://host/x", "file:///etc/passwd", "https://", "https:///x", "https://[::1/x"),
        *("https://host:99999/x", "https://ho\nst/x", "https://host/a\x1b[2Jb", "hf://acme"),
        *("hf://acme/bert/../x", "hf://datasets/acme/x", "hf://acme/bert@", "hf://acme/a b"),
        *("s3://", "s3://b", "s3://bucket/a//b", "s3://bucket/../x", "s3://bucket:80/x"),
        "https://host/" + "a" * 5000,
    ],
)
def test_what_is_no_url_of_ours_is_refused(url: str) -> None:
    with pytest.raises(AddressError) as caught:
        at_url(url)
    assert str(caught.value).isprintable()


def test_queries_are_not_printed_but_asked(web: RangeServer, options: RemoteOptions) -> None:
    web.put("/m.bin", b"abc")
    place = at_url(f"{web.url}/m.bin?id=hunter2", options)
    assert place.read_bytes() == b"abc"
    assert web.asked[0].path == "/m.bin?id=hunter2"
    assert str(place).endswith("/m.bin?…")
    assert "hunter2" not in f"{place!r}"


def test_owners_keep_their_capital_letters() -> None:
    assert str(at_url("hf://Qwen/Qwen2-7B@v1/a/b.safetensors")) == (
        "hf://Qwen/Qwen2-7B@v1/a/b.safetensors"
    )


def test_paths_are_told_from_urls() -> None:
    assert is_url("S3://bucket/x")
    assert not any(map(is_url, ("a/b", "/a:/b", "C:/x", "://x", "model@v1", "")))
    assert place_of("a/b") == Path("a/b")
    with pytest.raises(UsageError, match="given as a text"):
        place_of(Path("hf://acme/bert"))


def test_options_are_checked(options: RemoteOptions) -> None:
    for wrong in ({"timeout": 0}, {"retries": -1}, {"connections": 0}, {"retries": True}):
        with pytest.raises(ParameterError):
            RemoteOptions(**wrong)
    with pytest.raises(ParameterError):
        at_url("hf://acme/bert", {"cache": False})  # type: ignore[arg-type]
    with pytest.raises(ParameterError):
        at_url(Path("x"))  # type: ignore[arg-type]


def test_private_addresses_are_not_asked(web: RangeServer) -> None:
    port = web.server_address[1]
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "127.1"):
        with pytest.raises(AddressError, match=r"private address.*allow_private=True"):
            at_url(f"https://{host}:{port}/m.bin").size()
    with pytest.raises(AddressError, match="http is not encrypted"):
        at_url(f"{web.url}/m.bin")
    assert not web.asked


@pytest.mark.parametrize(
    "literal", ["::1", "::", "2001:db8::1", "fe80::1", "fe80::1%25lo", "::ffff:127.0.0.1"]
)
def test_private_literals_without_a_port_are_not_asked(literal: str) -> None:
    for port in ("", ":443"):
        with pytest.raises(AddressError, match=r"private address.*allow_private=True"):
            at_url(f"https://[{literal}]{port}/m.bin").size()


@pytest.fixture
def six(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RangeServer, list[Any]]]:
    """A server at ::1 for all who ask for a usual port, and whom they meant to reach."""
    with range_server("::1") as server:
        usual, meant = socket.socket.connect, list[Any]()

        def connect(self: socket.socket, address: Any) -> None:
            if address[1] in (80, 443):
                meant.append(address[:2])
                address = ("::1", server.server_address[1], 0, 0)
            usual(self, address)

        monkeypatch.setattr(socket.socket, "connect", connect)
        yield server, meant


def test_a_literal_without_a_port_is_reached_and_named_in_brackets(
    six: tuple[RangeServer, list[Any]], options: RemoteOptions
) -> None:
    server, meant = six
    server.put("/m.bin", b"abc")
    assert at_url("http://[::1]/m.bin", options).read_bytes() == b"abc"
    assert meant == [("::1", 80)]
    assert server.asked[0].headers["host"] == "[::1]"
    port = server.server_address[1]
    assert at_url(f"http://[::1]:{port}/m.bin", options).read_bytes() == b"abc"
    assert server.asked[-1].headers["host"] == f"[::1]:{port}"
    at_url("http://[fe80::1%25lo]/m.bin", options).size()
    assert meant[-1] == ("fe80::1", 80)
    assert server.asked[-1].headers["host"] == "[fe80::1]"  # a zone is this machine's business


def test_a_redirect_to_a_literal_without_a_port_is_followed(
    web: RangeServer, six: tuple[RangeServer, list[Any]], options: RemoteOptions
) -> None:
    server, _ = six
    server.put("/m.bin", b"abc")
    web.always["/link"] = redirect("http://[::1]/m.bin")
    assert at_url(f"{web.url}/link", options).read_bytes() == b"abc"
    assert server.asked[0].headers["host"] == "[::1]"


def test_a_public_literal_without_a_port_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[Any] = []

    def connect(self: socket.socket, address: Any) -> None:
        reached.append(address[:2])
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(RemoteError, match=r"2606:4700::1111 cannot be reached \(refused\)"):
        at_url("https://[2606:4700::1111]/m.bin", RemoteOptions(retries=0)).size()
    assert reached == [("2606:4700::1111", 443)]


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    """Names resolve to these addresses, one after the other, at the test's port."""
    left = list(answers)
    usual = socket.getaddrinfo

    def resolve(host: str, port: int, *more: Any, **kind: Any) -> Any:
        if not host.endswith(".example"):
            return usual(host, port, *more, **kind)
        return usual(left.pop(0) if len(left) > 1 else left[0], port, *more, **kind)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def test_a_name_that_leads_to_a_private_address_is_not_asked(
    web: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, "127.0.0.1")
    with pytest.raises(AddressError, match=r"evil\.example.*private address"):
        at_url(f"https://evil.example:{web.server_address[1]}/m.bin").size()
    assert not web.asked


def test_a_name_that_changes_its_address_gains_nothing(
    web: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is looked up once and the connection goes there; then the peer is checked."""
    resolving(monkeypatch, "1.1.1.1", "127.0.0.1")
    usual = socket.socket.connect
    asked: list[str] = []

    def connect(self: socket.socket, address: Any) -> None:
        asked.append(address[0])
        usual(self, ("127.0.0.1", web.server_address[1]))  # as if a router had bent it

    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(AddressError, match="private address"):
        at_url("https://evil.example/m.bin").size()
    assert asked == ["1.1.1.1"]
    assert not web.asked


@pytest.mark.parametrize("target", ["https://127.0.0.2:{port}/x", "https://169.254.169.254/x"])
def test_redirects_are_checked_too(
    web: RangeServer, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """A server that passes for a public one leads to a machine behind the firewall."""
    monkeypatch.setattr(connecting, "is_public", lambda address: address == "127.0.0.1")
    inner = target.format(port=web.server_address[1])

    def lead(handler: Quiet) -> None:
        handler.send_response(302)
        handler.send_header("Location", inner)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    monkeypatch.setattr(Quiet, "do_GET", lead)
    with pytest.raises(AddressError, match=rf"^{server[0]}/link: redirects to .*private address"):
        at_url(f"{server[0]}/link", RemoteOptions(cache=False)).size()
    assert not web.asked


def test_public_machines_are_not_asked_without_encryption(
    options: RemoteOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where private ones are allowed: anybody on the way could swap the model."""
    resolving(monkeypatch, "1.1.1.1")
    with pytest.raises(AddressError, match="http is not encrypted"):
        at_url("http://plain.example/m.bin", options).size()


@pytest.mark.parametrize(
    ("url", "missing"), [("https://host/m.bin", "urllib3"), ("s3://bucket/m.bin", "obstore")]
)
def test_a_missing_extra_is_named(url: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("neuralmark.remote.")]:
        if name.rpartition(".")[2] in ("https", "s3", "http", "connecting", "ranged", "bucket"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'neuralmark\[remote\]'"):
        at_url(url)
