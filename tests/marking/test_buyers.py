"""Lists of buyers: from Python and from files, each buyer once."""

from pathlib import Path
from typing import Any

import pytest

from neuralmark import Parameters
from neuralmark.errors import BuyersError
from neuralmark.marking import buyers
from neuralmark.marking.buyers import buyer_parameters, buyers_of
from tests.support.checks import one_line


def test_a_list() -> None:
    assert buyers_of(["Acme", " Bolt  GmbH "]) == ("Acme", "Bolt GmbH")


@pytest.mark.parametrize(
    "text",
    [
        "Acme\nBolt GmbH\n",
        "buyer\nAcme\nBolt GmbH",
        "id,Buyer \r\n1,Acme\r\n2,Bolt GmbH\r\n",
        '\ufeffbuyer,note\n\n Acme ,x\n,\nBolt GmbH,"two\nlines"\n',
    ],
)
def test_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "buyers.csv"
    file.write_text(text, encoding="utf-8", newline="")
    assert buyers_of(file) == buyers_of(str(file)) == ("Acme", "Bolt GmbH")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([], "empty"),
        (["Acme", "Bolt", "ACME "], "'ACME' is named twice"),
        (["M\u00fcller", "mu\u0308ller"], "named twice"),
        (["Acme", "a\x07b"], "control or invisible"),
        (["Acme", " "], "not empty"),
        (7, "must be a list"),
        ({"a": 1}, "must be a list"),
        (["a", 7], "must be a list"),
    ],
)
def test_lists_that_cannot_be_used(labels: Any, said: str) -> None:
    with pytest.raises(BuyersError, match=said) as caught:
        buyers_of(labels)
    one_line(caught.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"buyer\n", "empty"),
        (b"\xff\xfe", "UTF-8"),
        (b"Acme\nBolt\nacme\n", "line 3: the buyer 'acme' is named twice"),
        (b"buyer,x\nAcme,\n,7\n", "line 3: a label must be a text"),
        (b'"Acme', "not a CSV file"),
        (b"Ac\0me\n", "buyers.csv"),
        ("Müller, J.\nOtto\n".encode(), "line 1: 'Müller, J.' may be one name or several columns"),
        (b"name,price\nFoo,3\n", "line 1: 'name,price' may be"),
        (b"id;buyer\n1;Foo\n", "one of them 'buyer', columns apart by commas"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, data: bytes, said: str) -> None:
    file = tmp_path / "buyers.csv"
    file.write_bytes(data)
    with pytest.raises(BuyersError, match=said) as caught:
        buyers_of(file)
    one_line(caught.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.csv"):
        with pytest.raises(BuyersError, match="cannot be read"):
            buyers_of(path)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "buyers.csv"
    file.write_text("Acme\nBolt\n")
    monkeypatch.setattr(buyers, "MAX_BUYERS", 1)
    with pytest.raises(BuyersError, match="too many"):
        buyers_of(file)
    monkeypatch.setattr(buyers, "MAX_LIST", 4)
    with pytest.raises(BuyersError, match="larger than"):
        buyers_of(file)


def test_more_pools_where_there_is_room() -> None:
    usual = Parameters()
    sizes = {weights: buyer_parameters(usual, (("w", (weights,)),)).pools for weights in SIZES}
    assert sizes == SIZES
    wide = Parameters(bits=256, pools=4096)
    assert buyer_parameters(wide, (("w", (10**7,)),)) == wide
    long = Parameters(bits=4096, pools=4096)  # bits x pools has a cap
    assert buyer_parameters(long, (("w", (10**9,)),)) == long


SIZES = {65_535: 1024, 65_536: 2048, 32_768: 1024, 32_767: 512, 1: 512}
"""Pools of a buyer's mark in so many weights."""
