"""Sub-keys: HKDF by its published answers, and labels that people may write in many ways."""

import unicodedata

import pytest

from neuralmark import Key, Parameters
from neuralmark.core.subkeys import MAX_LABEL, hkdf, plain_label, sub_secret
from neuralmark.errors import ParameterError
from tests.support.checks import one_line
from tests.support.marks import some_key

RFC_5869 = [
    (
        b"\x0b" * 22,
        bytes(range(13)),
        bytes(range(0xF0, 0xFA)),
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    ),
    (
        bytes(range(0x50)),
        bytes(range(0x60, 0xB0)),
        bytes(range(0xB0, 0x100)),
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c6"
        "5e590e09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
    ),
    (
        b"\x0b" * 22,
        b"",
        b"",
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
    ),
]


@pytest.mark.parametrize(("secret", "salt", "info", "answer"), RFC_5869)
def test_the_answers_of_rfc_5869(secret: bytes, salt: bytes, info: bytes, answer: str) -> None:
    expected = bytes.fromhex(answer)
    assert hkdf(secret, info, len(expected), salt) == expected


def test_a_known_answer() -> None:
    """Copies that were sold must be traced for ever: this never changes."""
    secret, salt = sub_secret(bytes(range(32)), "buyer", "Acme Ltd.")
    info = b"neuralmark/sub-key/1\x05\0\0\0\0\0\0\0buyer\x09\0\0\0\0\0\0\0acme ltd."
    assert secret + salt == hkdf(bytes(range(32)), info, 64)
    assert secret.hex() == "851890290c81e65eaa80633afead6f462ff60864726c19af60acd311971bd925"


@pytest.mark.parametrize(
    "same",
    [
        "ACME Ltd.",
        "  acme   ltd. ",
        "ＡＣＭＥ Ltd.",
        "acme\u00a0ltd.",
    ],
)
def test_one_buyer_however_it_is_written(same: str) -> None:
    assert plain_label(same) == "acme ltd."


def test_accents_may_be_composed_or_not() -> None:
    label = "Müller & Söhne"
    forms = {plain_label(unicodedata.normalize(form, label)) for form in ("NFC", "NFD", "NFKD")}
    assert forms == {"müller & söhne"}
    assert plain_label("STRASSE") == plain_label("Straße")


def test_plain_labels_stay_what_they_are() -> None:
    for label in ("acme ltd.", "müller & söhne", "東京", "ﬁrma", "ǅ", "\u0345\u0313a"):
        assert plain_label(plain_label(label)) == plain_label(label)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        " \t",
        "a\tb",
        "a\nb",
        "a\0b",
        "a\x1b[31m",
        "a\u202eb",
        "a\u200bb",
        "a\ud800",
        "a" * (MAX_LABEL + 1),
        7,
    ],
)
def test_labels_that_are_none(bad: str) -> None:
    with pytest.raises(ParameterError) as caught:
        plain_label(bad)
    one_line(caught.value)


def test_every_label_and_purpose_has_a_key_of_its_own() -> None:
    key = some_key()
    keys = [key, key.sub("a"), key.sub("b"), key.sub("a", "dispute"), key.sub("a").sub("a")]
    assert len({each.secret for each in keys}) == len(keys)
    assert len({each.fingerprint for each in keys}) == len(keys)
    assert len({each.salt for each in keys}) == len(keys)


def test_the_content_names_owner_and_buyer() -> None:
    key = Key.new(owner="Me")
    assert key.sub("Acme").content == b"owner=Me\nbuyer=acme"
    assert key.sub("May 1", "dispute").content == b"owner=Me\ndispute=may 1"


def test_other_parameters_have_the_same_secret() -> None:
    shape = Parameters(bits=160, pools=640)
    sub = some_key().sub("a", parameters=shape)
    assert (sub.parameters, sub.secret) == (shape, some_key().sub("a").secret)


def test_what_has_no_sub_keys() -> None:
    raw = Key.raw(some_key().at((("w", (64, 64)),)).matrix, rounds=1, pooling="strided")
    with pytest.raises(ParameterError, match="no secret"):
        raw.sub("a")
    with pytest.raises(ParameterError, match="purpose must be"):
        some_key().sub("a", "friend")  # type: ignore[arg-type]
