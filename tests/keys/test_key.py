"""Keys: what makes one, and that a file gives back all of it."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuralmark import Key, Parameters, schemes
from neuralmark.core.key import MAX_CONTENT
from neuralmark.errors import (
    KeyFileError,
    NonFiniteError,
    ParameterError,
    PassphraseError,
    WrongPassphraseError,
)
from neuralmark.keys.key import content_bytes
from neuralmark.keys.sealing import cipher_of
from tests.support.checks import one_line
from tests.support.models import QUICK, gaussian

SECRET = bytes(32)
MATRIX = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
OTHER = schemes.parameters("vanillamark", bits=32)
PLACEMENT = (("layer.weight", (64, 64)),)
ONES = np.ones(32, np.uint8)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, "either a secret or a matrix"),
        ({"secret": SECRET, "matrix": MATRIX}, "either a secret or a matrix"),
        ({"secret": SECRET, "content": bytes(MAX_CONTENT + 1)}, "content is limited"),
        ({"secret": SECRET, "parameters": Parameters(32, 64, pooling="contiguous")}, "raw keys"),
        ({"matrix": MATRIX, "more": {"bits": ONES}}, "does not hold"),
        ({"matrix": MATRIX, "parameters": OTHER, "more": {"filter": ONES}}, "does not hold"),
        ({"matrix": MATRIX, "parameters": OTHER, "more": {"bits": 2 * ONES}}, "zeros and ones"),
        ({"matrix": MATRIX, "parameters": OTHER, "more": {"bits": ONES[1:]}}, "zeros and ones"),
    ],
)
def test_what_is_no_key_is_refused(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words) as caught:
        Key(**{"parameters": Parameters(32, 64), "salt": bytes(32), **parts})
    one_line(caught.value)


def test_a_secret_of_another_length_derives_no_mark() -> None:
    with pytest.raises(ParameterError, match="32 bytes, not 31"):
        Key(QUICK, salt=bytes(32), secret=SECRET[1:]).at(PLACEMENT)


@pytest.mark.parametrize("matrix", [MATRIX[0], MATRIX.astype(np.float64), MATRIX.astype(np.int32)])
def test_a_raw_key_is_a_float32_matrix(matrix: Any) -> None:
    with pytest.raises(ParameterError, match="float32 matrix"):
        Key.raw(matrix, 1, "strided")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_raw_key_is_finite(bad: float) -> None:
    matrix = MATRIX.copy()
    matrix[3, 4] = bad
    with pytest.raises(NonFiniteError):
        Key.raw(matrix, 1, "strided")


def test_bits_that_nobody_chose_are_the_hash() -> None:
    free, chosen = Key.chosen(OTHER, MATRIX), Key.chosen(OTHER, MATRIX, bits=ONES)
    own = Key.raw(MATRIX, 1, "strided").at(PLACEMENT).bits
    assert (free.more["bits"] == own).all()
    assert (chosen.more["bits"] == ONES).all()
    assert not Key.chosen(Parameters(32, 64), MATRIX).more


def raw_keys() -> dict[str, Key]:
    private = schemes.parameters("vanillamark", bits=32, pools=64, rounds=1, filter="private")
    places = np.arange(0, 4096, 3)
    return {
        "native": Key.new(QUICK, owner="Acme", content="2026"),
        "raw": Key.raw(MATRIX, 4, "contiguous", b"content"),
        "chosen": Key.chosen(Parameters(32, 64), MATRIX, content=b"x"),
        "bits": Key.chosen(OTHER, MATRIX, bits=ONES),
        "positions": Key.chosen(private, MATRIX, bits=ONES, positions=places),
    }


@pytest.mark.parametrize("kind", ["native", "raw", "chosen", "bits", "positions"])
@pytest.mark.parametrize("passphrase", [None, "correct horse"])
def test_a_file_gives_back_all_of_a_key(tmp_path: Path, kind: str, passphrase: str | None) -> None:
    key = raw_keys()[kind]
    key.save(tmp_path / "k.nmkey", passphrase, cost=10)
    again = Key.load(tmp_path / "k.nmkey", passphrase)
    assert (again.fingerprint, again.commitment) == (key.fingerprint, key.commitment)
    assert (again.kind, again.parameters, again.content) == (key.kind, key.parameters, key.content)
    assert again.secret == key.secret
    assert (again.matrix is None) == (key.matrix is None)
    assert set(again.more) == set(key.more)
    assert all((again.more[name] == key.more[name]).all() for name in key.more)


def test_a_passphrase_is_needed_and_may_be_set_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "k.nmkey"
    key = Key.new(QUICK)
    key.save(path, "straße", cost=10)
    monkeypatch.delenv("NEURALMARK_PASSPHRASE", raising=False)
    with pytest.raises(PassphraseError, match="NEURALMARK_PASSPHRASE"):
        Key.load(path)
    monkeypatch.setenv("NEURALMARK_PASSPHRASE", "strasse")
    with pytest.raises(WrongPassphraseError):
        Key.load(path)
    monkeypatch.setenv("NEURALMARK_PASSPHRASE", "straße")
    assert Key.load(path).fingerprint == key.fingerprint
    with pytest.raises(PassphraseError, match="not valid Unicode"):
        Key.load(path, "\ud800")


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ({"log2_n": 9}, "more work"),
        ({"log2_n": 21}, "more work"),
        ({"r": 0}, "more work"),
        ({"p": 17}, "more work"),
        ({"log2_n": 20, "r": 8}, "more work"),
        ({"log2_n": 18, "r": 4, "p": 8}, "more work"),
        ({"r": 8.0}, "not numbers"),
        ({"log2_n": True}, "not numbers"),
    ],
)
def test_costs_are_capped_before_any_memory_is_taken(costs: dict[str, Any], words: str) -> None:
    with pytest.raises(KeyFileError, match=words):
        cipher_of({"log2_n": 10, "r": 8, "p": 1, **costs}, "a passphrase")


@pytest.mark.parametrize(("owner", "content"), [("a\nb", ""), ("\ud800", ""), ("", "\udfff")])
def test_texts_that_cannot_be_bound(owner: str, content: str) -> None:
    with pytest.raises(ParameterError):
        content_bytes(owner, content)


def test_owner_and_content_are_lines() -> None:
    assert content_bytes() == b""
    assert content_bytes("Acme", "2026\nv2") == b"owner=Acme\n2026\nv2"
    assert content_bytes(content="2026") == b"2026"


@pytest.mark.parametrize(
    "lie",
    [
        lambda head, rest: ({**head, "pools": 10**6}, rest),
        lambda head, rest: ({**head, "pools": -1}, rest),
        lambda head, rest: ({**head, "pools": 64.0}, rest),
        lambda head, rest: ({**head, "more": {"bits": 10**6}}, rest),
        lambda head, rest: ({**head, "more": {"bits": "32"}}, rest),
        lambda head, rest: ({**head, "more": {"other": 32}}, rest),
        lambda head, rest: (head, rest + b"?"),
        lambda head, rest: (head, rest[:-1]),
    ],
)
def test_a_file_whose_lengths_lie_is_damaged(tmp_path: Path, lie: Any) -> None:
    path = tmp_path / "k.nmkey"
    Key.chosen(OTHER, MATRIX, bits=ONES).save(path, None)
    container = json.loads(path.read_text())
    payload = base64.b64decode(container["payload"])
    length = int.from_bytes(payload[:8], "little")
    head, rest = lie(json.loads(payload[8 : 8 + length]), payload[8 + length :])
    text = json.dumps(head).encode()
    container["payload"] = base64.b64encode(len(text).to_bytes(8, "little") + text + rest).decode()
    path.write_text(json.dumps(container))
    with pytest.raises(KeyFileError, match="damaged") as caught:
        Key.load(path)
    one_line(caught.value)


def test_a_raw_key_seals_no_anchor() -> None:
    with pytest.raises(ParameterError, match="a raw key has no secret"):
        Key.raw(gaussian(64, 32), 1, "strided").anchor_key(bytes(32))


def test_an_owner_in_the_place_of_parameters_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"not str; to name the owner, give owner=\.\.\."):
        Key.new("Acme")  # type: ignore[arg-type]
