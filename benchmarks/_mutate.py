"""Mutations of files: blind ones, and ones that know JSON, zip and length fields."""

import base64
import io
import json
import random
import re
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks._corpus import archive

SMALL = (0, 1, 2, 7, 8, 127, 128, 255, 256, 32767, 65535, 65536)
LARGE = (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
NUMBERS = (*SMALL, *LARGE)
BYTES = (0, 1, 0x7F, 0x80, 0xFF, 0x2E, 0x28, 0x29, 0x7B, 0x7D)
NAMES = ("", "a.weight", "K", "bits", "../x.safetensors", "x\0y", "\ud7ff", "é", "A" * 5000)
TERMS = ("F32", "BF16", "F8_E4M3", "I4", "none", "native", "raw", "strided", "contiguous")
WORDS = (*NAMES, *TERMS)

Mutation = Callable[[bytes, random.Random], bytes]


def mutate(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """One to four mutations; now and then a splice with another seed."""
    if rng.random() < 0.02 and b'"log2_n"' in data:
        return scrypt_costs(data, rng)
    if rng.random() < 0.05:
        return splice(data, rng.choice(others), rng)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        choices = [*BLIND]
        if data[:4] == b"PK\x03\x04":
            choices += [zip_member] * 6
        if data[:1] == b"{":
            choices += [whole_json] * 8 + [payload_json] * 3
        elif data[8:9] == b"{":
            choices += [header_json] * 8
        data = rng.choice(choices)(data, rng)
    return data


def flip(data: bytes, rng: random.Random) -> bytes:
    """One to eight bits."""
    if not data:
        return data
    out = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        out[place(len(out), rng)] ^= 1 << rng.randrange(8)
    return bytes(out)


def overwrite(data: bytes, rng: random.Random) -> bytes:
    """A few bytes set to telling values."""
    if not data:
        return data
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        out[place(len(out), rng)] = rng.choice((*BYTES, rng.randrange(256)))
    return bytes(out)


def truncate(data: bytes, rng: random.Random) -> bytes:
    """Cut off the end, or the beginning."""
    at = place(len(data) + 1, rng)
    return data[:at] if rng.random() < 0.8 else data[at:]


def insert(data: bytes, rng: random.Random) -> bytes:
    """Put random bytes, one byte again and again, or a piece of the file somewhere."""
    at, length = place(len(data) + 1, rng), rng.choice((1, 2, 4, 8, 64, 1000))
    start = rng.randrange(len(data) + 1)
    piece = rng.choice(
        (rng.randbytes(length), bytes([rng.choice(BYTES)]) * length, data[start : start + length])
    )
    return data[:at] + piece + data[at:]


def delete(data: bytes, rng: random.Random) -> bytes:
    """Leave out a piece."""
    at = place(len(data) + 1, rng)
    return data[:at] + data[at + rng.choice((1, 2, 4, 8, 64)) :]


def length_field(data: bytes, rng: random.Random) -> bytes:
    """Put a telling number in 1, 2, 4 or 8 little-endian bytes."""
    width = rng.choice((1, 2, 4, 8))
    at = place(max(len(data) - width, 0) + 1, rng)
    number = rng.choice((*NUMBERS, len(data), len(data) - 8, len(data) + 1, rng.getrandbits(64)))
    field = (number % (1 << 8 * width)).to_bytes(width, "little")
    return data[:at] + field + data[at + width :]


def digits(data: bytes, rng: random.Random) -> bytes:
    """Replace a decimal number that stands in the file as text."""
    found = list(re.finditer(rb"-?\d+", data))
    if not found:
        return flip(data, rng)
    match = rng.choice(found)
    number = rng.choice((*NUMBERS, -1, int(match[0][:18] or b"0") + rng.choice((-1, 1)), 10**30))
    return data[: match.start()] + str(number).encode() + data[match.end() :]


def splice(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """The beginning of one file and the end of another."""
    return data[: place(len(data) + 1, rng)] + other[place(len(other) + 1, rng) :]


def zip_member(data: bytes, rng: random.Random) -> bytes:
    """Change a member (content, name, compression) and pack again, checksums and all."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as source:
            members = {i.filename: (source.read(i), i.compress_type) for i in source.infolist()}
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, NotImplementedError, RuntimeError):
        return flip(data, rng)
    except Exception:  # zlib.error, struct.error: whatever a broken archive makes zipfile raise
        return flip(data, rng)
    if not members:
        return data
    name = rng.choice(list(members))
    body, method = members[name]
    what = rng.random()
    if what < 0.75:
        members[name] = (rng.choice(BLIND)(body, rng), method)
    elif what < 0.85:
        members[name] = (body, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    elif what < 0.95:
        del members[name]
    else:
        members[rng.choice((*WORDS, name + "x"))[:200] or "x"] = (body, method)
    try:
        return archive(members)
    except (ValueError, UnicodeError):
        return flip(data, rng)


def whole_json(data: bytes, rng: random.Random) -> bytes:
    """Change a node of a JSON file."""
    try:
        return dump(change(json.loads(data), rng), rng)
    except (ValueError, RecursionError):
        return digits(data, rng)


def header_json(data: bytes, rng: random.Random) -> bytes:
    """Change a node of a safetensors header and set its length right."""
    length = int.from_bytes(data[:8], "little")
    try:
        text = dump(change(json.loads(data[8 : 8 + length]), rng), rng)
    except (ValueError, RecursionError):
        return digits(data, rng)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def payload_json(data: bytes, rng: random.Random) -> bytes:
    """Change a node of the table inside a key file's payload."""
    try:
        outer = json.loads(data)
        payload = base64.b64decode(outer["payload"], validate=True)
        length = int.from_bytes(payload[:8], "little")
        text = dump(change(json.loads(payload[8 : 8 + length]), rng), rng)
    except (ValueError, KeyError, TypeError, RecursionError):
        return whole_json(data, rng)
    changed = len(text).to_bytes(8, "little") + text + payload[8 + length :]
    outer["payload"] = base64.b64encode(changed).decode()
    return json.dumps(outer).encode()


def scrypt_costs(data: bytes, rng: random.Random) -> bytes:
    """Other costs in an encrypted key file, around every limit."""
    try:
        outer = json.loads(data)
        outer["protection"]["log2_n"] = rng.choice((9, 10, 11, 12, 15, 16, 17, 20, 21))
    except (ValueError, KeyError, TypeError, RecursionError):
        return whole_json(data, rng)
    outer["protection"] |= {"r": rng.choice((0, 1, 2, 8, 33)), "p": rng.choice((0, 1, 2, 17))}
    return json.dumps(outer).encode()


def change(value: Any, rng: random.Random) -> Any:
    """The same JSON value with one node changed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        return _changed_table(dict(value), rng)
    if isinstance(value, list) and value and rng.random() < 0.8:
        items = list(value)
        at = rng.randrange(len(items))
        items[at : at + 1] = rng.choice(([], [items[at]] * 2, [change(items[at], rng)]))
        return items
    return node(value, rng)


def _changed_table(table: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    name = rng.choice(list(table))
    what = rng.random()
    if what < 0.7:
        table[name] = change(table[name], rng)
    elif what < 0.8:
        del table[name]
    elif what < 0.9:
        table[rng.choice((*WORDS, name + "x", *table))] = table.pop(name)
    else:
        table[rng.choice(WORDS)] = node(None, rng)
    return table


def node(value: Any, rng: random.Random) -> Any:
    """A telling JSON value in place of this one."""
    near: list[Any] = [None, True, False, [], {}, "", -1, 0.5, 1e308, [[]], {"a": 1}, 10**25]
    near += [rng.choice(NUMBERS), rng.choice(WORDS), rng.choice(WORDS), -rng.choice(NUMBERS)]
    if isinstance(value, int) and not isinstance(value, bool):
        near += [value + 1, value - 1, 2 * value, str(value), float(value)] * 2
    if isinstance(value, str):
        near += [value[:-1], value + "A", value.upper(), value[::-1], [value]] * 2
    return rng.choice(near)


def dump(value: Any, rng: random.Random) -> bytes:
    """JSON text, now and then with what a strict reader must refuse."""
    text = json.dumps(value)
    what = rng.random()
    if what < 0.03 and text[:1] == "{" and len(text) > 2:
        text = "{" + text[1:-1] + "," + text[1:]  # every key twice
    elif what < 0.05:
        text = text.replace("0", "NaN", 1)
    elif what < 0.06:
        text = "[" * 20000 + text
    elif what < 0.08:
        text = text.replace("1", "1" * rng.choice((30, 5000)), 1)
    return text.encode("utf-8", "surrogatepass")


def place(size: int, rng: random.Random) -> int:
    """Where to change: anywhere, or near either end, where lengths and directories stand."""
    what = rng.random()
    if size <= 128 or what < 0.5:
        return rng.randrange(max(size, 1))
    return rng.randrange(128) if what < 0.75 else size - 1 - rng.randrange(128)


BLIND: tuple[Mutation, ...] = (
    flip,
    flip,
    overwrite,
    overwrite,
    truncate,
    insert,
    delete,
    length_field,
    length_field,
    digits,
)
