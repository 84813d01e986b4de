"""The container of a key file: what is public of it, and the cipher under the passphrase.

docs/formats.md describes it; `key` puts keys into it.
"""

import base64
import binascii
import os
import re
import unicodedata
from pathlib import Path
from typing import Any

from neuralmark.core.encoding import canonical_json, strict_json
from neuralmark.errors import KeyFileError, PassphraseError, WrongPassphraseError
from neuralmark.storage import files

FORMAT = "neuralmark-key"
VERSION = 2
"""Of key files: 1 was never released."""
PASSPHRASE_VARIABLE = "NEURALMARK_PASSPHRASE"  # noqa: S105 - the name of a variable
ENCRYPTED = "scrypt+chacha20-poly1305"
MAX_FILE = 96 << 20
MAX_MEMBERS = 64
_HEX = {"fingerprint": re.compile("nm1-[0-9a-f]{40}"), "commitment": re.compile("[0-9a-f]{64}")}


def read_container(path: str | Path) -> dict[str, Any]:
    """The public part of a key file, checked for form; needs no passphrase."""
    path = Path(path)
    try:
        data = files.read_small(path, MAX_FILE)
        if len(data) > MAX_FILE:
            raise KeyFileError(f"{path}: is larger than a key file may be ({MAX_FILE:,} bytes)")
        if data.count(b",") > MAX_MEMBERS:  # so that parsing takes no more than the file itself
            raise KeyFileError(f"{path}: not a NeuralMark key file")
        container = strict_json(data)
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise KeyFileError(f"{path}: not a key file, or a truncated one") from None
    if not isinstance(container, dict) or container.get("format") != FORMAT:
        raise KeyFileError(f"{path}: not a NeuralMark key file")
    if type(container.get("version")) is not int or container["version"] != VERSION:
        raise KeyFileError(
            f"{path}: key file version {str(container.get('version'))[:20]!r} is not known;"
            " update neuralmark"
        )
    texts = ("fingerprint", "commitment", "payload")
    protection = container.get("protection")
    if (
        set(container) != {"format", "version", "protection", *texts}
        or not all(isinstance(container[name], str) for name in texts)
        or not all(form.fullmatch(container[name]) for name, form in _HEX.items())
        or not isinstance(protection, dict)
        or protection.get("method") not in ("none", ENCRYPTED)
    ):
        raise KeyFileError(f"{path}: the key file is damaged")
    return container


def is_encrypted(path: str | Path) -> bool:
    """Whether loading this key file takes a passphrase."""
    return bool(read_container(path)["protection"]["method"] != "none")


def decrypt(
    path: str | Path, container: dict[str, Any], payload: bytes, passphrase: str | None
) -> bytes:
    """The payload in the clear; an edited file or a wrong passphrase is an error."""
    from cryptography.exceptions import InvalidTag

    if passphrase is None:
        passphrase = os.environ.get(PASSPHRASE_VARIABLE)
    if passphrase is None:
        raise PassphraseError(
            f"{path} is encrypted: give its passphrase=..., or set {PASSPHRASE_VARIABLE}"
        )
    public = {name: value for name, value in container.items() if name != "payload"}
    protection = container["protection"]
    cipher = cipher_of(protection, passphrase)
    try:
        nonce = unb64(protection["nonce"], 12)
        plain: bytes = cipher.decrypt(nonce, payload, canonical_json(public))
    except InvalidTag:
        raise WrongPassphraseError(f"{path}: wrong passphrase (or the file was edited)") from None
    return plain


def cipher_of(protection: dict[str, Any], passphrase: str) -> Any:
    """The cipher under the passphrase; the cost is capped before any memory is taken."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    log2_n, r, p = protection["log2_n"], protection["r"], protection["p"]
    if not all(type(cost) is int for cost in (log2_n, r, p)):
        raise KeyFileError("the key file's scrypt costs are not numbers")
    within = 10 <= log2_n <= 20 and 1 <= r <= 32 and 1 <= p <= 16 and log2_n < 16 * r
    if not within or 128 * r << log2_n > 1 << 28 or 128 * r * p << log2_n > 1 << 29:
        raise KeyFileError("the key file asks for more work than scrypt is allowed here")
    try:
        secret = unicodedata.normalize("NFC", passphrase).encode("utf-8")
    except UnicodeEncodeError:
        raise PassphraseError("the passphrase is not valid Unicode text") from None
    kdf = Scrypt(salt=unb64(protection["salt"], 16), length=32, n=1 << log2_n, r=r, p=p)
    return ChaCha20Poly1305(kdf.derive(secret))


def b64(data: bytes) -> str:
    """Bytes as base64."""
    return base64.b64encode(data).decode("ascii")


def unb64(text: str, length: int | None = None) -> bytes:
    """Bytes from base64 in its one canonical form, of a given length."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("not base64") from None
    if b64(data) != text or (length is not None and len(data) != length):
        raise ValueError("not the base64 of this many bytes")
    return data
