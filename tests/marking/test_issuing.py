"""Copies for buyers: two marks in each, the rest untouched; killed runs go on."""

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import neuralmark
from neuralmark import CopyOptions, CopyRegister, EmbedOptions, Key, Parameters, issue_copies
from neuralmark.core.key import Mark
from neuralmark.errors import (
    BuyersError,
    InfeasibleError,
    OutputError,
    ParameterError,
    RecordError,
)
from neuralmark.marking import drafting, issuing
from neuralmark.marking.buyers import buyer_parameters
from neuralmark.marking.issuing import file_name
from neuralmark.storage import files, journal
from tests.support import architectures
from tests.support.checks import one_line
from tests.support.market import LABELS, Sold, chain_model, owners_key, sold
from tests.support.models import QUICK, gaussian, saved, sharded_model


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Sold:
    return sold(tmp_path_factory.mktemp("market"))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_copy_has_both_marks(four: Sold) -> None:
    for label in LABELS:
        owners = neuralmark.verify(four.path(label), four.key, claim=four.claim)
        assert (owners.verified, owners.matched) == (True, 256)
        sub, claim = neuralmark.buyer_key(four.key, label, four.folder)
        own = neuralmark.verify(four.path(label), sub, claim=claim)
        assert (own.verified, own.matched) == (True, 256)
        assert own.anchor_digest == owners.anchor_digest


def test_no_copy_has_the_mark_of_another(four: Sold) -> None:
    sub, claim = neuralmark.buyer_key(four.key, LABELS[0], four.folder)
    for label in LABELS[1:]:
        verdict = neuralmark.verify(four.path(label), sub, claim=claim)
        assert verdict.matched < 165
        assert not verdict.verified


def test_only_marked_tensors_change(four: Sold) -> None:
    before = load_file(four.model)
    for label in LABELS:
        after = four.weights(label)
        assert list(after) == list(before)
        changed = {name for name in before if not np.array_equal(before[name], after[name])}
        assert changed == {name for name, _ in four.register.placement}
    sizes = {four.path(label).stat().st_size for label in LABELS}
    assert sizes == {four.model.stat().st_size}


def test_the_register_says_who_got_what(four: Sold) -> None:
    assert four.register.buyers == LABELS
    assert CopyRegister.load(four.folder / "copies.json") == four.register
    for issued in four.register.copies:
        assert issued.files == {issued.path: sha256(four.folder / issued.path)}
        assert issued.size == (four.folder / issued.path).stat().st_size
        assert 0.005 < issued.change_relative < 0.2
        assert issued.strength >= 1
    assert (four.folder / "copies.json").stat().st_mode & 0o777 == 0o600


def test_a_buyers_mark_shows_in_the_change_alone(four: Sold) -> None:
    """What a copy differs by from the owner's has every bit: nothing is left to the weights."""
    base = load_file(four.folder / four.register.base)
    placement, anchor = four.register.placement, four.register.anchor.bytes
    shape = buyer_parameters(four.key.parameters, placement)
    for label in LABELS:
        mark = four.key.sub(label, parameters=shape).at(placement, anchor)
        copy = four.weights(label)
        change = np.concatenate([(copy[n] - base[n]).reshape(-1) for n, _ in placement])
        assert bits_in(mark, change) == 256
    plain = four.key.at(placement, anchor)
    original = load_file(four.model)
    change = np.concatenate([(base[n] - original[n]).reshape(-1) for n, _ in placement])
    assert bits_in(plain, change) < 256


def bits_in(mark: Mark, flat: Any) -> int:
    from neuralmark.core import readout
    from neuralmark.core.carriers import Carriers

    carriers = Carriers.of(mark, len(flat))
    values = flat[carriers.positions(0, carriers.size)].astype(np.float64)
    logits = readout.pool(values, carriers.pools) @ mark.matrix.astype(np.float64)
    return int((logits * mark.signs > 0).sum())


def test_no_two_copies_agree(four: Sold, tmp_path: Path) -> None:
    """Where most copies agreed, buyers would see the weights without their marks."""
    base = load_file(four.folder / four.register.base)
    names = [name for name, _ in four.register.placement]
    one, two = (four.weights(label) for label in LABELS[:2])
    for name in names:
        assert (one[name] == base[name]).mean() < 1e-3
        assert (one[name] == two[name]).mean() < 1e-3
    bare = CopyOptions(cover=False)
    model = chain_model(tmp_path / "model.safetensors")
    register, _ = issue_copies(model, four.key, LABELS[:1], tmp_path / "copies", bare)
    copy = load_file(tmp_path / "copies" / register.copies[0].path)
    for name in names:
        assert 0.45 < (copy[name] == base[name]).mean() < 0.55
    ratio = four.register.copies[0].change_relative / register.copies[0].change_relative
    assert 1.35 < ratio < 1.48


def test_the_change_that_is_told_is_true(four: Sold) -> None:
    base, names = load_file(four.folder / four.register.base), four.register.placement
    for issued in four.register.copies:
        copy = four.weights(issued.buyer)
        both = [(copy[n].astype(float) - base[n], base[n]) for n, _ in names]
        change, whole = (np.sqrt(sum(float((p[i] ** 2).sum()) for p in both)) for i in (0, 1))
        assert issued.change_relative == pytest.approx(change / whole, rel=1e-4)


def test_labels_are_never_file_names(tmp_path: Path) -> None:
    sub = owners_key().sub("x")
    short = sub.fingerprint.removeprefix("nm1-")[:8]
    names = {
        "../../etc/passwd": f"etc-passwd-{short}.npz",
        "a" * 200: f"{'a' * 40}-{short}.npz",
        "東京": f"copy-{short}.npz",
        "CON": f"con-{short}.npz",
        ".hidden": f"hidden-{short}.npz",
    }
    assert {label: file_name(label, sub, ".npz") for label in names} == names


def test_later_buyers_are_added_and_nobody_is_made_twice(tmp_path: Path) -> None:
    first = sold(tmp_path, LABELS[:2])
    stamps = {
        copy.path: (first.folder / copy.path).stat().st_mtime_ns for copy in first.register.copies
    }
    told: list[str] = []
    register, _ = issue_copies(
        first.model,
        first.key,
        [*LABELS, "ACME LTD."][1:],
        first.folder,
        progress=lambda what, *_: told.append(what),
    )
    assert set(register.buyers) == set(LABELS)
    assert register.copies[:2] == first.register.copies
    for name, stamp in stamps.items():
        assert (first.folder / name).stat().st_mtime_ns == stamp
    assert told[0] == "the owner's copy"


def test_a_lost_copy_is_made_again_as_it_was(tmp_path: Path) -> None:
    made = sold(tmp_path, LABELS[:2])
    gone, cut = (made.path(label) for label in LABELS[:2])
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    register, _ = issue_copies(made.model, made.key, LABELS[:2], made.folder)
    assert register.copies == made.register.copies
    for issued in register.copies:
        assert sha256(made.folder / issued.path) == issued.files[issued.path]


_KILLED = """
import os, signal, sys
from pathlib import Path
from neuralmark import issue_copies
from tests.support.market import LABELS, owners_key
step = int(sys.argv[2])
count = 0
def tell(what, done, total):
    global count
    count += 1
    if count == step and sys.argv[3] == "told":
        os.kill(os.getpid(), signal.SIGKILL)
from neuralmark.marking import drafting, issuing
usual = issuing.mark_copies
def halfway(*given):
    if count == step:
        os.kill(os.getpid(), signal.SIGKILL)
    return usual(*given)
if sys.argv[3] == "halfway":
    issuing.mark_copies = halfway
saving = issuing._save
def unsaved(*given):
    if sys.argv[3] == "unsaved" and count == step:
        os.kill(os.getpid(), signal.SIGKILL)
    return saving(*given)
issuing._save = unsaved
folder = Path(sys.argv[1])
issue_copies(folder / "model.safetensors", owners_key(), LABELS, folder / "copies", progress=tell)
"""


@pytest.mark.parametrize(
    ("step", "where"), [(1, "unsaved"), (3, "told"), (3, "halfway"), (4, "unsaved")]
)
def test_a_killed_run_goes_on(four: Sold, tmp_path: Path, step: int, where: str) -> None:
    model = chain_model(tmp_path / "model.safetensors")
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}
    command = [sys.executable, "-c", _KILLED, str(tmp_path), str(step), where]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    register, _ = issue_copies(model, owners_key(), LABELS, tmp_path / "copies")
    assert register.copies == four.register.copies  # the same bytes as without the interruption
    found = {entry.name for entry in (tmp_path / "copies").iterdir()}
    base = register.base
    assert found == {
        "copies.json",
        *(base, f"{base}.claim.json", f"{base}.anchor"),
        *(copy.path for copy in register.copies),
    }


def test_another_key_model_or_choice_is_refused(tmp_path: Path) -> None:
    made = sold(tmp_path, LABELS[:1])
    other = chain_model(tmp_path / "other.safetensors", seed=50)
    before = {entry.name: entry.stat().st_mtime_ns for entry in made.folder.iterdir()}
    one = CopyOptions(tensors="0.weight")
    for model, key, options in (
        (made.model, owners_key(9), None),
        (other, made.key, None),
        (made.model, made.key, one),
    ):
        with pytest.raises(OutputError, match="holds the copies of another") as caught:
            issue_copies(model, key, LABELS, made.folder, options)
        one_line(caught.value)
    assert {entry.name: entry.stat().st_mtime_ns for entry in made.folder.iterdir()} == before
    register, _ = issue_copies(other, owners_key(9), ["New"], made.folder, overwrite=True)
    assert register.buyers == ("New",)
    assert CopyRegister.load(made.folder / "copies.json") == register


def test_an_owners_copy_of_another_model_is_not_taken(tmp_path: Path) -> None:
    model, key = chain_model(tmp_path / "model.safetensors"), owners_key()
    other = chain_model(tmp_path / "other.safetensors", seed=50)
    folder = tmp_path / "copies"
    folder.mkdir()
    neuralmark.embed(other, key, folder / "owner.safetensors", EmbedOptions(anchor_bits=8))
    with pytest.raises(OutputError, match="holds the copies of another model"):
        issue_copies(model, key, LABELS, folder)
    (folder / "owner.safetensors.claim.json").unlink()
    with pytest.raises(OutputError, match="exists already"):
        issue_copies(model, key, LABELS, folder)


def test_a_damaged_register_is_named(tmp_path: Path) -> None:
    made = sold(tmp_path, LABELS[:1])
    (made.folder / "copies.json").write_text("{}")
    with pytest.raises(RecordError, match="not a NeuralMark register of copies"):
        issue_copies(made.model, made.key, LABELS, made.folder)


def test_a_missing_anchor_is_named(tmp_path: Path) -> None:
    made = sold(tmp_path, LABELS[:1])
    (made.folder / "owner.safetensors.anchor").unlink()
    with pytest.raises(OutputError, match="its claim or its anchor"):
        issue_copies(made.model, made.key, LABELS, made.folder)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    model = chain_model(tmp_path / "model.safetensors")
    (tmp_path / "copies").mkdir()
    with (
        journal.exclusive(tmp_path / "copies"),
        pytest.raises(OutputError, match="another process"),
    ):
        issue_copies(model, owners_key(), LABELS, tmp_path / "copies")


def test_calls_that_cannot_work(tmp_path: Path) -> None:
    model = chain_model(tmp_path / "model.safetensors")
    with pytest.raises(BuyersError, match="twice"):
        issue_copies(model, owners_key(), ["a", "A"], tmp_path / "copies")
    assert not (tmp_path / "copies").exists()
    stdm = Key.new(neuralmark.schemes.parameters("stdm"))
    with pytest.raises(ParameterError, match="scheme neuralmark"):
        issue_copies(model, stdm, ["a"], tmp_path / "copies")
    with pytest.raises(ParameterError, match="path of a checkpoint"):
        issue_copies({}, owners_key(), ["a"], tmp_path / "copies")  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        issue_copies(model, owners_key(), ["a"], tmp_path / "file" / "copies")


def test_shards_without_a_mark_are_shared(tmp_path: Path) -> None:
    model = sharded_model(tmp_path / "model")
    options = CopyOptions(tensors=["a.weight"])
    key = Key.new(QUICK)
    register, _ = issue_copies(model, key, ["x", "y"], tmp_path / "copies", options)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    base = tmp_path / "copies" / register.base
    for issued in register.copies:
        folder = tmp_path / "copies" / issued.path
        assert (folder / second).samefile(base / second)
        assert not (folder / first).samefile(base / first)
        assert issued.files == {name: sha256(folder / name) for name in (first, second)}
        assert (folder / "config.json").read_text() == "{}"
        found = neuralmark.trace(folder, key, tmp_path / "copies")
        assert found.named == (issued.buyer,)
        assert found.identical == issued.buyer


def test_a_second_set_of_the_weights_is_marked_and_never_shared(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    saved(model / "model.safetensors", w=gaussian(256, 256))
    saved(model / "variant.safetensors", w=gaussian(256, 256))
    key = Key.new(QUICK)
    register, _ = issue_copies(model, key, ["x", "y"], tmp_path / "copies")
    base = tmp_path / "copies" / register.base
    kept = sha256(base / "variant.safetensors")
    for issued in register.copies:
        folder = tmp_path / "copies" / issued.path
        one, two = (load_file(folder / f"{n}.safetensors")["w"] for n in ("model", "variant"))
        assert np.array_equal(one, two)
        assert not (folder / "variant.safetensors").samefile(base / "variant.safetensors")
    assert sha256(base / "variant.safetensors") == kept


def test_marks_that_crowd_each_other_are_written_again(tmp_path: Path) -> None:
    """With few weights in each pool the buyer's mark breaks the owner's, until both hold."""
    key = Key(Parameters(bits=256, pools=512, rounds=1), b"", salt=bytes(32), secret=bytes(32))
    model = saved(tmp_path / "model.safetensors", w=gaussian(64, 64))
    labels = [f"buyer {n}" for n in range(6)]
    again: list[Any] = []
    usual = drafting.draft

    def counted(planned: Any, **more: Any) -> Any:
        again.append(planned.key.fingerprint)
        return usual(planned, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(issuing, "draft", counted)
        options = CopyOptions(tensors="w", strength=0.05)
        register, _ = issue_copies(model, key, labels, tmp_path / "copies", options)
    assert len(again) > len(labels)
    for label in labels:
        issued = register.of(label)
        assert issued is not None
        copy = tmp_path / "copies" / issued.path
        claim = tmp_path / "copies" / f"{register.base}.claim.json"
        assert neuralmark.verify(copy, key, claim=claim).matched == 256
        sub, own = neuralmark.buyer_key(key, label, register)
        assert neuralmark.verify(copy, sub, claim=own).matched == 256


def test_marks_that_cannot_hold_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = chain_model(tmp_path / "model.safetensors")
    monkeypatch.setattr(issuing, "_lost", lambda *_: 1)
    with pytest.raises(InfeasibleError, match="disturb each other"):
        issue_copies(model, owners_key(), ["a"], tmp_path / "copies")
    left = {entry.name for entry in (tmp_path / "copies").iterdir()}
    assert left == {f"owner.safetensors{end}" for end in ("", ".claim.json", ".anchor")} | {
        "copies.json"
    }


def test_eight_marks_in_the_same_tensors(tmp_path: Path) -> None:
    """All of them whole, a few percent of change together; one sub-key removes one of them."""
    source = saved(tmp_path / "0.safetensors", w=gaussian(2048, 2048))
    master = owners_key()
    keys = [master.sub(f"case {number}", "dispute") for number in range(8)]
    model, claims = source, []
    for number, key in enumerate(keys, 1):
        out = tmp_path / f"{number}.safetensors"
        done = neuralmark.embed(model, key, out, EmbedOptions(strength=1, anchor=False))
        claims.append(done.claim)
        model = out
    verdicts = [neuralmark.verify(model, k, claim=c) for k, c in zip(keys, claims, strict=True)]
    assert [verdict.matched for verdict in verdicts] == [256] * 8
    before, after = (load_file(path)["w"].astype(np.float64) for path in (source, model))
    change = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert 0.033 < change < 0.04
    erased = tmp_path / "erased.safetensors"
    saved(erased, w=erase(after, keys[3]))
    left = [neuralmark.verify(erased, k, claim=c) for k, c in zip(keys, claims, strict=True)]
    assert [verdict.verified for verdict in left] == [number != 3 for number in range(8)]
    assert left[3].matched < 165
    assert min(verdict.matched for n, verdict in enumerate(left) if n != 3) == 256


def erase(weights: Any, key: Key) -> Any:
    """What the holder of a key does: take the mean of every pool away."""
    from neuralmark.core import readout
    from neuralmark.core.carriers import Carriers

    mark = key.at((("w", weights.shape),))
    carriers = Carriers.of(mark, weights.size)
    at = carriers.positions(0, carriers.size)
    flat = weights.reshape(-1).copy()
    flat[at] -= np.tile(readout.pool(flat[at], carriers.pools), carriers.per_pool)
    return flat.reshape(weights.shape).astype(np.float32)


def test_clones_and_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"weights")
    source.chmod(0o640)
    files.clone_file(source, tmp_path / "clone")
    files.link_file(source, tmp_path / "link")
    assert (tmp_path / "clone").read_bytes() == b"weights"
    assert (tmp_path / "clone").stat().st_mode == source.stat().st_mode
    assert not (tmp_path / "clone").samefile(source)
    assert (tmp_path / "link").samefile(source)
    monkeypatch.setattr(os, "link", refused)
    files.link_file(source, tmp_path / "other")
    assert (tmp_path / "other").read_bytes() == b"weights"
    assert not (tmp_path / "other").samefile(source)


def refused(*_: Any) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_a_disk_that_shares_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk can, the clone is asked for in one step, and nothing is copied."""
    source = tmp_path / "source"
    source.write_bytes(b"weights")
    asked: list[int] = []

    def share(target: int, request: int, given: int) -> int:
        asked.append(request)
        os.write(target, os.pread(given, 100, 0))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", share)
    monkeypatch.setattr(files, "copy_file", refused)
    files.clone_file(source, tmp_path / "clone")
    assert (tmp_path / "clone").read_bytes() == b"weights"
    assert asked == [0x40049409]


def test_the_registers_file_is_plain_json(four: Sold) -> None:
    told = json.loads((four.folder / "copies.json").read_text())
    assert told["format"] == "neuralmark-copies/1"
    assert [copy["buyer"] for copy in told["copies"]] == list(LABELS)


def test_what_cannot_be_marked_leaves_no_folder(tmp_path: Path) -> None:
    architectures.llama().save_pretrained(tmp_path / "llama")  # type: ignore[operator]
    wrong = CopyOptions(heads=7)
    for out in (tmp_path / "new", tmp_path / "there"):
        if out.name == "there":
            out.mkdir()
        with pytest.raises(ParameterError, match="7 attention heads"):
            issue_copies(tmp_path / "llama", owners_key(), ["Acme"], out, wrong)
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "there").is_dir()
