"""`neuralmark scan`, and `verify` in a sandbox."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from neuralmark import Key, Verdict, VerifyOptions, schemes, verify
from neuralmark.cli import _scanned
from neuralmark.scanning.running import Tally
from tests.support import hostile
from tests.support.commands import call, on_terminal
from tests.support.models import QUICK, gaussian_model
from tests.support.scans import keys_of, mark, models_in


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A folder of two keys."""
    folder = tmp_path / "keys"
    folder.mkdir()
    for name, key in keys_of("a", "b").items():
        key.save(folder / name, None)
    return folder


def test_a_finding_is_exit_code_0(tmp_path: Path, keys: Path) -> None:
    models = models_in(tmp_path / "models", 3)
    marked = mark(models[1], Key.load(keys / "a.nmkey"))
    out = tmp_path / "out"
    done = call("scan", tmp_path / "models", "--keys", keys, "-o", out, "--jobs", 1)
    assert done.code == 0, done
    assert "SOMETHING VERIFIED" in done.out
    assert str(marked) in done.out
    assert "2 marks x 3 targets x their ways of looking" in done.out
    assert "no network (seccomp)" in done.out
    assert f"verified: {marked} (a.nmkey)" in done.err
    assert str(marked) in (out / "index.html").read_text().replace("<wbr>", "")
    verdict = Verdict.load(out / "verdicts" / "0001.json")
    assert verdict.verified
    again = verify(marked, Key.load(keys / "a.nmkey"), options=VerifyOptions(among=6))
    assert again.trials == verdict.trials
    assert "verified" in (out / "verdicts" / "0001.html").read_text().lower()
    words = [out / "verdicts" / "0001.json", marked, "--key", keys / "a.nmkey"]
    assert call("recheck", *words, "--among", 6).code == 0
    alone = call("recheck", *words)  # it would be another bound
    assert alone.code == 1
    assert "--among 6" in alone.out
    told = call("scan", tmp_path / "models", "--keys", keys, "-o", out, "--jobs", 1, "--json").json
    assert told["verified"]
    assert told["counts"] == {"nothing": 2, "verified": 1}
    assert [row["target"] for row in told["findings"]] == [str(marked)]
    assert len(Path(told["rows"]).read_text().splitlines()) == 3


def test_several_keys_are_all_looked_for(tmp_path: Path) -> None:
    """Files and folders, two of one name, and a key that is named twice."""
    places = [tmp_path / name for name in ("one/k.nmkey", "two/k.nmkey", "more/c.nmkey")]
    models = models_in(tmp_path / "models", 4)
    for path, model, key in zip(places, models, keys_of("a", "b", "c").values(), strict=False):
        path.parent.mkdir()
        key.save(path, None)
        mark(model, key)
    words = ["--keys", places[0], "--keys", places[1], "--keys", tmp_path / "more"]
    words += ["--keys", places[0], "-o", tmp_path / "out", "--jobs", 1, "--json"]
    told = call("scan", tmp_path / "models", *words).json
    assert told["correction"] == "3 marks x 4 targets x their ways of looking"
    assert told["counts"] == {"nothing": 1, "verified": 3}
    names = {row["key_name"] for row in told["findings"]}
    assert names == {"k.nmkey", str(places[1]), "c.nmkey"}


def test_that_claims_were_left_out_is_said_once(tmp_path: Path, keys: Path) -> None:
    gaussian_model(tmp_path / "m.safetensors")
    words = ["scan", tmp_path / "m.safetensors", "--keys", keys, "--jobs", 1]
    done = call(*words, "-o", tmp_path / "out", "--every", "0.01s", "--rounds", 2)
    assert done.err.count("found only by its claim: give --claims") == 1
    told = call(*words, "-o", tmp_path / "json", "--json")
    assert told.err == ""
    (note,) = told.json["notes"]
    assert note.endswith("give --claims")
    claims = tmp_path / "claims"
    mark(tmp_path / "m.safetensors", Key.load(keys / "a.nmkey"), claims)
    words = ["scan", tmp_path / "marked-m.safetensors", *words[2:], "--claims", claims]
    done = call(*words, "-o", tmp_path / "claimed")
    assert (done.code, done.err.count("--claims")) == (0, 0)
    assert call(*words, "-o", tmp_path / "claimed", "--json").json["notes"] == []


def test_a_broken_key_hides_no_other(tmp_path: Path, keys: Path) -> None:
    """Passports that were made for other layers: `verify` does not look for them either."""
    chosen = schemes.parameters("deepipr", bits=96)
    bad = Key.chosen(chosen, np.ones((7, 96), "f4"), bits=np.ones(96, np.uint8))
    bad.save(keys / "bad.nmkey", None)
    models = models_in(tmp_path / "models", 2)
    marked = mark(models[1], Key.load(keys / "a.nmkey"))
    words = ["scan", tmp_path / "models", "--keys", keys, "-o", tmp_path / "out", "--jobs", 1]
    done = call(*words)
    assert done.code == 0, done
    assert f"{marked}" in done.out
    assert done.out.count("bad.nmkey: these passports have ") == 2
    told = call(*words, "--json").json
    assert told["counts"] == {"error": 2, "nothing": 1, "verified": 1}
    assert {each["error"] for each in told["errors"]} == {"PassportMismatchError"}
    call("verify", marked, "--key", keys / "bad.nmkey").failed(2, "PassportMismatchError")


def test_nothing_is_exit_code_1(tmp_path: Path, keys: Path) -> None:
    gaussian_model(tmp_path / "m.safetensors")
    listed = tmp_path / "list"
    listed.write_text(f"{tmp_path / 'm.safetensors'}\nnone.npz\n")
    words = ["--keys", keys, "-o", tmp_path / "out", "--jobs", 1, "--no-sandbox", "--json"]
    done = call("scan", "--from", listed, *words)
    assert done.code == 1
    assert done.json["counts"] == {"error": 1, "nothing": 1}
    assert done.json["sandbox"] is None
    assert done.err == ""


def test_wrong_usage_is_named(tmp_path: Path, keys: Path) -> None:
    out = tmp_path / "out"
    call("scan", "--keys", keys, "-o", out).failed(2, "UsageError")
    call("scan", "x", "--keys", keys, "-o", out, "--rounds", 2).failed(2, "UsageError")
    call("scan", "x", "--keys", keys, "-o", out, "--every", "soon").failed(2, "BadParameter")
    call("scan", "x", "--keys", keys, "-o", out, "--memory", "lots").failed(2, "BadParameter")
    call("scan", "x", "--keys", keys, "-o", out, "--since", "long ago").failed(2, "BadParameter")
    call("scan", "x", "--keys", tmp_path / "none", "-o", out).failed(3, "KeyFileError")
    call("scan", "x", "--keys", keys, "-o", keys).failed(2, "ScanMismatchError")


def test_watching_ends_after_its_rounds(tmp_path: Path, keys: Path) -> None:
    gaussian_model(tmp_path / "m.safetensors")
    words = ["--keys", keys, "-o", tmp_path / "out", "--jobs", 1, "--since", "2020-01-01"]
    done = call("scan", tmp_path / "m.safetensors", *words, "--every", "0.01s", "--rounds", 2)
    assert done.code == 1
    assert done.out.count("NOTHING VERIFIED") == 1
    assert "x 2 for round 1 of watching" in done.out
    assert done.out.endswith("round 2: nothing new\n")


def test_a_pipe_is_told_how_far_it_is(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while no model is finished: the one that there is keeps its reader busy."""
    monkeypatch.setattr(_scanned, "BETWEEN", 0.2)
    hostile.install(tmp_path / "plug", monkeypatch)
    hostile.model(tmp_path / "loop.bin", "loop")
    words = ["--keys", keys, "-o", tmp_path / "out", "--jobs", 1, "--time-limit", "2s"]
    done = call("scan", tmp_path / "loop.bin", *words)
    assert done.err.count("0 of 1 model, 2 marks; none finished in ") > 5, done
    assert "TimeLimitError" in done.out


def test_how_far_and_how_fast_it_is_is_told() -> None:
    """What the table on a terminal has above it; a real scan may end before that is drawn."""
    far = _scanned._HowFar()
    assert far.line() == "searching the targets for models"
    tally = Tally(targets=4, marks=3, by_status={"nothing": 2})
    far.take(tally)
    assert far.line() == "0 of 4 models, 3 marks; starting"
    assert far.table().title.plain == far.line()
    tally.done = 2
    assert re.fullmatch(r"2 of 4 models, 3 marks; \S+ models/s, about \S+ s left", far.line())
    tally.done = 4
    assert far.line() == ""


def test_a_stopped_scan_says_that_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt), _scanned.kept_when_stopped(tmp_path):
        raise KeyboardInterrupt
    assert f"kept in {tmp_path}: the same command goes on" in capsys.readouterr().err


def test_keys_with_passphrases(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    for name, word in (("a", "one"), ("b", "one"), ("c", "two")):
        Key.new(QUICK).save(folder / f"{name}.nmkey", word, cost=10)
    gaussian_model(tmp_path / "m.safetensors")
    words = ["scan", tmp_path / "m.safetensors", "--keys", folder, "-o", tmp_path / "out"]
    call(*words).failed(2, "PassphraseError")
    call(*words, env={"NEURALMARK_PASSPHRASE": "one"}).failed(3, "WrongPassphraseError")
    code, screen = on_terminal(*words, "--jobs", 1, answers=["one", "two"])
    assert code == 1, screen
    assert screen.count("Passphrase of") == 2
    assert "NOTHING VERIFIED" in screen
    assert (
        "\x1b[?25l" in screen
    )  # how far it is, in a place of its own; a scan may end before it is drawn


def test_verify_in_a_sandbox_gives_the_same_verdict(marked: Path, key: Path) -> None:
    here = call("verify", marked, "--key", key, "--json")
    apart = call("verify", marked, "--key", key, "--json", "--sandbox", "--memory", "1G")
    assert apart.code == here.code == 0, apart
    assert {**here.json, "date": 0} == {**apart.json, "date": 0}
    many = call("verify", marked, "--key", key, "--json", "--among", 1000)
    assert many.json["trials"] == 1000 * here.json["trials"]
    call("verify", marked, "--key", key, "--among", 0).failed(2, "ParameterError")


def test_what_happens_in_the_sandbox_has_a_name(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile.install(tmp_path / "plug", monkeypatch)
    words = ["--key", key, "--sandbox", "--memory", "1G", "--time-limit"]
    named = {
        **{"allocate": "MemoryLimitError", "loop": "TimeLimitError", "crash": "SandboxError"},
        "write": "CheckpointError",
    }
    for what, error in named.items():
        model = hostile.model(tmp_path / f"{what}.bin", what, tmp_path / "written")
        limit = "2s" if what == "loop" else "60s"
        line = call("verify", model, *words, limit).failed(3, error)
        if "Limit" in error:
            assert "--memory" in line or "--time-limit" in line
    assert not (tmp_path / "written").exists()
    assert json.loads(call("verify", model, *words, "60s", "--json").out)["exit_code"] == 3
