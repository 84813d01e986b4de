"""Anchors that were cut, edited or made to mislead: named errors within bounded memory."""

import hashlib
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuralmark import Key
from neuralmark.anchors.anchor import ALIGNER_VERSION, Skeleton
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.chunks import CHUNK, TAG, ChunkReader, ChunkWriter
from neuralmark.anchors.header import MAX_HEADER
from neuralmark.anchors.originals import OriginalArrays
from neuralmark.anchors.sealed import load_anchor, write_anchor
from neuralmark.core.encoding import canonical_json
from neuralmark.errors import AnchorError, AnchorMismatchError
from tests.support.checks import one_line
from tests.support.models import gaussian
from tests.support.wrong import WRONG, changed, places

Table = dict[str, Any]


@pytest.fixture
def key() -> Key:
    return Key.new()


@pytest.fixture
def file(tmp_path: Path, key: Key) -> Path:
    """An anchor of four chunks."""
    weights = {"w.weight": gaussian(512, 900), "w.bias": gaussian(512, seed=1)}
    recipe = AnchorRecipe((("w.weight", (512, 900)),))
    path = tmp_path / "a.anchor"
    write_anchor(path, key, lambda sink: build(OriginalArrays(weights), recipe, sink))
    return path


def refused(path: Path, content: bytes, key: Key) -> str:
    path.write_bytes(content)
    with pytest.raises((AnchorError, AnchorMismatchError)) as caught:
        load_anchor(path, key)
    return one_line(caught.value)


def chunk_start(content: bytes) -> int:
    return 16 + int.from_bytes(content[8:16], "little")


def test_cut_off_anywhere(file: Path, key: Key, tmp_path: Path) -> None:
    whole = file.read_bytes()
    start = chunk_start(whole)
    lengths = {*range(start + 40), *range(len(whole) - 40, len(whole))}
    for number in range(5):
        edge = start + number * (CHUNK + TAG)
        lengths |= {edge + step for step in (-1, 0, 1, TAG - 1, TAG, TAG + 1)}
    for length in sorted(length for length in lengths if length < len(whole)):
        refused(tmp_path / "cut.anchor", whole[:length], key)


def test_a_bit_flipped_anywhere(file: Path, key: Key, tmp_path: Path) -> None:
    whole = bytearray(file.read_bytes())
    start = chunk_start(bytes(whole))
    edges = [start + number * (CHUNK + TAG) for number in range(4)]
    places = [*range(start + 20), *(edge + step for edge in edges for step in range(-20, 20))]
    places += range(0, len(whole), 4099)
    for place in {min(max(place, 0), len(whole) - 1) for place in (*places, len(whole) - 1)}:
        for bit in (1, 128):
            whole[place] ^= bit
            refused(tmp_path / "flipped.anchor", bytes(whole), key)
            whole[place] ^= bit
    (tmp_path / "flipped.anchor").write_bytes(bytes(whole))
    assert len(load_anchor(tmp_path / "flipped.anchor", key)) == 2


def test_chunks_swapped_doubled_dropped_and_added(file: Path, key: Key, tmp_path: Path) -> None:
    whole = file.read_bytes()
    start, step = chunk_start(whole), CHUNK + TAG
    head = whole[:start]
    parts = [whole[at : at + step] for at in range(start, len(whole), step)]
    assert len(parts) == 4
    wrong = [
        [parts[1], parts[0], *parts[2:]],
        [parts[0], parts[0], *parts[2:]],
        [parts[0], *parts[2:]],
        parts[:-1],
        [parts[3]],
        [*parts, parts[3]],
        [*parts[:3], parts[0]],
        [*parts[:3], parts[3] + bytes(16)],
    ]
    for order in wrong:
        refused(tmp_path / "mixed.anchor", head + b"".join(order), key)


def test_chunks_of_another_anchor_of_the_same_key(file: Path, key: Key, tmp_path: Path) -> None:
    weights = {"w.weight": gaussian(512, 900, seed=5), "w.bias": gaussian(512, seed=1)}
    recipe = AnchorRecipe((("w.weight", (512, 900)),))
    other = tmp_path / "b.anchor"
    write_anchor(other, key, lambda sink: build(OriginalArrays(weights), recipe, sink))
    one, two = file.read_bytes(), other.read_bytes()
    start = chunk_start(one)
    refused(tmp_path / "c.anchor", one[: start + 70_000] + two[start + 70_000 :], key)
    refused(tmp_path / "c.anchor", one[:start] + two[start:], key)


@pytest.mark.parametrize("content", [b"", b"NM", b"NMANCHR1", b"NMANCHR2" + bytes(100), bytes(999)])
def test_what_is_no_anchor(content: bytes, key: Key, tmp_path: Path) -> None:
    refused(tmp_path / "x.anchor", content, key)


def test_neither_a_folder_nor_a_pipe_nor_nothing(key: Key, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "missing"):
        with pytest.raises(AnchorError) as caught:
            load_anchor(path, key)
        one_line(caught.value)


@pytest.mark.parametrize(
    "public",
    [
        {"version": 2},
        {"version": True},
        {"format": "neuralmark-claim"},
        {"nonce": "x"},
        {"nonce": "AAAA"},
        {"nonce": None},
        {"fingerprint": 3},
        {"extra": 1},
        {"fingerprint": "x" * 5000},
    ],
)
def test_public_headers(file: Path, key: Key, tmp_path: Path, public: Table) -> None:
    whole = file.read_bytes()
    start = chunk_start(whole)
    header = canonical_json({**json.loads(whole[16:start]), **public})
    length = len(header).to_bytes(8, "little")
    refused(tmp_path / "x.anchor", whole[:8] + length + header + whole[start:], key)


def test_a_public_header_that_is_not_the_one_of_its_chunks(file: Path, key: Key) -> None:
    """Another way to write the same JSON is noticed, and so is a header that goes on too far."""
    whole = file.read_bytes()
    start = chunk_start(whole)
    spaced = json.dumps(json.loads(whole[16:start])).encode()
    length = len(spaced).to_bytes(8, "little")
    refused(file, whole[:8] + length + spaced + whole[start:], key)
    huge = (1 << 60).to_bytes(8, "little")
    refused(file, whole[:8] + huge + whole[16:], key)
    deep = b"[" * 4000
    refused(file, whole[:8] + len(deep).to_bytes(8, "little") + deep + whole[start:], key)


# What a claimant can do who holds the key: any plain text, properly sealed.


def entry(payload: bytes, name: str = "w", **more: Any) -> Table:
    digest = hashlib.sha512(payload).hexdigest()
    return {"name": name, "role": "marked", "rows": None, "sha512": digest, "wide": False, **more}


def payload_of(rows: int = 4, length: int = 8, scale: float = 0.5) -> bytes:
    return bytes(rows * length // 2) + np.full(rows, scale, "<f2").tobytes()


def table(payload: bytes, **more: Any) -> Table:
    return {
        "aligner": ALIGNER_VERSION,
        "bits": 4,
        "heads": 0,
        "tensors": [["w", [4, 8]]],
        "tied": [],
        "entries": [entry(payload)],
        **more,
    }


def seal(path: Path, key: Key, payload: bytes, header: bytes, length: int | None = None) -> Path:
    with path.open("wb") as file:
        writer = ChunkWriter(file, key)
        writer.write(payload)
        writer.write(header)
        writer.write((len(header) if length is None else length).to_bytes(8, "little"))
        writer.finish()
    return path


def told(path: Path, key: Key) -> str:
    with pytest.raises(AnchorError) as caught:
        load_anchor(path, key)
    return one_line(caught.value)


def test_the_crafted_one_loads_when_nothing_is_wrong(tmp_path: Path, key: Key) -> None:
    payload = payload_of()
    good = load_anchor(seal(tmp_path / "a", key, payload, canonical_json(table(payload))), key)
    assert good["w"].shape == (4, 8)
    assert not good["w"].any()


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0])
def test_scales_that_are_no_numbers(tmp_path: Path, key: Key, scale: float) -> None:
    payload = payload_of(scale=scale)
    path = seal(tmp_path / "a", key, payload, canonical_json(table(payload)))
    assert "'w' are not numbers" in told(path, key)


def test_values_of_a_vector_that_are_no_numbers(tmp_path: Path, key: Key) -> None:
    payload = np.array([1.0, np.nan], "<f2").tobytes()
    header = table(payload, tensors=[["w", [2]]])
    assert "not numbers" in told(seal(tmp_path / "a", key, payload, canonical_json(header)), key)


def test_a_scale_that_would_overflow(tmp_path: Path, key: Key) -> None:
    payload = bytes([0x88]) * 16 + np.full(4, 1e38, "<f4").tobytes()
    header = table(payload, entries=[entry(payload, wide=True)])
    told(seal(tmp_path / "a", key, payload, canonical_json(header)), key)


LIES: list[Callable[[bytes], Table]] = [
    lambda p: table(p, tensors=[["w", [5, 8]]]),
    lambda p: table(p, tensors=[["w", [4, 9]]]),
    lambda p: table(p, tensors=[["w", [1 << 39, 8]]]),
    lambda p: table(p, tensors=[["w", [1 << 41, 8]]]),
    lambda p: table(p, tensors=[["w", [1 << 30, 1 << 30]]]),
    lambda p: table(p, tensors=[["w", [1, 1 << 40]]]),
    lambda p: table(p, tensors=[["w", [-4, -8]]]),
    lambda p: table(p, tensors=[["w", [4.0, 8.0]]]),
    lambda p: table(p, tensors=[["w", [4, 8] + [1] * 20]]),
    lambda p: table(p, tensors=[["w", [4, 8]], ["w", [4, 8]]]),
    lambda p: table(p, tensors=[["v", [4, 8]]]),
    lambda p: table(p, tensors=[]),
    lambda p: table(p, entries=[]),
    lambda p: table(p, entries=[entry(p), entry(p)]),
    lambda p: table(p, entries=[entry(p, role="partner")]),
    lambda p: table(p, entries=[entry(p, role="owner")]),
    lambda p: table(p, entries=[entry(p, rows=3)]),
    lambda p: table(p, entries=[entry(p, rows=0)]),
    lambda p: table(p, entries=[entry(p, wide=True)]),
    lambda p: table(p, entries=[entry(p, wide=1)]),
    lambda p: table(p, entries=[entry(b"other")]),
    lambda p: table(p, entries=[entry(p, sha512="00")]),
    lambda p: table(p, entries=[entry(p, surprise=1)]),
    lambda p: table(p, heads=1025),
    lambda p: table(p, heads=-1),
    lambda p: table(p, heads=10**30),
    lambda p: table(p, heads=1024, tensors=[[f"t{i:05}", [1]] for i in range(5000)]),
    lambda p: table(p, bits=1),
    lambda p: table(p, bits=9),
    lambda p: table(p, bits=5),
    lambda p: table(p, aligner=99),
    lambda p: table(p, tied=[["w", "w", "w"]]),
    lambda p: table(p, tied=[["w", "v"]]),
    lambda p: table(p, tied=[["w", "v"]], tensors=[["v", [4, 9]], ["w", [4, 8]]]),
    lambda p: table(p, surprise=1),
]


@pytest.mark.parametrize("lie", LIES)
def test_headers_that_lie(tmp_path: Path, key: Key, lie: Callable[[bytes], Table]) -> None:
    payload = payload_of()
    told(seal(tmp_path / "a", key, payload, canonical_json(lie(payload))), key)


@pytest.mark.parametrize("heads", [7, 9, 63, 1000, 1024])
def test_heads_that_the_shapes_gainsay(tmp_path: Path, key: Key, heads: int) -> None:
    payload = payload_of()
    shapes: dict[str, list[int]] = {
        "h.0.attn.c_attn.bias": [24],
        "h.0.attn.c_attn.weight": [8, 24],
        "h.0.attn.c_proj.bias": [8],
        "h.0.attn.c_proj.weight": [8, 8],
        "h.0.ln_1.bias": [8],
        "h.0.ln_1.weight": [8],
        "h.0.ln_2.bias": [8],
        "h.0.ln_2.weight": [8],
        "h.0.mlp.c_fc.bias": [32],
        "h.0.mlp.c_fc.weight": [8, 32],
        "h.0.mlp.c_proj.bias": [8],
        "h.0.mlp.c_proj.weight": [32, 8],
        "ln_f.bias": [8],
        "ln_f.weight": [8],
        "wpe.weight": [4, 8],
        "wte.weight": [4, 8],
    }
    skeleton = Skeleton(tuple((name, tuple(shape)) for name, shape in shapes.items()), heads)
    assert skeleton.structure is not None
    assert not skeleton.heads_fit
    tensors = [[name, shape] for name, shape in shapes.items()]
    entries = [entry(payload, name="wte.weight")]
    lie = canonical_json(table(payload, heads=heads, tensors=tensors, entries=entries))
    assert f"{heads} attention heads do not fit" in told(
        seal(tmp_path / "a", key, payload, lie), key
    )
    right = canonical_json(table(payload, heads=2, tensors=tensors, entries=entries))
    assert load_anchor(seal(tmp_path / "a", key, payload, right), key).skeleton.heads == 2


def test_wrong_kinds_everywhere(tmp_path: Path, key: Key) -> None:
    payload = payload_of()
    whole = table(payload)
    right = json.dumps(whole, sort_keys=True, separators=(",", ":"))
    loaded = set()
    for at in places(whole):
        for wrong in WRONG:
            header = json.dumps(changed(whole, at, wrong), sort_keys=True, separators=(",", ":"))
            path = seal(tmp_path / "a", key, payload, header.encode())
            try:
                load_anchor(path, key)
            except AnchorError as error:
                one_line(error)
            else:
                loaded |= set() if header == right else {(at, str(wrong))}
    # seven heads, and rows of seven codes in four bytes: other anchors, but sound ones
    assert loaded == {(("heads",), "7"), (("tensors", 0, 1, 1), "7")}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"heads":' + b"9" * 100_000 + b"}",
        b'{"bits":NaN}',
        b'{"bits":4,"bits":4}',
    ],
)
def test_headers_that_are_none(tmp_path: Path, key: Key, header: bytes) -> None:
    told(seal(tmp_path / "a", key, payload_of(), header), key)


def test_a_header_written_in_another_way(tmp_path: Path, key: Key) -> None:
    payload = payload_of()
    spaced = json.dumps(table(payload)).encode()
    assert "one way" in told(seal(tmp_path / "a", key, payload, spaced), key)


def test_half_of_a_character(tmp_path: Path, key: Key) -> None:
    payload = payload_of()
    header = canonical_json(table(payload)).replace(b'"w"', b'"\\ud800"')
    told(seal(tmp_path / "a", key, payload, header), key)


@pytest.mark.parametrize("length", [0, 1, 1 << 40, (1 << 64) - 1, MAX_HEADER + 1])
def test_lengths_that_lie(tmp_path: Path, key: Key, length: int) -> None:
    payload = payload_of()
    header = canonical_json(table(payload))
    told(seal(tmp_path / "a", key, payload, header, length), key)


def test_more_payload_than_entries(tmp_path: Path, key: Key) -> None:
    payload = payload_of()
    header = canonical_json(table(payload))
    assert "do not fit" in told(seal(tmp_path / "a", key, payload + b"x", header), key)
    assert "do not fit" in told(seal(tmp_path / "a", key, payload[1:], header), key)


def test_memory_is_capped_before_anything_is_parsed(tmp_path: Path, key: Key) -> None:
    """A header of millions of empty lists would take a hundred times its size."""
    header = b'{"tensors":[' + b"[]," * 5_000_000 + b"[]]}"
    path = seal(tmp_path / "a", key, b"", header)
    tracemalloc.start()
    told(path, key)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(header)


def test_a_large_anchor_is_checked_within_a_few_megabytes(tmp_path: Path, key: Key) -> None:
    weights = {"w": gaussian(8000, 1500)}
    recipe = AnchorRecipe((("w", (8000, 1500)),))
    path = tmp_path / "a.anchor"
    tracemalloc.start()
    write_anchor(path, key, lambda sink: build(OriginalArrays(weights), recipe, sink))
    _, wrote = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    load_anchor(path, key)
    _, read = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert weights["w"].nbytes > 40 << 20
    assert wrote < 16 << 20
    assert read < 8 << 20


def test_a_file_that_changes_after_it_was_opened(file: Path, key: Key) -> None:
    found = load_anchor(file, key)
    whole = bytearray(file.read_bytes())
    whole[chunk_start(bytes(whole)) + 100] ^= 1
    file.write_bytes(bytes(whole))
    with pytest.raises(AnchorError):
        found["w.weight"]


def test_nothing_is_read_beyond_the_end(file: Path, key: Key) -> None:
    reader = ChunkReader(file, key)
    assert len(reader.read(reader.size - 4, 4)) == 4
    with pytest.raises(AnchorError, match="cut off"):
        reader.read(reader.size - 4, 5)
