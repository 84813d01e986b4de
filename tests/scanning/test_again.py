"""Scans where results are: what differs is named, what is new is told, nothing old stays."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from neuralmark import EmbedOptions, Key, ScanOptions, ScanResult, scan
from neuralmark.errors import ScanMismatchError
from tests.support.models import gaussian_model
from tests.support.scans import ONE, keys_of, mark, models_in

WATCHING = ScanOptions(jobs=1, every=0.01, rounds=1)


@pytest.fixture
def keys() -> dict[str, Key]:
    """A key."""
    return keys_of("a")


@pytest.fixture
def models(tmp_path: Path, keys: dict[str, Key]) -> Path:
    """A folder of two models, one of them marked."""
    folder = tmp_path / "models"
    mark(models_in(folder, 2)[1], keys["a.nmkey"])
    return folder


def refused(*words: object, **more: object) -> str:
    """What a scan in a folder of another says."""
    with pytest.raises(ScanMismatchError) as error:
        scan(*words, **more)  # type: ignore[arg-type]
    return str(error.value)


def test_what_differs_is_named(tmp_path: Path, keys: dict[str, Key], models: Path) -> None:
    out = tmp_path / "out"
    scan([models], keys, out, options=ONE)
    said = refused([models], keys_of("z"), out, options=ONE)
    assert "differs in its keys: " in said
    said = refused([models / "00.safetensors"], keys, out, options=ONE)
    assert "differs in its targets: " in said
    listed = tmp_path / "list"
    listed.write_text("x\n")
    assert "its lists of targets: " in refused([models], keys, out, lists=[listed], options=ONE)
    never = ScanOptions(jobs=1, align="never", effort=0.5)
    said = refused([models], keys, out, options=never)
    assert "differs in align ('alike', now 'never') and effort (1.0, now 0.5): " in said
    assert "overwrite=True" in said
    said = refused([models], keys_of("z"), out, options=WATCHING)
    assert "differs in its keys and watching (no, now yes): " in said
    claims = tmp_path / "claims"
    mark(gaussian_model(tmp_path / "m.safetensors"), keys["a.nmkey"], claims, EmbedOptions())
    said = refused([models], keys, out, claims=claims, options=ONE)
    assert "differs in its claims or anchors: " in said


def test_an_older_record_does_not_tell_what_differs(
    tmp_path: Path, keys: dict[str, Key], models: Path
) -> None:
    out = tmp_path / "out"
    scan([models], keys, out, options=ONE)
    told = json.loads((out / "scan.json").read_text())
    (out / "scan.json").write_text(json.dumps({**told, "parts": {}}))
    assert "in keys, targets or options" in refused([models], keys_of("z"), out, options=ONE)


def test_what_was_added_is_told(tmp_path: Path, keys: dict[str, Key], models: Path) -> None:
    out = tmp_path / "out"
    assert scan([models], keys, out, options=ONE).added == 0
    assert scan([models], keys, out, options=ONE).added == 0
    models_in(models / "more", 3)
    again = scan([models], keys, out, options=ONE)
    assert (again.added, again.targets) == (3, 2)
    anew = scan([models], keys, out, options=replace(ONE, overwrite=True))
    assert (anew.added, anew.targets) == (0, 5)


def test_a_scan_that_goes_on_tells_what_was_added(
    tmp_path: Path, keys: dict[str, Key], models: Path
) -> None:
    out = tmp_path / "out"

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan([models], keys, out, options=ONE, watch=stop)
    models_in(models / "more", 1)
    result = scan([models], keys, out, options=ONE)
    assert (result.added, result.targets, result.verified) == (1, 2, True)


def test_times_before_now_do_not_make_it_another_scan(
    tmp_path: Path, keys: dict[str, Key], models: Path
) -> None:
    """`7d` is another moment at every call, for cron above all."""
    out = tmp_path / "out"
    first = replace(WATCHING, since=1e9)
    assert scan([models], keys, out, options=first).round == 1
    assert scan([models], keys, out, options=replace(first, since=1e9 + 1)).round == 2


def test_begun_anew_nothing_of_the_former_scan_stays(
    tmp_path: Path, keys: dict[str, Key], models: Path
) -> None:
    out = tmp_path / "out"
    (out / "verdicts").mkdir(parents=True)
    scan([models], keys, tmp_path / "other", options=WATCHING)
    shutil.copytree(tmp_path / "other", out, dirs_exist_ok=True)
    (out / "verdicts" / "0007.html").write_text("old")
    (out / "verdicts" / "mine.html").write_text("mine")
    anew = replace(WATCHING, overwrite=True, form="parquet")
    result = scan([models], keys_of("z"), out, options=anew)
    assert (result.round, result.targets) == (1, 2)  # with another key, all are looked at again
    assert not (out / "rows.jsonl").exists()
    assert [page.name for page in (out / "verdicts").iterdir()] == ["mine.html"]


def test_a_round_that_was_not_told_is_told_again(
    tmp_path: Path, keys: dict[str, Key], models: Path
) -> None:
    def stop(_: ScanResult) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan([models], keys, tmp_path / "out", options=WATCHING, finished=stop)
    result = scan([models], keys, tmp_path / "out", options=WATCHING)
    assert (result.round, result.new) == (1, {"nothing": 1, "verified": 1})


def test_what_earlier_rounds_saw_may_be_damaged(
    tmp_path: Path, keys: dict[str, Key], models: Path
) -> None:
    scan([models], keys, tmp_path / "out", options=WATCHING)
    (tmp_path / "out" / "seen.sqlite").write_bytes(b"?" * 4096)
    assert "damaged" in refused([models], keys, tmp_path / "out", options=WATCHING)


def test_by_what_readers_were_confined_is_kept(
    tmp_path: Path, keys: dict[str, Key], models: Path
) -> None:
    out = tmp_path / "out"
    free = replace(ONE, sandbox=None)
    first = scan([models], keys, out, options=ONE)
    assert first.protection is not None
    assert scan([models], keys, out, options=ONE).protection == first.protection
    assert scan([models], keys, out, options=free).protection == first.protection
    watched = tmp_path / "watched"
    assert scan([models], keys, watched, options=WATCHING).protection == first.protection
    models_in(models / "more", 1)
    unconfined = replace(WATCHING, sandbox=None)
    assert scan([models], keys, watched, options=unconfined).protection is None
    assert scan([models], keys, watched, options=WATCHING).protection is None  # not all were
