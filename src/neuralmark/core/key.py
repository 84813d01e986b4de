"""From a secret to the key matrix K and the watermark b (docs/method.md, sections 1 and 2).

A native key chooses nothing: K is derived from 32 secret bytes and from everything that shapes
the read-out (parameters, placement, content, anchor), so every try is a fresh draw of fair coins.
"""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from neuralmark.core.encoding import canonical_json, enc
from neuralmark.errors import ParameterError

Float = npt.NDArray[np.float64]
Placement = tuple[tuple[str, tuple[int, ...]], ...]
"""The ordered list of marked tensors: (canonical name, shape) each."""

KeyKind = Literal["native", "raw"]
KEY_KINDS: tuple[KeyKind, ...] = get_args(KeyKind)
"""Drawn here, or made elsewhere: only the first bound what luck can do."""

Pooling = Literal["strided", "contiguous"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

Filter = Literal["stream", "tiled", "private", "none"]
STREAM: Final = "stream"
TILED: Final = "tiled"
PRIVATE: Final = "private"
NONE: Final = "none"
FILTERS: tuple[Filter, ...] = get_args(Filter)
"""How carriers are chosen: by a keystream grown from b, by b laid over the weights again and again
(as published; it shows itself in trained marks), by a secret pattern, or not at all."""
DIGEST_BYTES = 64
"""Of an anchor, and of triggers."""
SECRET_BYTES = 32
MAX_BITS = MAX_POOLS = 1 << 16
MAX_ENTRIES = 1 << 24
MAX_ROUNDS = 64
MAX_CONTENT = 1 << 16

PUBLISHED_ROUNDS = 4

SPREAD = math.sqrt(4 * (65536**2 - 1) / 12)
"""Deviation of a sum of four 16-bit words."""


Own = tuple[tuple[str, "int | float | str"], ...]
"""Settings that only one scheme has, by name, sorted."""

_SCHEME = re.compile("[a-z][a-z0-9_-]{0,63}")
_OWN = re.compile("[a-z][a-z_]{0,31}")
_MAX_OWN = 16


@dataclass(frozen=True)
class Parameters:
    """What shapes a read-out: n bits, k pools, R rounds of the filter, how carriers are pooled.

    Schemes other than neuralmark may leave pools or rounds at 0 (as the tensors give, no filter)
    and have settings of their own; `neuralmark.schemes.parameters` fills them in and checks them.

    Attributes:
        bits: Length of the watermark.
        pools: How many groups the carriers are averaged in.
        rounds: How many times the filter is applied; each halves the carriers.
        pooling: How carriers are pooled, `strided` or `contiguous`.
        scheme: Name of the watermarking scheme.
        filter: How carriers are chosen, `stream`, `tiled`, `private` or `none`.
        own: Settings that only this scheme has, by name, sorted.

    Raises:
        ParameterError: A value is out of range.

    Examples:
        >>> Parameters(bits=160, pools=320).rounds
        1
        >>> Parameters(bits=0)
        Traceback (most recent call last):
        neuralmark.errors.ParameterError: bits must be between 1 and 65536, not 0
    """

    bits: int = 256
    pools: int = 512
    rounds: int = 1
    pooling: Pooling = "strided"
    scheme: str = "neuralmark"
    filter: Filter = STREAM
    own: Own = ()

    def __post_init__(self) -> None:
        """Refuse what is out of range before anything is allocated."""
        least = int(self.scheme == "neuralmark")
        _within("bits", self.bits, 1, MAX_BITS)
        _within("pools", self.pools, least, MAX_POOLS)
        _within("rounds", self.rounds, least, MAX_ROUNDS)
        if self.bits * self.pools > MAX_ENTRIES:
            raise ParameterError(
                f"bits x pools is {self.bits * self.pools:,}, above the cap of {MAX_ENTRIES:,}:"
                " use fewer bits or pools"
            )
        if self.pooling not in POOLINGS:
            raise ParameterError(f"pooling must be one of {POOLINGS}, not {self.pooling!r}")
        if not isinstance(self.scheme, str) or not _SCHEME.fullmatch(self.scheme):
            raise ParameterError(f"{str(self.scheme)[:80]!r} is not the name of a scheme")
        allowed = FILTERS[:2] if self.scheme == "neuralmark" else FILTERS
        if self.filter not in allowed:
            names = " or ".join(allowed)
            raise ParameterError(f"the filter must be {names}, not {str(self.filter)[:80]!r}")
        _check_own(self)

    @classmethod
    def of(
        cls,
        bits: int | None = None,
        pools: int | None = None,
        rounds: int | None = None,
        filter: Filter = STREAM,  # noqa: A002 - the name it has everywhere
    ) -> "Parameters":
        """Fill in what is not given.

        Args:
            bits: Length of the watermark; 256 by default.
            pools: How many groups the carriers are averaged in; by default twice the bits, but at
                least 512.
            rounds: How many times the filter is applied; once by default, four times if `tiled`.
            filter: How carriers are chosen, `stream` or `tiled`.

        Returns:
            The parameters.

        Raises:
            ParameterError: A value is out of range.

        Examples:
            >>> Parameters.of(bits=512).pools
            1024
            >>> Parameters.of(filter="tiled").rounds
            4
        """
        bits = 256 if bits is None else bits
        pools = max(512, 2 * bits) if pools is None else pools
        usual = PUBLISHED_ROUNDS if filter == TILED else 1
        return cls(bits, pools, usual if rounds is None else rounds, filter=filter)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Parameters":
        """Read back what `to_dict` gave.

        Args:
            data: Values by name.

        Returns:
            The parameters.

        Raises:
            ParameterError: A part is missing or out of range.

        Examples:
            >>> Parameters.from_dict(Parameters(bits=160).to_dict()).bits
            160
        """
        if not isinstance(data, dict):
            raise ParameterError("the parameters are not a table")
        if missing := [name for name in _COMMON if name not in data]:
            raise ParameterError(f"{missing[0]!r} is missing")
        common = {name: data[name] for name in _COMMON}
        own = tuple(sorted((name, data[name]) for name in set(data) - set(_COMMON)))
        return cls(**common, own=own)

    def to_dict(self) -> dict[str, int | float | str]:
        """As it stands in key files, claims, verdicts and in the derivation.

        Returns:
            Plain values, by name.

        Examples:
            >>> Parameters(bits=160).to_dict()["filter"]
            'stream'
        """
        return {
            "bits": self.bits,
            "filter": self.filter,
            "pooling": self.pooling,
            "pools": self.pools,
            "rounds": self.rounds,
            "scheme": self.scheme,
            **dict(self.own),
        }

    def setting(self, name: str) -> Any:
        """One of the scheme's own settings.

        Args:
            name: What it is called.

        Returns:
            Its value.

        Raises:
            ParameterError: The scheme has no such setting.

        Examples:
            >>> neuralmark.schemes.parameters("votemark").setting("votes")
            11
        """
        own = dict(self.own)
        if name not in own:
            raise ParameterError(f"{self.scheme} has no setting {name!r}")
        return own[name]


_COMMON = ("bits", "filter", "pooling", "pools", "rounds", "scheme")


def _check_own(parameters: Parameters) -> None:
    own = parameters.own
    if own and parameters.scheme == "neuralmark":
        raise ParameterError(f"the scheme neuralmark has no setting {own[0][0]!r}")
    if len(own) > _MAX_OWN:
        raise ParameterError("too many settings for one scheme")
    for name, value in own:
        if not isinstance(name, str) or not _OWN.fullmatch(name) or name in _COMMON:
            raise ParameterError(f"{str(name)[:80]!r} is not the name of a setting")
        sound = type(value) is int or (type(value) is float and math.isfinite(value))
        if not sound and not (type(value) is str and len(value) <= 64):
            raise ParameterError(f"the setting {name!r} must be a finite number or a short word")


@dataclass(frozen=True, eq=False)
class Mark:
    """A key at one placement: the matrix K (k x n, float32) and the watermark b (n bits).

    Both are secret; b alone gives all carriers. `extra` holds what only one scheme needs.
    """

    parameters: Parameters
    matrix: npt.NDArray[np.float32]
    bits: npt.NDArray[np.uint8]
    extra: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    @property
    def signs(self) -> Float:
        """+1 where the watermark has a 1, -1 where it has a 0."""
        return self.bits.astype(np.float64) * 2.0 - 1.0

    def __repr__(self) -> str:
        """Say nothing secret."""
        return f"Mark({self.parameters})"


@dataclass(frozen=True)
class Terms:
    """Everything that shapes a read-out, apart from the secret: what a mark is bound to."""

    parameters: Parameters
    placement: Placement
    content: bytes = b""
    anchor: bytes = b""
    """Digest of the anchor (64 bytes), or nothing."""
    triggers: bytes = b""
    """Digest of the triggers (64 bytes) of a scheme that reads activations, or nothing."""

    def __post_init__(self) -> None:
        """Refuse an empty placement, a tensor listed twice and digests of another length."""
        names = [name for name, _ in self.placement]
        if not names:
            raise ParameterError("no tensor to mark: the list is empty")
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ParameterError(f"the tensor {twice!r} is listed twice; name each tensor once")
        for what, digest in (("an anchor", self.anchor), ("triggers", self.triggers)):
            if len(digest) not in (0, DIGEST_BYTES):
                raise ParameterError(
                    f"the digest of {what} has {DIGEST_BYTES} bytes, not {len(digest)}"
                )

    def transcript(self, domain: bytes, secret: bytes = b"") -> bytes:
        """What is hashed to derive anything: all terms, and the secret."""
        return (
            domain
            + enc(canonical_json(self.parameters.to_dict()))
            + enc(canonical_json([[name, list(shape)] for name, shape in self.placement]))
            + enc(self.content)
            + enc(self.anchor)
            + (enc(self.triggers) if self.triggers else b"")
            + secret
        )


def bell_draws(stream_of: bytes, rows: int, columns: int) -> npt.NDArray[np.int64]:
    """Integers symmetric around 0, nearly Gaussian: sums of four 16-bit words of SHAKE-256."""
    stream = hashlib.shake_256(stream_of).digest(8 * rows * columns)
    words = np.frombuffer(stream, "<u2").reshape(rows, columns, 4)
    # Adding the words pairwise in 32 bits is several times faster than sum(axis=-1).
    draws = words[..., 0].astype(np.int64)
    for i in (1, 2, 3):
        draws += words[..., i]
    draws -= 131070
    return draws


def bell_matrix(stream_of: bytes, rows: int, columns: int) -> npt.NDArray[np.float32]:
    """The draws scaled to deviation 1, columns not centred: the secrets of other schemes."""
    matrix: npt.NDArray[np.float32] = (bell_draws(stream_of, rows, columns) * (1 / SPREAD)).astype(
        np.float32
    )
    return matrix


def native_matrix(secret: bytes, terms: Terms) -> npt.NDArray[np.float32]:
    """Derive K, version 2: SHAKE-256, sums of four 16-bit words, columns centred in integers."""
    k, n = terms.parameters.pools, terms.parameters.bits
    draws = bell_draws(terms.transcript(b"neuralmark/key/2", secret), k, n)
    centred = k * draws - draws.sum(axis=0)
    matrix: npt.NDArray[np.float32] = (centred * (1.0 / (k * SPREAD))).astype(np.float32)
    return matrix


def watermark(matrix: npt.NDArray[np.float32], content: bytes) -> npt.NDArray[np.uint8]:
    """First n bits of SHAKE-256 over the bytes of K and the content, most significant first."""
    hashed = hashlib.shake_256(np.ascontiguousarray(matrix, dtype="<f4").tobytes())
    hashed.update(content)
    n = matrix.shape[1]
    packed = np.frombuffer(hashed.digest((n + 7) // 8), np.uint8)
    return np.unpackbits(packed, count=n)


def hashed_bits(seed: bytes, bits: int) -> npt.NDArray[np.uint8]:
    """First bits of SHAKE-256 over a seed, most significant first."""
    packed = np.frombuffer(hashlib.shake_256(seed).digest((bits + 7) // 8), np.uint8)
    return np.unpackbits(packed, count=bits)


def derive(secret: bytes, terms: Terms) -> Mark:
    """A native key's mark under these terms."""
    check_secret(secret)
    matrix = native_matrix(secret, terms)
    return Mark(terms.parameters, matrix, watermark(matrix, terms.content))


def fingerprint(salt: bytes, body: Sequence[bytes]) -> str:
    """Public name of a key; the secret salt makes it tell nothing, even of a weak key."""
    return "nm1-" + _salted(b"neuralmark/fingerprint/1", salt, body, 20)


def commitment(salt: bytes, body: Sequence[bytes]) -> str:
    """Hiding and binding commitment to a key, for registration before release."""
    return _salted(b"neuralmark/commitment/1", salt, body, 32)


def check_secret(secret: bytes) -> None:
    """Refuse a secret of the wrong length."""
    if len(secret) != SECRET_BYTES:
        raise ParameterError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")


def _salted(domain: bytes, salt: bytes, body: Sequence[bytes], size: int) -> str:
    parts = domain + enc(salt) + b"".join(enc(part) for part in body)
    return hashlib.shake_256(parts).hexdigest(size)


def _within(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterError(f"{name} must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise ParameterError(f"{name} must be between {low} and {high}, not {value}")
