"""Keys and the encrypted file that holds one (docs/formats.md)."""

import hashlib
import secrets
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neuralmark import schemes
from neuralmark.core import key as core
from neuralmark.core.encoding import canonical_json, enc, strict_json
from neuralmark.core.key import (
    MAX_CONTENT,
    SECRET_BYTES,
    TILED,
    Filter,
    KeyKind,
    Mark,
    Parameters,
    Placement,
    Pooling,
    Terms,
)
from neuralmark.core.subkeys import BUYER, Purpose, plain_label, sub_secret
from neuralmark.errors import KeyFileError, NonFiniteError, ParameterError, UnknownSchemeError
from neuralmark.keys.sealing import (
    ENCRYPTED,
    FORMAT,
    VERSION,
    b64,
    cipher_of,
    decrypt,
    read_container,
    unb64,
)
from neuralmark.storage import files

DEFAULT_COST = 16


@dataclass(frozen=True, eq=False)
class Key:
    """A secret that can mark models and prove the mark. Immutable; say `Key.new()` or `Key.load()`.

    A native key holds 32 random bytes. A raw key holds a matrix made elsewhere; what it matches is
    never called verified, because a matrix can be fitted to a model.

    Attributes:
        parameters: What shapes the read-out of its marks.
        content: What is bound into every mark, such as the owner's name.
        salt: Random bytes that hide the key in its fingerprint and its commitment.
        secret: The 32 bytes of a native key; None for a raw one.
        matrix: The matrix of a raw key; None for a native one.
        more: What else the maker of a raw key chose (not for neuralmark), bits or a filter.

    Examples:
        >>> key = neuralmark.Key.new(owner="Acme")
        >>> key.kind, key.parameters.bits
        ('native', 256)
    """

    parameters: Parameters
    content: bytes = b""
    salt: bytes = field(default=b"", repr=False)
    secret: bytes | None = field(default=None, repr=False)
    matrix: npt.NDArray[np.float32] | None = field(default=None, repr=False)
    more: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse a key that is neither native nor raw, or beyond the caps."""
        if (self.secret is None) == (self.matrix is None):
            raise ParameterError("a key has either a secret or a matrix")
        if not isinstance(self.parameters, Parameters):
            raise ParameterError(
                "parameters come from neuralmark.schemes.get(...).parameters(...), not"
                f" {type(self.parameters).__name__}; to name the owner, give owner=..."
            )
        schemes.get(self.parameters.scheme).check(self.parameters)
        if len(self.content) > MAX_CONTENT:
            raise ParameterError(f"content is limited to {MAX_CONTENT:,} bytes")
        if self.secret is not None and self.parameters.pooling != "strided":
            raise ParameterError("contiguous pooling is for raw keys only")
        if self.matrix is not None and not np.isfinite(self.matrix).all():
            raise NonFiniteError("the key matrix holds NaN or infinity")
        if self.more:
            _check_more(self.parameters, self.more)
        if self.matrix is not None:
            arrays = {"matrix": self.matrix, **self.more}
            schemes.get(self.parameters.scheme).check_chosen(self.parameters, arrays)

    @classmethod
    def new(
        cls, parameters: Parameters | None = None, *, owner: str = "", content: str = ""
    ) -> "Key":
        """Draw a fresh native key; owner and content are bound into every mark it makes.

        Args:
            parameters: What shapes the read-out; by default 256 bits in 512 pools.
            owner: The owner's name, one line.
            content: Any other text to bind.

        Returns:
            A key that nobody has had before.

        Raises:
            ParameterError: The parameters do not fit their scheme, or the texts are unusable.

        Examples:
            >>> neuralmark.Key.new(owner="Acme").content
            b'owner=Acme'
        """
        return cls(
            parameters or Parameters(),
            content_bytes(owner, content),
            salt=secrets.token_bytes(32),
            secret=secrets.token_bytes(SECRET_BYTES),
        )

    @classmethod
    def raw(
        cls,
        matrix: npt.NDArray[np.float32],
        rounds: int,
        pooling: Pooling,
        content: bytes = b"",
        filter: Filter = TILED,  # noqa: A002 - the name it has everywhere
    ) -> "Key":
        """Wrap a float32 matrix (pools x bits) made elsewhere; others use the published filter.

        Args:
            matrix: The matrix K, of which the watermark is the hash.
            rounds: How many times the filter is applied.
            pooling: How carriers are pooled, `strided` or `contiguous`.
            content: What was hashed together with the matrix.
            filter: How carriers are chosen, `tiled` or `stream`.

        Returns:
            A raw key, which can match but never proves anything.

        Raises:
            ParameterError: The matrix is not one of float32, or a value is out of range.
            NonFiniteError: The matrix holds NaN or infinity.

        Examples:
            >>> import numpy as np
            >>> matrix = np.random.default_rng(0).standard_normal((64, 32)).astype("float32")
            >>> neuralmark.Key.raw(matrix, rounds=4, pooling="strided").kind
            'raw'
        """
        if matrix.ndim != 2 or matrix.dtype != np.dtype("<f4"):
            raise ParameterError(f"K must be a float32 matrix, not {matrix.dtype} {matrix.shape}")
        pools, bits = matrix.shape
        parameters = Parameters(int(bits), int(pools), rounds, pooling, filter=filter)
        return cls(parameters, content, salt=secrets.token_bytes(32), matrix=matrix)

    @classmethod
    def chosen(
        cls,
        parameters: Parameters,
        matrix: npt.NDArray[np.float32],
        *,
        bits: npt.NDArray[np.uint8] | None = None,
        positions: npt.NDArray[np.int64] | None = None,
        content: bytes = b"",
    ) -> "Key":
        """A raw key of any scheme, everything in it chosen freely.

        Such a key can match, but never proves anything. NeuralMark's bits are always the hash of
        the matrix; other schemes take `bits`, or that hash where none are given.

        Args:
            parameters: What shapes the read-out, and the scheme.
            matrix: The matrix K (pools x bits).
            bits: The watermark, zeros and ones.
            positions: A private filter, as the positions of the carriers.
            content: What was hashed together with the matrix.

        Returns:
            The raw key.

        Raises:
            ParameterError: The parts do not fit each other or the scheme.
            NonFiniteError: The matrix holds NaN or infinity.

        Examples:
            >>> import numpy as np
            >>> chosen = neuralmark.schemes.parameters("vanillamark", bits=8)
            >>> ones = np.ones(8, "uint8")
            >>> neuralmark.Key.chosen(chosen, np.ones((4, 8), "float32"), bits=ones).kind
            'raw'
        """
        matrix = np.ascontiguousarray(matrix, "<f4")
        more: dict[str, npt.NDArray[Any]] = {}
        if parameters.scheme != "neuralmark":
            own = core.watermark(matrix, content) if bits is None else bits
            more["bits"] = np.asarray(own, np.uint8)
        if positions is not None:
            more["filter"] = np.asarray(positions, np.int64)
        salt = secrets.token_bytes(32)
        return cls(parameters, content, salt=salt, matrix=matrix, more=more)

    def sub(
        self, label: str, purpose: Purpose = BUYER, parameters: Parameters | None = None
    ) -> "Key":
        """The key of one buyer or of one dispute, which follows from this one and a label.

        It is a key like any other, and has its own marks. Whoever holds it learns nothing of this
        key or of its other sub-keys.

        Args:
            label: Whose it is; case, accents' encoding and extra blanks make no difference.
            purpose: What it is for, `buyer` or `dispute`.
            parameters: What shapes the read-out of its marks; by default as of this key. Buyers'
                copies have more pools: see `neuralmark.buyer_key`.

        Returns:
            The sub-key, the same for the same label; its content names the label.

        Raises:
            ParameterError: The label is empty, too long or holds a control character, or this key
                is raw.

        Examples:
            >>> key.sub("Acme Ltd.").fingerprint == key.sub(" ACME ltd. ").fingerprint
            True
            >>> key.sub("Acme Ltd.").content
            b'buyer=acme ltd.'
        """
        if self.secret is None:
            raise ParameterError(
                "a raw key has no secret, and sub-keys are derived from one: make a key with"
                " 'neuralmark key new'"
            )
        secret, salt = sub_secret(self.secret, purpose, label)
        line = f"{purpose}={plain_label(label)}".encode()
        content = self.content + b"\n" + line if self.content else line
        return Key(parameters or self.parameters, content, salt=salt, secret=secret)

    @property
    def kind(self) -> KeyKind:
        """`native` or `raw`."""
        return "native" if self.secret is not None else "raw"

    def at(self, placement: Placement, anchor: bytes = b"", triggers: bytes = b"") -> Mark:
        """The mark this key makes at a placement (for a raw key the same everywhere).

        Args:
            placement: The marked tensors in order, a canonical name and a shape each.
            anchor: The digest of the coarse copy that the mark is bound to, if there is one.
            triggers: The digest of the triggers, for schemes that read activations.

        Returns:
            The matrix and the bits of the mark, both secret.

        Raises:
            ParameterError: The placement is empty or names a tensor twice.
            LiveModelError: The scheme reads activations, and no triggers are given.

        Examples:
            >>> mark = key.at((("layer1.weight", (128, 128)),))
            >>> mark.matrix.shape, len(mark.bits)
            ((320, 160), 160)
        """
        scheme = schemes.get(self.parameters.scheme)
        terms = Terms(self.parameters, placement, self.content, anchor, triggers)
        if self.secret is not None:
            return scheme.derive(self.secret, terms)
        assert self.matrix is not None
        return scheme.chosen({"matrix": self.matrix, **self.more}, terms)

    def noise(self, placement: Placement, anchor: bytes = b"") -> int:
        """Seed of the dithering when this key's mark is written at a placement; secret.

        Args:
            placement: The marked tensors in order, a canonical name and a shape each.
            anchor: The digest of the coarse copy that the mark is bound to, if there is one.

        Returns:
            A number below 2^128.

        Examples:
            >>> here = (("layer1.weight", (128, 128)),)
            >>> key.noise(here) == key.noise(here)
            True
            >>> key.noise(here) == key.noise(here, bytes(64))
            False
        """
        terms = Terms(self.parameters, placement, self.content, anchor)
        seed = terms.transcript(b"neuralmark/dither/2", self.secret or b"")
        return int.from_bytes(hashlib.shake_256(seed).digest(16), "little")

    def anchor_key(self, nonce: bytes) -> bytes:
        """The key that an anchor's file is sealed under; secret.

        Args:
            nonce: The random bytes of that file: no two files have the same key.

        Returns:
            32 bytes, for AES-256.

        Raises:
            ParameterError: The key is raw: it has no secret to derive anything from.

        Examples:
            >>> len(key.anchor_key(bytes(32)))
            32
            >>> key.anchor_key(bytes(32)) == key.anchor_key(bytes(31) + b"1")
            False
        """
        if self.secret is None:
            raise ParameterError(
                "a raw key has no secret, and an anchor is sealed under one: make a key with"
                " 'neuralmark key new'"
            )
        seed = b"neuralmark/anchor-file/1" + enc(nonce) + self.secret
        return hashlib.shake_256(seed).digest(32)

    @cached_property
    def fingerprint(self) -> str:
        """Public name of the key; reveals nothing of it."""
        return core.fingerprint(self.salt, self._body())

    @cached_property
    def commitment(self) -> str:
        """Hiding commitment to the key, for registration; reveals nothing of it."""
        return core.commitment(self.salt, self._body())

    def save(
        self,
        path: str | Path,
        passphrase: str | None,
        *,
        overwrite: bool = False,
        cost: int = DEFAULT_COST,
    ) -> None:
        """Write the key file, readable by its owner only (mode 0600).

        Args:
            path: Where to write it.
            passphrase: What it is encrypted with; None stores the secret plainly.
            overwrite: Whether a file that is there already may be replaced.
            cost: How costly each guess of the passphrase is, as a power of two (scrypt's N).

        Raises:
            OutputError: The file exists already or cannot be written.

        Examples:
            >>> key.save("acme.nmkey", "correct horse battery staple")
            >>> neuralmark.Key.load("acme.nmkey", "correct horse battery staple").kind
            'native'
        """
        public: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "commitment": self.commitment,
        }
        payload = self._payload()
        if passphrase is None:
            public["protection"] = {"method": "none"}
        else:
            protection: dict[str, Any] = {
                "method": ENCRYPTED,
                **{"log2_n": cost, "r": 8, "p": 1},
                "salt": b64(secrets.token_bytes(16)),
                "nonce": b64(secrets.token_bytes(12)),
            }
            public["protection"] = protection
            payload = cipher_of(protection, passphrase).encrypt(
                unb64(protection["nonce"], 12), payload, canonical_json(public)
            )
        text = canonical_json({**public, "payload": b64(payload)}).decode() + "\n"
        files.write_text(Path(path), text, overwrite=overwrite, mode=0o600)

    @classmethod
    def load(cls, path: str | Path, passphrase: str | None = None) -> "Key":
        """Read a key file.

        Args:
            path: The key file.
            passphrase: Its passphrase; without, NEURALMARK_PASSPHRASE is used if one is needed.

        Returns:
            The key in it.

        Raises:
            KeyFileError: It is not a key file, or it was damaged or edited.
            WrongPassphraseError: The passphrase does not open it.
            PassphraseError: One is needed and none is given.

        Examples:
            >>> key.save("plain.nmkey", None)
            >>> neuralmark.Key.load("plain.nmkey").fingerprint == key.fingerprint
            True
        """
        container = read_container(path)
        try:
            payload = unb64(container["payload"])
            protection = container["protection"]
            if protection["method"] != "none":
                payload = decrypt(path, container, payload, passphrase)
            key = _from_payload(payload)
        except (ParameterError, NonFiniteError, UnknownSchemeError) as error:
            raise KeyFileError(f"{path}: {str(error)[:200]}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise KeyFileError(f"{path}: the key file is damaged") from None
        public = (container["fingerprint"], container["commitment"])
        if (key.fingerprint, key.commitment) != public:
            raise KeyFileError(f"{path}: the key file was edited: its fingerprint does not fit")
        return key

    def _body(self) -> list[bytes]:
        material = self.secret if self.matrix is None else _matrix_bytes(self.matrix)
        parameters = canonical_json(self.parameters.to_dict())
        more = [_array_bytes(name, self.more[name]) for name in sorted(self.more)]
        return [self.kind.encode(), parameters, self.content, material or b"", *more]

    def _payload(self) -> bytes:
        head: dict[str, Any] = {
            "kind": self.kind,
            "parameters": self.parameters.to_dict(),
            "content": b64(self.content),
            "salt": b64(self.salt),
        }
        if self.secret is not None:
            head["secret"] = b64(self.secret)
        if self.more:
            head["pools"] = len(self.matrix) if self.matrix is not None else 0
            head["more"] = {name: len(self.more[name]) for name in self.more}
        matrix = b"" if self.matrix is None else _matrix_bytes(self.matrix)
        more = b"".join(_array_bytes(name, self.more[name]) for name in sorted(self.more))
        return enc(canonical_json(head)) + matrix + more


def content_bytes(owner: str = "", content: str = "") -> bytes:
    """The bytes bound into a mark: `owner=NAME`, a line break, and free text; both optional."""
    if any(unicodedata.category(char) == "Cc" for char in owner):
        raise ParameterError("the owner's name must be one line of plain text")
    lines = ([f"owner={owner}"] if owner else []) + ([content] if content else [])
    try:
        return "\n".join(lines).encode("utf-8")
    except UnicodeEncodeError:
        raise ParameterError("the owner and the content must be valid Unicode text") from None


def _from_payload(payload: bytes) -> Key:
    length = int.from_bytes(payload[:8], "little")
    if length > len(payload) - 8:
        raise ValueError("the payload is cut off")
    head, rest = strict_json(payload[8 : 8 + length]), payload[8 + length :]
    parameters = Parameters.from_dict(head["parameters"])
    content, salt = unb64(head["content"]), unb64(head["salt"], 32)
    if head["kind"] == "native" and not rest:
        secret = unb64(head["secret"], SECRET_BYTES)
        return Key(parameters, content, salt=salt, secret=secret)
    if head["kind"] == "raw" and "more" in head:
        return _raw_of_any(head, rest, parameters, content)
    if head["kind"] == "raw" and len(rest) == 4 * parameters.bits * parameters.pools:
        matrix = np.frombuffer(rest, "<f4").reshape(parameters.pools, parameters.bits)
        return Key(parameters, content, salt=salt, matrix=matrix)
    raise ValueError("neither a native nor a raw key")


_MORE = {"bits": "u1", "filter": "<i8"}


def _raw_of_any(head: dict[str, Any], rest: bytes, parameters: Parameters, content: bytes) -> Key:
    """A raw key of a scheme whose maker chooses more than the matrix."""
    pools, lengths = head["pools"], head["more"]
    if type(pools) is not int or not 0 <= 4 * pools * parameters.bits <= len(rest):
        raise ValueError("the matrix is cut off")
    at = 4 * pools * parameters.bits
    matrix = np.frombuffer(rest[:at], "<f4").reshape(pools, parameters.bits)
    more = {}
    for name in sorted(lengths):
        dtype, length = np.dtype(_MORE[name]), lengths[name]
        if type(length) is not int or not 0 <= length * dtype.itemsize <= len(rest) - at:
            raise ValueError("an array is cut off")
        more[name] = np.frombuffer(rest, dtype, length, at)
        at += length * dtype.itemsize
    if at != len(rest):
        raise ValueError("more bytes than arrays")
    return Key(parameters, content, salt=unb64(head["salt"], 32), matrix=matrix, more=more)


def _check_more(parameters: Parameters, more: Mapping[str, npt.NDArray[Any]]) -> None:
    if parameters.scheme == "neuralmark" or set(more) - set(_MORE) or "bits" not in more:
        raise ParameterError(f"a raw key of {parameters.scheme} does not hold {sorted(more)}")


def _array_bytes(name: str, array: npt.NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array, _MORE[name]).tobytes()


def _matrix_bytes(matrix: npt.NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(matrix, "<f4").tobytes()


def checked_key(key: Any) -> Key:
    """The key; what is none, such as the path of one, is refused.

    >>> checked_key("acme.nmkey")
    Traceback (most recent call last):
    neuralmark.errors.ParameterError: expected a Key, not str: use Key.load(FILE)
    """
    if not isinstance(key, Key):
        raise ParameterError(f"expected a Key, not {type(key).__name__}: use Key.load(FILE)")
    return key
