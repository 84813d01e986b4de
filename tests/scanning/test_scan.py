"""Whole scans: real workers in a real sandbox, killed, starved and lied to."""

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuralmark import (
    EmbedOptions,
    Key,
    ScanOptions,
    Verdict,
    VerifyOptions,
    embed,
    scan,
    verify,
)
from neuralmark.errors import MissingExtraError, ParameterError, ScanMismatchError
from neuralmark.sandbox.limits import SandboxLimits
from neuralmark.scanning import planning, readers, running, targets
from neuralmark.scanning.running import Tally
from tests.support import hostile
from tests.support.commands import PYTHON
from tests.support.models import gaussian, gaussian_model, sharded_model
from tests.support.paths import ROOT
from tests.support.processes import PATIENCE
from tests.support.scans import (
    ONE,
    by_name,
    keys_of,
    mark,
    mirrored,
    models_in,
    permuted,
    same,
    statuses,
)

MARKED = 2, 3


def case(folder: Path) -> tuple[dict[str, Key], Path]:
    """Six models, two of them marked with keys that are searched for, and three keys."""
    keys = keys_of("a", "b", "c")
    models = models_in(folder, 6)
    mark(models[MARKED[0]], keys["a.nmkey"])
    mark(models[MARKED[1]], keys["b.nmkey"])
    return keys, folder


def test_every_mark_is_found_and_nothing_else(tmp_path: Path) -> None:
    keys, models = case(tmp_path / "models")
    seen: list[Tally] = []
    result = scan(
        [models],
        keys,
        tmp_path / "out",
        options=ScanOptions(jobs=2),
        watch=lambda tally: seen.append(replace(tally)),
    )
    assert result.counts == {"nothing": 4, "verified": 2}
    assert result.verified
    assert (result.targets, result.marks, result.round) == (6, 3, 1)
    assert result.correction == "3 marks x 6 targets x their ways of looking"
    assert result.protection is not None
    assert result.protection.whole
    found = {row.target: row for row in result.rows() if row.found}
    assert [Path(target).name for target in found] == [
        "marked-02.safetensors",
        "marked-03.safetensors",
    ]
    assert [row.key_name for row in found.values()] == ["a.nmkey", "b.nmkey"]
    assert seen[-1].done == 6
    assert seen[-1].by_status == result.counts
    assert {row.target for row in seen[-1].latest} == set(found)
    lost = next(row for row in result.rows() if not row.found)
    assert lost.why.startswith("3 of 3 marks looked for in ")
    assert "bits match" in lost.why
    assert (lost.format, lost.weights) == ("safetensors", 128 * 128 + 128 + 96 * 128)
    assert (lost.verdict, lost.error, lost.key) == (None, None, None)


def test_that_claims_were_left_out_is_noted(tmp_path: Path) -> None:
    """The mark has an anchor: a search does not find it, its claim does."""
    keys, claims = keys_of("a"), tmp_path / "claims"
    models = tmp_path / "models"
    mark(models_in(models, 1)[0], keys["a.nmkey"], claims, EmbedOptions())
    result = scan([models], keys, tmp_path / "out", options=ONE)
    assert result.counts == {"nothing": 1}
    (note,) = result.notes
    assert "no claim of these keys was given" in note
    assert "a mark with an anchor" in note
    found = scan([models], keys, tmp_path / "found", claims=claims, options=ONE)
    assert (found.verified, found.notes) == (True, ())
    anchors = list(claims.glob("*.anchor"))
    for claim in claims.glob("*.json"):
        claim.unlink()
    assert scan([models], keys, tmp_path / "by", anchors=anchors, options=ONE).notes == ()
    mark(gaussian_model(tmp_path / "m.safetensors"), keys["a.nmkey"])
    alone = scan([tmp_path / "marked-m.safetensors"], keys, tmp_path / "alone", options=ONE)
    assert (alone.verified, alone.notes) == (True, ())


def test_keys_that_have_no_anchors_need_no_claims(tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).standard_normal((320, 160)).astype("float32")
    raw = Key.raw(matrix, rounds=1, pooling="strided")
    models = models_in(tmp_path / "models", 1)
    result = scan(models, [raw], tmp_path / "out", options=ONE)
    assert (result.counts, result.notes) == ({"nothing": 1}, ())


def without_trials(verdict: Verdict) -> Verdict:
    """Without what the correction changes; the radius is that of another boundary."""
    return replace(
        verdict,
        trials=0,
        boundary=None,
        bound_log2=0.0,
        full_match_bound_log2=0.0,
        reason="",
        date=None,
        certified_radius=None,
        certified_radius_relative=None,
    )


def test_findings_have_the_verdict_of_verify(tmp_path: Path) -> None:
    """Searched for, with a claim, with a claim beside the model, with an anchor."""
    keys, models = case(tmp_path / "models")
    claims = tmp_path / "claims"
    more = models_in(models / "more", 2)
    claimed = mark(more[0], keys["c.nmkey"], claims)
    new = keys_of("d", "e")
    anchored = mark(more[1], new["d.nmkey"], claims, EmbedOptions())
    third = gaussian_model(models / "more" / "beside.safetensors", 500)
    embed(third, new["e.nmkey"], models / "more" / "own.safetensors")
    third.unlink()
    result = scan([models], keys | new, tmp_path / "out", claims=claims, options=ONE)
    found = {row.target: row for row in result.rows() if row.found}
    assert len(found) == 5
    files = {str(claimed): claims / f"{claimed.name}.claim.json"}
    files[str(anchored)] = claims / f"{anchored.name}.claim.json"
    for target, row in found.items():
        assert row.verdict is not None
        verdict = Verdict.from_dict(row.verdict)
        key = (keys | new)[str(row.key_name)]
        among = VerifyOptions(among=5 * 9)
        again = verify(target, key, claim=files.get(target), options=among)
        assert replace(again, date=verdict.date) == verdict
        alone = verify(target, key, claim=files.get(target))
        assert without_trials(alone) == without_trials(verdict)
        assert verdict.trials == 45 * alone.trials
        assert (row.matched, row.bits, row.trials) == (
            verdict.matched,
            verdict.bits,
            verdict.trials,
        )
        assert row.claim == verdict.claim_digest


def test_weights_that_went_elsewhere_are_found_with_the_anchor(tmp_path: Path) -> None:
    keys = keys_of("a")
    claims = tmp_path / "claims"
    models = models_in(tmp_path / "models", 1)
    marked = mark(models[0], keys["a.nmkey"], claims, EmbedOptions())
    moved = permuted(marked, tmp_path / "moved.safetensors")
    other = {"layer1.weight": np.ones((128, 128), np.float32), "layer2.weight": gaussian(96, 128)}
    save_file(other, tmp_path / "other.safetensors")
    targets = [moved, tmp_path / "other.safetensors"]
    result = scan(targets, keys, tmp_path / "out", claims=claims, options=ONE)
    assert statuses(result) == {"moved.safetensors": "verified", "other.safetensors": "nothing"}
    never = ScanOptions(jobs=1, align="never")
    result = scan(targets, keys, tmp_path / "never", claims=claims, options=never)
    assert result.counts == {"nothing": 2}
    assert "headers and shapes rule every mark out" in by_name(result)["moved.safetensors"][0].why
    always = ScanOptions(jobs=1, align="all")
    result = scan(targets[1:], keys, tmp_path / "all", claims=claims, options=always)
    assert "put in order for 1 of them" in by_name(result)["other.safetensors"][0].why


def test_bad_files_are_rows(tmp_path: Path) -> None:
    keys, models = case(tmp_path / "models")
    (models / "cut.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{bad")
    (models / "new\nline.safetensors").write_bytes(b"")
    (models / "folder.safetensors").mkdir()
    sharded_model(models / "shards")
    torn = models / "torn.safetensors"
    torn.write_bytes(gaussian_model(tmp_path / "whole.safetensors").read_bytes()[:-50])
    packed: dict[str, Any] = {
        "layer1.W_q": np.zeros((128, 128), np.uint8),
        "layer1.scale": gaussian(128),
    }
    save_file(packed, models / "packed.safetensors")
    broken = load_file(tmp_path / "whole.safetensors")
    broken["layer1.weight"][3, 4] = np.nan
    save_file(broken, models / "nan.safetensors")
    given: list[str | Path] = [models, tmp_path / "none.npz", "nosuch://place/x.safetensors", "\0"]
    result = scan(given, keys, tmp_path / "out", options=ONE)
    rows = by_name(result)
    errors = {name: row.error for name, (row, *_) in rows.items() if row.status == "error"}
    assert set(errors) >= {"cut.safetensors", "new\nline.safetensors", "torn.safetensors"}
    assert set(errors) >= {"none.npz", "x.safetensors", "\0"}
    assert errors["cut.safetensors"] == errors["torn.safetensors"] == "MalformedError"
    assert rows["packed.safetensors"][0].status == "unreadable"
    assert "could not be read" in rows["packed.safetensors"][0].why
    assert rows["nan.safetensors"][0].status == "unreadable"
    assert "NaN" in rows["nan.safetensors"][0].why
    assert rows["model.safetensors.index.json"][0].status == "nothing"
    assert result.counts["verified"] == 2
    assert result.targets == sum(len(each) for each in rows.values())


def test_hostile_readers_are_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real plug-ins that do harm, in the sandbox; the models beside them get their rows."""
    hostile.install(tmp_path / "plug", monkeypatch)
    keys, models = case(tmp_path / "models")
    kept = tmp_path / "kept"
    kept.write_text("kept")
    harm = {
        **{"allocate": "", "loop": "", "crash": "", "fault": "", "start": "", "connect": 9},
        **{"write": tmp_path / "written", "remove": kept},
    }
    for what, more in harm.items():
        hostile.model(models / f"{what}.bin", what, more)
    limits = SandboxLimits(memory=1 << 30, seconds=3)
    result = scan([models], keys, tmp_path / "out", options=ScanOptions(jobs=2, sandbox=limits))
    rows = by_name(result)
    assert {what: rows[f"{what}.bin"][0].error for what in harm} == {
        "allocate": "MemoryLimitError",
        "loop": "TimeLimitError",
        "crash": "SandboxError",
        "fault": "KeyError",
        "start": "CheckpointError",
        "connect": "CheckpointError",
        "write": "CheckpointError",
        "remove": "CheckpointError",
    }
    assert "Operation not permitted" in rows["write.bin"][0].why
    assert result.counts == {"error": len(harm), "nothing": 4, "verified": 2}
    assert kept.read_text() == "kept"
    assert not (tmp_path / "written").exists()


def test_without_a_sandbox_a_dead_worker_is_still_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile.install(tmp_path / "plug", monkeypatch)
    keys, models = case(tmp_path / "models")
    hostile.model(models / "crash.bin", "crash")
    hostile.model(models / "write.bin", "write", tmp_path / "written")
    result = scan([models], keys, tmp_path / "out", options=ScanOptions(jobs=1, sandbox=None))
    rows = by_name(result)
    assert rows["crash.bin"][0].error == "SandboxError"
    assert rows["write.bin"][0].error == "AssertionError"  # it wrote: nothing prevented it
    assert (tmp_path / "written").exists()
    assert result.protection is None
    assert result.counts["verified"] == 2


KILLED = """
import os, signal, sys
from pathlib import Path
from typing import Any
import neuralmark
from neuralmark.scanning import running

stop = int(sys.argv[4])
running.AT_ONCE, running.WINDOW = 1, int(sys.argv[5])


def watch(tally):
    if tally.done >= stop:
        os.kill(os.getpid(), signal.SIGKILL)


one = neuralmark.ScanOptions(jobs=1)
neuralmark.scan([sys.argv[1]], sys.argv[2], sys.argv[3], options=one, watch=watch)
print("finished")
"""


def test_a_killed_scan_goes_on_with_the_same_rows(tmp_path: Path) -> None:
    """kill -9 after one, two, … finished models, and once with a torn last line."""
    keys, models = case(tmp_path / "models")
    (models / "cut.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{bad")
    folder = tmp_path / "keys"
    folder.mkdir()
    for name, key in keys.items():
        key.save(folder / name, None)
    whole = scan([models], folder, tmp_path / "whole", options=ONE)
    out = tmp_path / "out"
    codes = []
    for stop in (1, 3, 5, 99):
        done = subprocess.run(
            [PYTHON, "-c", KILLED, str(models), str(folder), str(out), str(stop), "2"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        codes.append(done.returncode)
        if done.returncode:
            with (out / "journal-0001.jsonl").open("ab") as file:
                file.write(b'{"number": 6, "rows": [{"tar')  # what a crash of the machine leaves
    assert codes == [-signal.SIGKILL] * 3 + [0], done.stderr
    again = scan([models], folder, out, options=ONE)
    assert same(again.rows()) == same(whole.rows())
    journal = (out / "journal-0001.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["number"] for line in journal) == list(range(7))


def test_a_finished_scan_gives_its_results_again(tmp_path: Path) -> None:
    keys, models = case(tmp_path / "models")
    first = scan([models], keys, tmp_path / "out", options=ONE)
    for model in models.iterdir():
        model.unlink()
    again = scan([models], keys, tmp_path / "out", options=ScanOptions(jobs=2, sandbox=None))
    assert same(again.rows()) == same(first.rows())
    assert again.protection == first.protection


def test_another_scan_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    keys, models = case(tmp_path / "models")
    out = tmp_path / "out"
    scan([models], keys, out, options=ONE)
    with pytest.raises(ScanMismatchError, match="differs in its keys"):
        scan([models], keys_of("z"), out, options=ONE)
    with pytest.raises(ScanMismatchError, match="differs in its targets"):
        scan([models / "00.safetensors"], keys, out, options=ONE)
    anew = ScanOptions(jobs=1, overwrite=True)
    assert scan([models / "00.safetensors"], keys, out, options=anew).targets == 1
    (out / "scan.json").write_text("{")
    with pytest.raises(ScanMismatchError, match="damaged"):
        scan([models], keys, out, options=ONE)
    with pytest.raises(ScanMismatchError, match="is not empty"):
        scan([models], keys, models, options=ONE)


def test_windows_and_workers_do_not_change_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, models = case(tmp_path / "models")
    gaussian_model(models / "wide.safetensors", 900, rows=256)
    whole = scan([models], keys, tmp_path / "whole", options=ONE)
    monkeypatch.setattr(running, "WINDOW", 3)
    monkeypatch.setattr(running, "AT_ONCE", 2)
    monkeypatch.setattr(planning, "MOST_TOGETHER", 1)
    cut = scan([models], keys, tmp_path / "cut", options=ScanOptions(jobs=3))
    assert same(cut.rows()) == same(whole.rows())


def test_watching_tells_what_is_new(tmp_path: Path) -> None:
    keys, models = case(tmp_path / "models")
    rounds: list[tuple[int, dict[str, int]]] = []

    def look(result: object) -> None:
        assert isinstance(result, type(first))
        rounds.append((result.targets, result.new))
        if len(rounds) == 2:
            os.utime(models / "00.safetensors")
            mark(gaussian_model(models / "late.safetensors", 700), keys["c.nmkey"])

    watching = ScanOptions(jobs=1, every=0.01, rounds=1)
    first = scan([models], keys, tmp_path / "out", options=watching)
    assert first.correction.endswith("x 2 for round 1 of watching")
    rounds.append((first.targets, first.new))
    more = replace(watching, rounds=2)
    last = scan([models], keys, tmp_path / "out", options=more, finished=look)
    assert rounds == [
        (6, {"nothing": 4, "verified": 2}),
        (0, {}),
        (2, {"nothing": 1, "verified": 1}),
    ]
    assert last.round == 3
    assert last.counts == {"nothing": 5, "verified": 3}
    new = [row for row in last.rows() if row.round == 3]
    assert [Path(row.target).name for row in new] == ["00.safetensors", "marked-late.safetensors"]
    assert new[1].trials is not None
    assert new[1].trials % (3 * 2 * 12) == 0  # marks x targets x 3 · 4


def test_far_models_are_read_by_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has no network and no such address: what it reads, its parent hands over."""
    keys, models = case(tmp_path / "models")
    for module in (targets, readers):
        monkeypatch.setattr(module, "place_of", mirrored)
    result = scan([f"mirror://{models}"], keys, tmp_path / "out", options=ScanOptions(jobs=2))
    assert result.counts == {"nothing": 4, "verified": 2}
    near = scan([models], keys, tmp_path / "near", options=ONE)
    for far, here in zip(result.rows(), near.rows(), strict=True):
        assert far.target == f"mirror://{here.target}"
        assert (far.status, far.key, far.matched, far.trials) == (
            *(here.status, here.key, here.matched, here.trials),
        )


def test_what_is_older_is_left_out(tmp_path: Path) -> None:
    keys, models = case(tmp_path / "models")
    os.utime(models / "00.safetensors", (1e9, 1e9))
    chosen = ScanOptions(jobs=1, since=1.5e9)
    assert scan([models], keys, tmp_path / "out", options=chosen).targets == 5


def test_a_target_that_is_named_twice_is_looked_at_once(tmp_path: Path) -> None:
    keys, models = case(tmp_path / "models")
    target = models / "00.safetensors"
    listed = tmp_path / "list"
    listed.write_text(f"{target}\n{target}\n")
    assert scan([target], keys, tmp_path / "out", lists=[listed], options=ONE).targets == 1


def test_rows_as_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, models = case(tmp_path / "models")
    (models / os.fsdecode(b"\xff.npz")).write_bytes(b"?")
    lines = scan([models], keys, tmp_path / "lines", options=ONE)
    chosen = ScanOptions(jobs=1, form="parquet")
    table = scan([models], keys, tmp_path / "table", options=chosen)
    assert table.rows_file.name == "rows.parquet"
    assert same(table.rows()) == same(lines.rows())
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'neuralmark\[parquet\]'"):
        scan([models], keys, tmp_path / "none", options=chosen)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"jobs": 0},
        {"engine": "dask"},
        {"form": "csv"},
        {"align": "some"},
        {"every": 0},
        {"rounds": 0},
        {"sandbox": True},
        {"effort": 0},
    ],
)
def test_options_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        ScanOptions(**wrong)  # type: ignore[arg-type]
