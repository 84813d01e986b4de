"""Keys of stdm and feng, derived once more by loops as docs/formats.md has it; known answers."""

import hashlib
import json
import math

import numpy as np
import pytest

from neuralmark import Key, schemes
from neuralmark.core.key import Mark, Placement

SECRET, CONTENT = bytes(range(32)), b"owner=A"
CONV: Placement = (("conv.weight", (24, 8, 3, 3)),)
TWO: Placement = (("a.weight", (40, 60)), ("b.weight", (30, 50)))
TOTAL = 40 * 60 + 30 * 50


def mark_of(scheme: str, placement: Placement, **own: float | str) -> Mark:
    parameters = schemes.parameters(scheme, bits=64, own=own)
    return Key(parameters, CONTENT, salt=bytes(32), secret=SECRET).at(placement)


def stream(domain: str, mark: Mark, placement: Placement, size: int) -> bytes:
    """SHAKE-256 over everything that shapes a read-out, and the secret."""

    def enc(data: bytes) -> bytes:
        return len(data).to_bytes(8, "little") + data

    def canonical(value: object) -> bytes:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    listed = [[name, list(shape)] for name, shape in placement]
    parts = [canonical(mark.parameters.to_dict()), canonical(listed), CONTENT, b""]
    text = domain.encode() + b"".join(map(enc, parts)) + SECRET
    return hashlib.shake_256(text).digest(size)


def bits_of(data: bytes) -> list[int]:
    return [byte >> place & 1 for byte in data for place in range(7, -1, -1)]


@pytest.mark.parametrize("norm", [0.0, 3.0])
def test_stdm(norm: float) -> None:
    mark = mark_of("stdm", CONV, norm=norm)
    assert mark.bits.tolist() == bits_of(stream("neuralmark/stdm/bits/1", mark, CONV, 8))
    words = stream("neuralmark/matrix/2", mark, CONV, 72 * 64 * 8)
    spread = math.sqrt(4 * (65536**2 - 1) / 12)
    drawn = np.zeros((72, 64))
    for place in range(72 * 64):
        four = [words[8 * place + 2 * i : 8 * place + 2 * i + 2] for i in range(4)]
        drawn[divmod(place, 64)] = (
            sum(int.from_bytes(w, "little") for w in four) - 131070
        ) / spread
    if norm:
        drawn = drawn * 3.0 / np.sqrt((drawn**2).sum(0))
    np.testing.assert_allclose(mark.matrix, drawn, rtol=1e-5)


def feng_stream(name: str, mark: Mark, size: int) -> bytes:
    return stream(f"neuralmark/feng/{name}/1", mark, TWO, size)


def test_feng() -> None:
    mark = mark_of("feng", TWO, coefficients=2)
    count = 64 * 16
    assert mark.bits.tolist() == bits_of(feng_stream("bits", mark, 8))

    draws = feng_stream("positions", mark, 16 * count)
    taken: set[int] = set()
    for i, last in enumerate(range(TOTAL - count, TOTAL)):
        drawn = int.from_bytes(draws[16 * i : 16 * i + 16], "little") % (last + 1)
        taken.add(last if drawn in taken else drawn)
    positions = sorted(taken)
    assert mark.extra["filter"].tolist() == positions

    order = feng_stream("order", mark, 8 * count)
    rank = sorted(range(count), key=lambda i: int.from_bytes(order[8 * i : 8 * i + 8], "little"))
    assert mark.extra["blocks"].reshape(-1).tolist() == rank

    noise = feng_stream("noise", mark, count)
    chips = feng_stream("chips", mark, 128)
    keys = feng_stream("coefficients", mark, 8 * count)
    expected = np.zeros((count, 64))
    for j in range(64):
        words = [keys[8 * (16 * j + k) : 8 * (16 * j + k) + 8] for k in range(16)]
        first = sorted(range(16), key=lambda k: int.from_bytes(words[k], "little"))[:2]
        for r, k in enumerate(first):
            for place in range(16):
                wave = math.cos(math.pi * (2 * place + 1) * k / 32) * math.sqrt((1 + (k > 0)) / 16)
                sign = (1 - 2 * (noise[16 * j + place] & 1)) * (1 - 2 * (chips[2 * j + r] & 1))
                expected[rank[16 * j + place], j] += wave * sign * math.sqrt(count / 2)
    np.testing.assert_allclose(mark.matrix, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("scheme", "own", "bits", "first"),
    [
        ("stdm", {}, "41e88d836c6aeee8", [1.5192, -0.3971, 1.2079]),
        ("stdm", {"norm": 3.0}, "546454896293715a", [0.1615, -0.4771, -0.2638]),
        ("feng", {}, "78d8aecce1fa63a8", [8.7456, -11.2592, -7.1773]),
        (
            "feng",
            {"transform": "haar", "coefficients": 2},
            "4968fd66c4830cad",
            [8.7569, 1.8522, -1.6388],
        ),
    ],
)
def test_keys_stay_what_they_are(
    scheme: str, own: dict[str, float | str], bits: str, first: list[float]
) -> None:
    """Marks that are in models today must be read by every later version."""
    mark = mark_of(scheme, CONV if scheme == "stdm" else TWO, **own)
    assert np.packbits(mark.bits).tobytes().hex() == bits
    column = mark.matrix[:, 0]
    np.testing.assert_allclose(column[column != 0][:3], first, atol=1e-3)
