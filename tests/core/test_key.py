"""Key derivation against a twin in Python integers."""

import hashlib
import json
import math
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralmark.core.key import (
    Filter,
    Parameters,
    Placement,
    Terms,
    commitment,
    derive,
    fingerprint,
    native_matrix,
    watermark,
)
from neuralmark.errors import ParameterError

PLACEMENT: Placement = (("a.weight", (30, 7)), ("b.weight", (12,)))


def integer_twin(secret: bytes, terms: Terms) -> list[list[float]]:
    """The derivation in METHOD's words: Python integers, one float multiplication an entry."""

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
