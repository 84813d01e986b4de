"""neuralmark arbitrate: exit codes, what is printed, and errors that name the party."""

import os
import subprocess
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from neuralmark import EmbedOptions, Key, embed
from tests.support.commands import PYTHON, call, clean_environment, on_terminal
from tests.support.models import gaussian_model, plain_key


@pytest.fixture
def thief(tmp_path: Path) -> Path:
    return plain_key(tmp_path / "thief.nmkey")


@pytest.fixture
def stolen(marked: Path, thief: Path, tmp_path: Path) -> Path:
    """The owner's model with the thief's mark written over it."""
    out = tmp_path / "stolen.safetensors"
    embed(marked, Key.load(thief), out, options=EmbedOptions(strength=1.5))
    return out


@pytest.fixture
def parties(key: Path, marked: Path, thief: Path, stolen: Path) -> list[object]:
    return ["--claimant", "Acme", key, marked, "--claimant", "Bandit", thief, stolen]


def test_decided(parties: list[object], stolen: Path) -> None:
    result = call("arbitrate", *parties, "--disputed", stolen)
    assert (result.code, result.err) == (0, "")
    assert "OWNER: Acme" in result.out
    for words in ("exhibit of Bandit", "disputed model", "absent (", "160 of 160 bits", "because:"):
        assert words in result.out
    assert "the exhibit of Acme and the disputed model: related (correlation 0.9" in result.out


def test_undecided(key: Path, thief: Path, model: Path) -> None:
    words = ("--claimant", "a", key, model, "--claimant", "b", thief, model)
    result = call("arbitrate", *words)
    assert (result.code, result.err) == (1, "")
    assert "UNDECIDED" in result.out
    assert "a: its mark is absent from the exhibit of a" in result.out


def test_the_anchor_of_another_claim(parties: list[object], thief: Path, stolen: Path) -> None:
    result = call("arbitrate", *parties, "--anchor", "Acme", f"{stolen}.anchor")
    assert "give the key that made it" in result.failed(2, "AnchorMismatchError")
    other = stolen.with_name("other.safetensors")
    embed(gaussian_model(other, seed=71), Key.load(thief), other.with_name("o.safetensors"))
    given = other.with_name("o.safetensors.anchor")
    told = call("arbitrate", *parties, "--anchor", "Bandit", given).failed(2, "AnchorMismatchError")
    assert "the claim of Bandit: this is not the anchor of the claim beside the model" in told


def test_an_anchor_that_was_left_behind(parties: list[object], marked: Path, stolen: Path) -> None:
    Path(f"{marked}.anchor").unlink()
    assert "caution" not in call("arbitrate", *parties).out  # found in its place everywhere
    turned = {name: value[::-1].copy() for name, value in load_file(stolen).items()}
    save_file(turned, stolen)
    result = call("arbitrate", *parties)
    assert result.code == 1
    told = " ".join(result.out.split())
    assert "the mark of Acme has an anchor, which was neither given nor found beside" in told
    assert "(--anchor NAME FILE)" in told
    assert "the mark of Bandit has an anchor" not in told


def test_set_aside(
    parties: list[object], key: Path, thief: Path, marked: Path, stolen: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.safetensors"
    embed(gaussian_model(tmp_path / "apart.safetensors", seed=70), Key.load(thief), own)
    words = ("--claimant", "Acme", key, marked, "--claimant", "Bandit", thief, own)
    result = call("arbitrate", *words, "--disputed", stolen)
    assert result.code == 1
    assert "set aside:" in result.out
    assert "the exhibit of Bandit and the disputed model: unrelated" in result.out
    assert "caution:" in result.out


def test_json(parties: list[object], marked: Path) -> None:
    more = ("--claim", "Acme", f"{marked}.claim.json", "--commitment", "Acme", "2024-05-01")
    result = call("arbitrate", *parties, *more, "--json")
    assert (result.code, result.json["owner"]) == (0, "Acme")
    assert result.json["commitments"][0]["remark"] == "as stated, not checked"
    # the thief's claim lies beside his exhibit
    assert [s["trials"] for s in result.json["sightings"]] == [2, 2, 2, 2]
    told = call("arbitrate", *parties, *more)
    assert "Acme: 2024-05-01T00:00:00+00:00 (as stated, not checked)" in told.out


def test_report(parties: list[object], marked: Path, tmp_path: Path) -> None:
    report = tmp_path / "ruling.html"
    for _ in range(2):  # a report may be renewed
        result = call("arbitrate", *parties, "--report", report)
        assert result.code == 0
        assert "report written" in result.err
    assert "Owner: Acme" in report.read_text()
    before = marked.read_bytes()
    refused = call("arbitrate", *parties, "--report", marked)
    assert "one of the inputs" in refused.failed(2, "OutputError")
    assert marked.read_bytes() == before


def test_wrong_usage(parties: list[object], key: Path, thief: Path, stolen: Path) -> None:
    one, two = parties[:4], parties[4:]
    call("arbitrate").failed(2, "MissingParameter")
    said = call("arbitrate", *one).failed(2, "DisputeError")
    assert "two parties, each with a key and a model" in said
    twice = call("arbitrate", *one, "--claimant", "Acme", thief, stolen)
    assert "named twice" in twice.failed(2, "DisputeError")
    same = call("arbitrate", *one, "--claimant", "Bandit", key, stolen)
    assert "the same key" in same.failed(2, "DisputeError")
    for option, value in (
        ("--claim", stolen),
        ("--commitment", "2024"),
        ("--passphrase-file", key),
    ):
        unknown = call("arbitrate", *one, *two, option, "Acne", value)
        assert "no party 'Acne'" in unknown.failed(2, "DisputeError")
        again = call("arbitrate", *parties, option, "Acme", value, option, "Acme", value)
        assert f"{option}: 'Acme' is named twice" in again.failed(2, "DisputeError")
    vague = call("arbitrate", *parties, "--commitment", "Acme", "long ago")
    assert "not a time" in vague.failed(2, "DisputeError")


def test_unreadable(parties: list[object], tmp_path: Path, thief: Path) -> None:
    gone = tmp_path / "gone.safetensors"
    missing = call("arbitrate", *parties[:4], "--claimant", "Bandit", thief, gone, "--json")
    assert "the exhibit of Bandit" in missing.failed(3, "CheckpointError")
    assert missing.json["exit_code"] == 3
    call("arbitrate", *parties, "--disputed", gone).failed(3, "CheckpointError")
    call("arbitrate", *parties[:4], "--claimant", "B", gone, gone).failed(3, "KeyFileError")
    call("arbitrate", *parties, "--claim", "Acme", gone).failed(3, "RecordError")


@pytest.fixture
def locked(marked: Path, stolen: Path, key: Path, thief: Path, tmp_path: Path) -> list[object]:
    """The same dispute with encrypted keys: passphrases 'one' and 'two'."""
    words: list[object] = []
    for name, file, model, phrase in (("A", key, marked, "one"), ("B", thief, stolen, "two")):
        path = tmp_path / f"locked-{name}.nmkey"
        Key.load(file).save(path, phrase, cost=10)
        words += ["--claimant", name, path, model]
        (tmp_path / phrase).write_text(f"{phrase}\n")
    return words


def test_each_key_has_its_passphrase(locked: list[object], tmp_path: Path) -> None:
    first = ("--passphrase-file", "A", tmp_path / "one")
    second = ("--passphrase-file", "B", tmp_path / "two")
    assert call("arbitrate", *locked, *first, *second).code == 0
    # the variable serves whoever has no file of his own
    assert call("arbitrate", *locked, *first, env={"NEURALMARK_PASSPHRASE": "two"}).code == 0
    call("arbitrate", *locked, *first).failed(2, "PassphraseError")
    wrong = ("--passphrase-file", "B", tmp_path / "one")
    call("arbitrate", *locked, *first, *wrong).failed(3, "WrongPassphraseError")


def test_passphrases_are_asked_for_one_by_one(locked: list[object]) -> None:
    code, screen = on_terminal("arbitrate", *locked, answers=["one", "two"])
    assert code == 0, screen
    assert "OWNER: A" in screen
    assert "locked-A.nmkey" in screen
    assert "locked-B.nmkey" in screen


def test_names_cannot_play_with_the_terminal(parties: list[object], thief: Path) -> None:
    odd = call("arbitrate", *parties[:4], "--claimant", "\x1b[2J", thief, parties[3])
    assert "\x1b" not in odd.failed(2, "DisputeError")


def test_the_example_of_the_documentation_runs(model: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "disputes.md").read_text()
    script = page.split("```sh\n")[1].split("```")[0]
    model.rename(tmp_path / "base.safetensors")
    for name in ("acme", "bandit"):
        plain_key(tmp_path / f"{name}.nmkey")
    path = f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=tmp_path,
        env=clean_environment() | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "OWNER: Acme" in done.stdout
    assert "Owner: Acme" in (tmp_path / "ruling.html").read_text()
