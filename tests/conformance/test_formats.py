"""The same battery for every checkpoint format that is discovered."""

from pathlib import Path

import numpy as np
import pytest

import neuralmark
from neuralmark import Key, Parameters
from neuralmark.checkpoints import format_names, open_checkpoint
from neuralmark.checkpoints.readers.dtypes import decode
from neuralmark.errors import NeuralMarkError, UsageError
from tests.support.far import MirrorPlace
from tests.support.makers import Arrays, arrays, content, maker, safetensors

PARAMETERS = Parameters(bits=256, pools=288, rounds=2)
FORMATS = pytest.mark.parametrize("form", format_names())
WRITABLE = pytest.mark.parametrize("form", [f for f in format_names() if maker(f).WRITES])
READ_ONLY = pytest.mark.parametrize("form", [f for f in format_names() if not maker(f).WRITES])


def same(one: Arrays, two: Arrays, *, but: str = "") -> bool:
    return set(one) == set(two) and all(
        np.array_equal(one[name], two[name]) for name in one if name != but
    )


@FORMATS
def test_reading_gives_what_was_saved(form: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(maker(form).make(arrays(), tmp_path))
    assert form in checkpoint.format or form == "folder"
    assert same(content(checkpoint), arrays())


@WRITABLE
@pytest.mark.parametrize("in_place", [False, True])
def test_marking_changes_one_tensor_only(form: str, in_place: bool, tmp_path: Path) -> None:
    path = maker(form).make(arrays(), tmp_path)
    key = Key.new(PARAMETERS)
    target = path if in_place else tmp_path / f"out{path.suffix}"
    neuralmark.embed(
        path,
        key,
        None if in_place else target,
        options=neuralmark.EmbedOptions(tensors=["layer.weight"]),
        in_place=in_place,
    )
    verdict = neuralmark.verify(target, key, tensors=["layer.weight"])
    assert verdict.matched == 256
    marked = content(open_checkpoint(target))
    assert same(marked, arrays(), but="layer.weight")
    assert not np.array_equal(marked["layer.weight"], arrays()["layer.weight"])
    if not in_place:
        assert same(content(open_checkpoint(path)), arrays())


@READ_ONLY
def test_what_cannot_be_marked_says_what_to_do(form: str, tmp_path: Path) -> None:
    path = maker(form).make(arrays(), tmp_path)
    before = content(open_checkpoint(path))
    assert all(row.fixed for row in neuralmark.inspect(path).rows if row.chosen)
    with pytest.raises(UsageError, match=r"can be read, but not marked: .*\b(mark|convert|save)"):
        neuralmark.embed(path, Key.new(PARAMETERS), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert same(content(open_checkpoint(path)), before)


@FORMATS
def test_runs_are_parts_of_the_whole(form: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(maker(form).make(arrays(), tmp_path))
    for name, array in content(checkpoint).items():
        if checkpoint.in_order(name):
            flat, dtype = array.reshape(-1), checkpoint.info(name).dtype
            for start, stop in ((0, 1), (len(flat) // 3, len(flat) // 2 + 1), (0, len(flat))):
                run = decode(checkpoint.read_run(name, start, stop), dtype)
                assert np.array_equal(run, flat[start:stop])


@FORMATS
def test_far_files_read_like_near_ones(form: str, tmp_path: Path) -> None:
    path = maker(form).make(arrays(), tmp_path)
    assert same(content(open_checkpoint(MirrorPlace(path))), content(open_checkpoint(path)))


@FORMATS
def test_marks_agree_across_formats(form: str, tmp_path: Path) -> None:
    """One key, one placement: the mark in one format is read from every other."""
    key = Key.new(PARAMETERS)
    source = safetensors.make(arrays(), tmp_path)
    for anchor in (True, False):
        out, folder = tmp_path / f"marked{anchor}.safetensors", tmp_path / f"copy{anchor}"
        result = neuralmark.embed(source, key, out, neuralmark.EmbedOptions(anchor=anchor))
        folder.mkdir()
        twin = maker(form).make(content(open_checkpoint(out)), folder)
        assert neuralmark.verify(twin, key, claim=result.claim).matched == 256
        assert neuralmark.verify(twin, key).verified is not anchor


@FORMATS
def test_truncated_files_are_named_errors(form: str, tmp_path: Path) -> None:
    path = maker(form).make(arrays(), tmp_path)
    victim = maker(form).victim(path)
    whole = victim.read_bytes()
    for length in np.linspace(0, len(whole) - 1, 40).astype(int):
        victim.write_bytes(whole[:length])
        with pytest.raises(NeuralMarkError) as caught:
            content(open_checkpoint(path))
        assert "\n" not in str(caught.value)


def test_a_third_party_format_is_found_through_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    info = site / "acme_format-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-format\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[neuralmark.checkpoints]\nacme = acme_format\n")
    (site / "acme_format.py").write_text(
        "from neuralmark.checkpoints.contract import Checkpoint, StoredTensor, TensorInfo\n"
        "def matches(path, head): return head.startswith(b'ACME')\n"
        "def open(path):\n"
        "    size = (path.stat().st_size - 4) // 4\n"
        "    info = TensorInfo('w', 'F32', (size,))\n"
        "    return Checkpoint(path, 'acme', {'w': StoredTensor(info, path, 4)})\n"
    )
    monkeypatch.syspath_prepend(str(site))
    array = np.random.default_rng(0).standard_normal(60_000).astype(np.float32)
    (tmp_path / "m.acme").write_bytes(b"ACME" + array.tobytes())
    key = Key.new(PARAMETERS)
    neuralmark.embed(
        tmp_path / "m.acme",
        key,
        tmp_path / "o.acme",
        options=neuralmark.EmbedOptions(tensors=["w"]),
    )
    assert neuralmark.verify(tmp_path / "o.acme", key).matched == 256
