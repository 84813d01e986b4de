"""Secrets that follow from a secret and a label: one for each buyer or dispute.

HKDF (RFC 5869) with SHA-256, so whoever has one of them learns nothing of the others or of the
secret that they come from. docs/method.md, section 5.
"""

import hashlib
import hmac
import unicodedata
from typing import Final, Literal, get_args

from neuralmark.core.encoding import enc
from neuralmark.core.key import SECRET_BYTES, check_secret
from neuralmark.errors import ParameterError

Purpose = Literal["buyer", "dispute"]
"""What a sub-key is for: a copy that is sold, or a mark that is shown to a judge one day."""
BUYER: Final = "buyer"
DISPUTE: Final = "dispute"
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)

MAX_LABEL = 200
SALT_BYTES = 32
_DOMAIN = b"neuralmark/sub-key/1"
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Characters that are not seen, or that mean nothing to others: categories of Unicode."""


def hkdf(secret: bytes, info: bytes, length: int, salt: bytes = b"") -> bytes:
    """RFC 5869: extract a key from a secret, expand it to `length` bytes for one use.

    >>> hkdf(bytes(32), b"use", 64)[:4] == hkdf(bytes(32), b"use", 4)
    True
    """
    extracted = hmac.digest(salt or bytes(hashlib.sha256().digest_size), secret, "sha256")
    expanded, block = b"", b""
    while len(expanded) < length:
        counter = len(expanded) // hashlib.sha256().digest_size + 1
        block = hmac.digest(extracted, block + info + bytes([counter]), "sha256")
        expanded += block
    return expanded[:length]


def plain_label(label: str) -> str:
    """A label without what people do not see: case, width, accents' encoding, extra blanks.

    >>> plain_label("  ACME   Ltd. ") == plain_label("acme ltd.")
    True
    """
    shown = label.strip() if isinstance(label, str) else ""
    if not shown:
        raise ParameterError("a label must be a text, and not empty")
    if len(shown) > MAX_LABEL:
        raise ParameterError(f"a label has at most {MAX_LABEL} characters, not {len(shown)}")
    hidden = next((c for c in shown if unicodedata.category(c) in _HIDDEN), None)
    if hidden is not None:
        raise ParameterError(
            f"the label {shown[:60]!r} holds a control or invisible character"
            f" (U+{ord(hidden):04X}): take it out"
        )
    folded = unicodedata.normalize("NFKC", shown).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def sub_secret(secret: bytes, purpose: Purpose, label: str) -> tuple[bytes, bytes]:
    """The secret of a sub-key, and the salt that hides it in its fingerprint."""
    check_secret(secret)
    if purpose not in PURPOSES:
        raise ParameterError(f"purpose must be one of {', '.join(PURPOSES)}, not {purpose!r:.60}")
    info = _DOMAIN + enc(purpose.encode()) + enc(plain_label(label).encode())
    both = hkdf(secret, info, SECRET_BYTES + SALT_BYTES)
    return both[:SECRET_BYTES], both[SECRET_BYTES:]
