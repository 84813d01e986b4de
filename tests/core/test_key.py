"""Key derivation against a twin in Python integers."""

import hashlib
import json
import math
import struct
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralmark.core.encoding import enc
from neuralmark.core.key import (
    Filter,
    Parameters,
    Placement,
    Terms,
    bell_matrix,
    commitment,
    derive,
    fingerprint,
    hashed_bits,
    native_matrix,
    watermark,
)
from neuralmark.errors import ParameterError
from neuralmark.keys.key import Key

PLACEMENT: Placement = (("a.weight", (30, 7)), ("b.weight", (12,)))


def integer_twin(secret: bytes, terms: Terms) -> list[list[float]]:
    """The derivation as docs/method.md has it: Python integers, one float product per entry."""

    def enc(part: bytes) -> bytes:
        return struct.pack("<Q", len(part)) + part

    def canonical(value: object) -> bytes:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    parameters = terms.parameters
    n, k = parameters.bits, parameters.pools
    header = {
        "bits": n,
        "pools": k,
        "rounds": parameters.rounds,
        "pooling": parameters.pooling,
        "filter": parameters.filter,
        "scheme": "neuralmark",
    }
    transcript = b"neuralmark/key/2" + enc(canonical(header))
    transcript += enc(canonical([[name, list(shape)] for name, shape in terms.placement]))
    transcript += enc(terms.content) + enc(terms.anchor) + secret
    stream = hashlib.shake_256(transcript).digest(8 * n * k)
    draws = [
        [sum(struct.unpack_from("<4H", stream, 8 * (i * n + j))) - 131070 for j in range(n)]
        for i in range(k)
    ]
    columns = [sum(draws[i][j] for i in range(k)) for j in range(n)]
    c = 1.0 / (k * math.sqrt(4 * (65536**2 - 1) / 12))
    return [
        [
            struct.unpack("<f", struct.pack("<f", (k * draws[i][j] - columns[j]) * c))[0]
            for j in range(n)
        ]
        for i in range(k)
    ]


@given(
    secret=st.binary(min_size=32, max_size=32),
    bits=st.integers(1, 40),
    pools=st.integers(1, 12),
    rounds=st.integers(1, 5),
    content=st.binary(max_size=20),
    anchor=st.sampled_from([b"", bytes(range(64))]),
    chosen=st.sampled_from(["stream", "tiled"]),
)
@settings(max_examples=40, deadline=None)
def test_matrix_equals_the_integer_twin(
    secret: bytes, bits: int, pools: int, rounds: int, content: bytes, anchor: bytes, chosen: Filter
) -> None:
    parameters = Parameters(bits, pools, rounds, filter=chosen)
    terms = Terms(parameters, PLACEMENT, content, anchor)
    assert native_matrix(secret, terms).tolist() == integer_twin(secret, terms)


def test_columns_are_centred_and_have_unit_spread() -> None:
    matrix = native_matrix(bytes(32), Terms(Parameters(), PLACEMENT)).astype(np.float64)
    assert abs(matrix.sum(axis=0)).max() < 1e-3
    assert abs(matrix.std() - 1) < 0.01


def test_everything_that_shapes_the_readout_enters_the_derivation() -> None:
    usual = Parameters(64, 16, 2)
    terms = Terms(usual, PLACEMENT, b"x")
    base = derive(bytes(32), terms)
    others = [
        derive(b"\1" + bytes(31), terms),
        derive(bytes(32), replace(terms, parameters=Parameters(64, 16, 3))),
        derive(bytes(32), replace(terms, parameters=replace(usual, filter="tiled"))),
        derive(bytes(32), replace(terms, placement=PLACEMENT[::-1])),
        derive(bytes(32), replace(terms, placement=(("a.weight", (7, 30)), PLACEMENT[1]))),
        derive(bytes(32), replace(terms, content=b"y")),
        derive(bytes(32), replace(terms, anchor=bytes(64))),
    ]
    for other in others:
        assert not np.array_equal(base.matrix, other.matrix)
        assert not np.array_equal(base.bits, other.bits)


def test_watermark_is_shake256_most_significant_bit_first() -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(1, 12)
    digest = hashlib.shake_256(matrix.tobytes() + b"owner").digest(2)
    text = "".join(f"{byte:08b}" for byte in digest)[:12]
    assert "".join(map(str, watermark(matrix, b"owner"))) == text


def test_fingerprint_and_commitment_depend_on_salt_and_body() -> None:
    seen = {
        function(salt, body)
        for function in (fingerprint, commitment)
        for salt in (b"s", b"t")
        for body in ([b"ab", b"c"], [b"a", b"bc"])
    }
    assert len(seen) == 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"bits": 0},
        {"bits": 1 << 17},
        {"pools": -1},
        {"rounds": 65},
        {"rounds": True},
        {"bits": 1.5},
        {"bits": 1 << 13, "pools": 1 << 13},
        {"pooling": "none"},
        {"filter": "none"},
        {"filter": "private"},
        {"filter": "hashed"},
        {"filter": 3},
        {"scheme": "No scheme!"},
        {"own": (("noise", 1.0),)},
    ],
)
def test_parameters_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ParameterError):
        Parameters(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("placement", [(), (("a", (3,)), ("a", (3,)))])
def test_bad_placements_are_refused(placement: Placement) -> None:
    with pytest.raises(ParameterError):
        Terms(Parameters(), placement)


@pytest.mark.parametrize("length", [1, 32, 63, 65])
def test_an_anchor_digest_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ParameterError, match="64 bytes"):
        Terms(Parameters(), PLACEMENT, anchor=bytes(length))


def test_a_mark_shows_nothing_secret() -> None:
    mark = derive(bytes(32), Terms(Parameters(16, 8, 1), PLACEMENT))
    assert repr(mark) == f"Mark({mark.parameters})"


def test_the_usual_parameters() -> None:
    usual = Parameters()
    assert (usual.bits, usual.pools, usual.rounds) == (256, 512, 1)
    assert (usual.pooling, usual.filter, usual.own) == ("strided", "stream", ())
    assert Parameters.of() == usual


def test_what_is_not_given_follows_from_what_is() -> None:
    assert Parameters.of(bits=128) == Parameters(128, 512, 1)
    assert Parameters.of(bits=300) == Parameters(300, 600, 1)
    assert Parameters.of(bits=300, pools=700, rounds=3) == Parameters(300, 700, 3)
    assert Parameters.of(filter="tiled") == Parameters(256, 512, 4, filter="tiled")
    assert Parameters.of(rounds=2, filter="tiled").rounds == 2


@pytest.mark.parametrize(
    ("largest", "beyond"),
    [
        ({"bits": 1 << 16, "pools": 1 << 8}, {"bits": (1 << 16) + 1, "pools": 1}),
        ({"bits": 1 << 8, "pools": 1 << 16}, {"bits": 1, "pools": (1 << 16) + 1}),
        ({"bits": 1 << 12, "pools": 1 << 12}, {"bits": 1 << 12, "pools": (1 << 12) + 1}),
        ({"rounds": 64}, {"rounds": 65}),
    ],
)
def test_the_largest_parameters(largest: dict[str, int], beyond: dict[str, int]) -> None:
    assert Parameters.from_dict(Parameters(**largest).to_dict()) == Parameters(**largest)  # type: ignore[arg-type]
    with pytest.raises(ParameterError):
        Parameters(**beyond)  # type: ignore[arg-type]


@pytest.mark.parametrize("zero", ["pools", "rounds"])
def test_only_other_schemes_leave_pools_or_rounds_to_the_tensors(zero: str) -> None:
    other = Parameters(scheme="other", **{zero: 0})  # type: ignore[arg-type]
    assert getattr(other, zero) == 0
    assert getattr(Parameters(**{zero: 1}), zero) == 1  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=zero):
        Parameters(**{zero: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("chosen", ["stream", "tiled", "private", "none"])
def test_other_schemes_may_have_any_filter(chosen: Filter) -> None:
    assert Parameters(scheme="other", filter=chosen).filter == chosen
    with pytest.raises(ParameterError):
        Parameters(scheme="other", filter=f"{chosen}-not")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "own",
    [
        (("noise", 0.5), ("steps", -3), ("way", "w" * 64)),
        (("a" * 32, 1),),
        tuple((f"setting_{letter}", 1) for letter in "abcdefghijklmnop"),
    ],
)
def test_settings_of_a_scheme_come_back(own: tuple[tuple[str, int | float | str], ...]) -> None:
    parameters = Parameters(scheme="other", own=own)
    assert Parameters.from_dict(parameters.to_dict()) == parameters
    assert all(parameters.setting(name) == value for name, value in own)


@pytest.mark.parametrize(
    "own",
    [
        (("way", "w" * 65),),
        (("a" * 33, 1),),
        (("Noise", 1),),
        ((3, 1),),
        (("bits", 1),),
        (("filter", "x"),),
        (("noise", True),),
        (("noise", None),),
        (("noise", math.nan),),
        (("noise", math.inf),),
        tuple((f"setting_{letter}", 1) for letter in "abcdefghijklmnopq"),
    ],
)
def test_settings_that_are_no_number_or_short_word_are_refused(
    own: tuple[tuple[str, int | float | str], ...],
) -> None:
    with pytest.raises(ParameterError):
        Parameters(scheme="other", own=own)


@pytest.mark.parametrize("missing", ["bits", "pools", "rounds", "pooling", "scheme", "filter"])
def test_parameters_that_lack_a_part_are_not_filled_in(missing: str) -> None:
    table = Parameters().to_dict()
    del table[missing]
    with pytest.raises(ParameterError, match=f"{missing!r} is missing"):
        Parameters.from_dict(table)
    for no_table in (MappingProxyType(Parameters().to_dict()), [("bits", 256)]):
        with pytest.raises(ParameterError, match="not a table"):
            Parameters.from_dict(no_table)  # type: ignore[arg-type]


def test_the_tensor_that_is_listed_twice_is_named() -> None:
    with pytest.raises(ParameterError, match=r"b\.weight"):
        Terms(Parameters(), (("a.weight", (3,)), ("b.weight", (3,)), ("b.weight", (4,))))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_secret_has_32_bytes(length: int) -> None:
    with pytest.raises(ParameterError, match="32 bytes"):
        derive(bytes(length), Terms(Parameters(), PLACEMENT))


def test_names_of_keys_never_change() -> None:
    """They stand in claims and registers; computed here with nothing but a hash."""

    def hashed(domain: bytes, size: int) -> str:
        parts = b"".join(struct.pack("<Q", len(part)) + part for part in (b"salt", b"one", b"two"))
        return hashlib.shake_256(domain + parts).hexdigest(size)

    body = [b"one", b"two"]
    assert fingerprint(b"salt", body) == "nm1-" + hashed(b"neuralmark/fingerprint/1", 20)
    assert commitment(b"salt", body) == hashed(b"neuralmark/commitment/1", 32)


def test_other_schemes_draw_numbers_of_deviation_one_around_zero() -> None:
    matrix = bell_matrix(b"seed", 200, 300)
    stream = hashlib.shake_256(b"seed").digest(8 * 200 * 300)
    last = sum(struct.unpack_from("<4H", stream, 8 * (200 * 300 - 1))) - 131070
    assert matrix[-1, -1] == np.float32(last / math.sqrt(4 * (65536**2 - 1) / 12))
    assert abs(matrix.mean()) < 0.02
    assert matrix.std() == pytest.approx(1, abs=0.02)


def test_what_is_bound_may_be_64_kib_long() -> None:
    limit = 1 << 16
    assert Key(Parameters(), bytes(limit), secret=bytes(32), salt=bytes(32)).content == bytes(limit)
    with pytest.raises(ParameterError, match="content"):
        Key(Parameters(), bytes(limit + 1), secret=bytes(32), salt=bytes(32))


def test_a_transcript_without_a_secret_is_its_beginning() -> None:
    terms = Terms(Parameters(), PLACEMENT, b"content")
    assert terms.transcript(b"domain", b"secret") == terms.transcript(b"domain") + b"secret"


def test_triggers_are_told_only_where_there_are_some() -> None:
    placement = (("a.weight", (4, 5)),)
    plain = Terms(Parameters(8, 16), placement, b"content", b"a" * 64)
    bound = Terms(Parameters(8, 16), placement, b"content", b"a" * 64, b"t" * 64)
    before, after = plain.transcript(b"domain", b"secret"), bound.transcript(b"domain", b"secret")
    assert after == before.removesuffix(b"secret") + enc(b"t" * 64) + b"secret"


@pytest.mark.parametrize("bits", [1, 7, 8, 9, 13, 64])
def test_hashed_bits_are_the_first_of_the_stream(bits: int) -> None:
    stream = hashlib.shake_256(b"seed").digest(9)
    expected = [(stream[i // 8] >> (7 - i % 8)) & 1 for i in range(bits)]
    assert hashed_bits(b"seed", bits).tolist() == expected


def test_a_setting_that_a_scheme_does_not_have_is_refused() -> None:
    with pytest.raises(ParameterError, match="neuralmark has no setting 'votes'"):
        Parameters(8, 16).setting("votes")
