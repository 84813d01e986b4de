"""The file of an anchor: what is written is read back, and its digest does not know the seal."""

import hashlib
import json
import stat
from pathlib import Path

import numpy as np
import pytest

from neuralmark import Key
from neuralmark.anchors import coarse
from neuralmark.anchors.anchor import PARTNER, Anchor, AnchorEntry
from neuralmark.anchors.building import AnchorRecipe, build
from neuralmark.anchors.header import AnchorHeader, header_from
from neuralmark.anchors.originals import OriginalArrays
from neuralmark.anchors.payload import PayloadLayout
from neuralmark.anchors.sealed import load_anchor, write_anchor
from neuralmark.core.encoding import canonical_json, enc
from neuralmark.errors import AnchorError, AnchorMismatchError, ParameterError
from neuralmark.keys.sealing import unb64
from tests.support.models import gaussian

WEIGHTS = {
    "layer1.weight": gaussian(128, 96),
    "layer1.bias": gaussian(128, seed=1),
    "layer2.weight": gaussian(96, 128, 3, 3, seed=2),
    "long.weight": gaussian(2, 70_000, seed=3),
    "short.weight": gaussian(50, 3, seed=4),
    "temperature": np.array(0.07, np.float32),
    "running_var": np.array([70_000.0, 1.0], np.float32),
}
PLACEMENT = tuple((n, WEIGHTS[n].shape) for n in ("layer2.weight", "layer1.weight", "long.weight"))


def written(path: Path, key: Key, bits: int = 4) -> Anchor:
    recipe = AnchorRecipe(PLACEMENT, bits=bits)
    original = OriginalArrays(WEIGHTS)
    return write_anchor(path, key, lambda sink: build(original, recipe, sink))


@pytest.mark.parametrize("bits", range(2, 9))
def test_there_and_back(tmp_path: Path, bits: int) -> None:
    key = Key.new()
    made = written(tmp_path / "a.anchor", key, bits)
    read = load_anchor(tmp_path / "a.anchor", key)
    assert (read.entries, read.skeleton, read.bits) == (made.entries, made.skeleton, bits)
    assert read.digest == made.digest
    assert read.placement == PLACEMENT
    assert list(read) == list(made)
    assert set(read) == set(WEIGHTS)
    for name, original in WEIGHTS.items():
        np.testing.assert_array_equal(read[name], made[name])
        assert read[name].shape == original.shape
        assert read[name].dtype == np.float32
        error = np.linalg.norm(read[name] - original) / np.linalg.norm(original)
        assert error < {2: 0.6, 3: 0.35, 4: 0.2}.get(bits, 0.1), name
    assert read.entry("running_var").wide
    assert not read.entry("layer1.bias").wide


def test_the_size_is_an_eighth(tmp_path: Path) -> None:
    written(tmp_path / "a.anchor", Key.new())
    marked = sum(4 * WEIGHTS[name].size for name, _ in PLACEMENT)
    assert (tmp_path / "a.anchor").stat().st_size < marked / 8 * 1.05


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    written(tmp_path / "a.anchor", Key.new())
    assert stat.S_IMODE((tmp_path / "a.anchor").stat().st_mode) == 0o600


def test_nothing_shows_through_the_seal(tmp_path: Path) -> None:
    key = Key.new()
    written(tmp_path / "a.anchor", key)
    content = (tmp_path / "a.anchor").read_bytes()
    assert b"layer1" not in content
    assert key.fingerprint.encode() in content[:512]


def test_sealed_twice_the_bytes_differ_and_the_digest_does_not(tmp_path: Path) -> None:
    key, other = Key.new(), Key.new()
    digests = {written(tmp_path / f"{i}.anchor", k).digest for i, k in enumerate((key, key, other))}
    assert len(digests) == 1
    assert len(next(iter(digests))) == 64
    files = [(tmp_path / f"{i}.anchor").read_bytes() for i in range(3)]
    assert len({part[400:500] for part in files}) == 3


def test_the_digest_knows_everything(tmp_path: Path) -> None:
    original, recipe = OriginalArrays(WEIGHTS), AnchorRecipe(PLACEMENT)
    digests = {build(original, recipe).digest}
    digests.add(build(original, AnchorRecipe(PLACEMENT, bits=3)).digest)
    digests.add(build(original, AnchorRecipe(PLACEMENT, heads=4)).digest)
    digests.add(build(original, AnchorRecipe(PLACEMENT[::-1])).digest)
    for name, weights in WEIGHTS.items():
        changed = weights.copy()
        changed.reshape(-1)[0] += 1
        digests.add(build(OriginalArrays({**WEIGHTS, name: changed}), recipe).digest)
    extra = {**WEIGHTS, "another.weight": gaussian(100, 100)}
    digests.add(build(OriginalArrays(extra), recipe).digest)
    assert len(digests) == 5 + len(WEIGHTS)


def test_the_order_of_the_model_does_not_matter() -> None:
    turned = dict(reversed(WEIGHTS.items()))
    recipe = AnchorRecipe(PLACEMENT)
    assert build(OriginalArrays(turned), recipe).digest == (
        build(OriginalArrays(WEIGHTS), recipe).digest
    )


def test_the_format_is_as_documented(tmp_path: Path) -> None:
    """Taken apart with nothing but docs/formats.md, hashlib and a cipher."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key = Key.new()
    made = written(tmp_path / "a.anchor", key)
    data = (tmp_path / "a.anchor").read_bytes()
    assert data[:8] == b"NMANCHR1"
    length = int.from_bytes(data[8:16], "little")
    public = json.loads(data[16 : 16 + length])
    assert public["format"] == "neuralmark-anchor"
    nonce = unb64(public["nonce"])
    assert key.secret is not None
    seed = b"neuralmark/anchor-file/1" + enc(nonce) + key.secret
    cipher = AESGCM(hashlib.shake_256(seed).digest(32))
    head, sealed, plain = data[: 16 + length], data[16 + length :], b""
    step = 65536 + 16
    for at in range(0, len(sealed), step):
        last = at + step >= len(sealed)
        chunk = (at // step).to_bytes(8, "little")
        plain += cipher.decrypt(bytes(3) + chunk + bytes([last]), sealed[at : at + step], head)
    size = int.from_bytes(plain[-8:], "little")
    header = plain[-8 - size : -8]
    assert hashlib.sha512(b"neuralmark/anchor/1" + enc(header)).digest() == made.digest
    table = json.loads(header)
    assert header == canonical_json(table)
    at = 0
    for entry in table["entries"]:
        layout = PayloadLayout(made.entry(entry["name"]), 4)
        payload = plain[at : at + layout.size]
        assert hashlib.sha512(payload).hexdigest() == entry["sha512"]
        at += layout.size
    assert at == len(plain) - 8 - size
    first = made.entry("layer2.weight")
    codes = np.frombuffer(plain, np.uint8, 96 * 576).reshape(96, 576)
    low = (codes & 15).astype(np.int8)
    high = (codes >> 4).astype(np.int8)
    both = np.stack([low, high], axis=2).reshape(96, 1152)
    both[both > 7] -= 16
    scales = np.frombuffer(plain, "<f2", 96, offset=96 * 576).astype(np.float32)
    np.testing.assert_array_equal(
        (both * scales[:, None]).astype(np.float32), made[first.name].reshape(96, -1)
    )


def test_another_key(tmp_path: Path) -> None:
    written(tmp_path / "a.anchor", Key.new())
    with pytest.raises(AnchorMismatchError, match="not of this one"):
        load_anchor(tmp_path / "a.anchor", Key.new())


def test_a_raw_key_has_no_anchor(tmp_path: Path) -> None:
    raw = Key.raw(gaussian(64, 32), 1, "strided")
    with pytest.raises(ParameterError, match="no secret"):
        written(tmp_path / "a.anchor", raw)


def test_links_are_followed_only_when_they_may_be(tmp_path: Path) -> None:
    key = Key.new()
    written(tmp_path / "a.anchor", key)
    (tmp_path / "link.anchor").symlink_to(tmp_path / "a.anchor")
    assert len(load_anchor(tmp_path / "link.anchor", key)) == len(WEIGHTS)
    with pytest.raises(AnchorError):
        load_anchor(tmp_path / "link.anchor", key, links=False)


def test_what_is_written_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "a.anchor").write_text("something")
    with pytest.raises(FileExistsError):
        written(tmp_path / "a.anchor", Key.new())


def test_an_original_that_changed_after_its_anchor_was_made() -> None:
    weights = {name: value.copy() for name, value in WEIGHTS.items()}
    made = build(OriginalArrays(weights), AnchorRecipe(PLACEMENT))
    weights["layer1.weight"][0, 0] += 1
    np.testing.assert_array_equal(made["layer2.weight"].shape, (96, 128, 3, 3))
    with pytest.raises(AnchorError, match=r"'layer1\.weight' is not the one that was kept"):
        made["layer1.weight"]


def test_rows_of_a_sample_are_even() -> None:
    entry = AnchorEntry("wte", (1000, 8), PARTNER, rows=300)
    rows = entry.kept_rows
    assert entry.kept_shape == (300, 8)
    assert (rows[0], rows[-1], len(set(rows.tolist()))) == (0, 996, 300)
    assert set(np.diff(rows).tolist()) == {3, 4}
    np.testing.assert_array_equal(AnchorEntry("w", (7, 2)).kept_rows, np.arange(7))


def test_a_header_there_and_back() -> None:
    made = build(OriginalArrays(WEIGHTS), AnchorRecipe(PLACEMENT))
    header = AnchorHeader(made.entries, made.skeleton, made.bits)
    assert header_from(header.to_bytes()) == header
    assert header.digest == made.digest
    assert header.bits == coarse.USUAL_BITS
