"""`neuralmark attack`: driven by what the attacks declare, and true to what it writes."""

import re
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuralmark import Key, attacks, embed, verify
from neuralmark.checkpoints import open_checkpoint
from tests.support.checks import content_of
from tests.support.commands import PYTHON, call, clean_environment, on_terminal, run
from tests.support.models import QUICK, gaussian, plain_key

SHARED = {
    *("output", "force", "key", "passphrase_file", "tensor", "claim", "anchor", "other", "seed"),
    "json",
}

FIXED = Key(QUICK, b"", salt=bytes(32), secret=bytes([1]) * 32)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    FIXED.save(tmp_path / "plain.nmkey", None)
    return tmp_path / "plain.nmkey"


def test_list() -> None:
    told = call("attack", "list", "--json").json["attacks"]
    assert [each["name"] for each in told] == attacks.names()
    text = call("attack", "list").out
    for each in told:
        assert each["summary"]
        assert each["expects"]
        assert each["summary"] in text


@pytest.mark.parametrize("name", attacks.names())
def test_every_attack_is_a_command(name: str) -> None:
    result = call("attack", name, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: neuralmark attack {name} ")
    attack = attacks.get(name)
    for each in fields(attack):
        assert each.name not in SHARED, "an option of this name is there already"
    if attack.dial:
        assert f"--{attack.dial.replace('_', '-')}" in result.out


@pytest.mark.parametrize("command", [("list",), ("prune", "--help"), ("suite", "--help")])
def test_nothing_heavy_is_imported(command: tuple[str, ...]) -> None:
    code = (
        "import sys, atexit; sys.argv = ['neuralmark', *sys.argv[1:]];"
        "from neuralmark.cli import main;"
        "atexit.register(lambda: print(*sorted({n.split('.')[0] for n in sys.modules}),"
        " file=sys.stderr)); main()"
    )
    done = subprocess.run(
        [PYTHON, "-c", code, "attack", *command],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done
    assert not set(done.stderr.split()) & {"torch", "sklearn", "rich", "gguf"}


def test_the_anchor_beside_the_claim_is_used(marked: Path, key: Path, tmp_path: Path) -> None:
    renamed = ("attack", "convert", marked, "--key", key, "--how", "rename")
    found = call(*renamed)
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith("MARK SURVIVED, READ WITH ITS ANCHOR\n")
    assert re.search(r"with the anchor: +160 of 160 bits, \d+ needed: verified", found.out)
    told = call(*renamed, "--json").json
    assert (told["survived"], told["survived_aligned"]) == (False, True)
    original = marked.with_name("model.safetensors")
    guided = (*renamed, "--claim", f"{marked}.claim.json", "--anchor")
    assert call(*guided, original).code == 0
    save_file({"a": gaussian(8, 8)}, tmp_path / "other.safetensors")
    other = call(*guided, tmp_path / "other.safetensors")
    assert other.code in (2, 3)
    assert "not the original of the claim" in other.err


def test_survived_and_flipped(marked: Path, key: Path) -> None:
    weak = call("attack", "noise", marked, "--key", key, "--amount", "0.01")
    assert (weak.code, weak.err) == (0, "")
    assert weak.out.startswith("MARK SURVIVED\n")
    assert re.search(r"with the anchor: +not read again: proven by position\n", weak.out)
    strong = call("attack", "noise", marked, "--key", key, "--amount", 20)
    assert strong.code == 1
    assert strong.out.startswith("VERDICT FLIPPED\n")
    for words in ("before:", "160 of 160 bits", "after:", "change:", "cost:"):
        assert words in strong.out
    without = call("attack", "noise", marked, "--amount", 20)
    assert without.code == 0
    assert without.out.startswith("ATTACKED\n")


def test_json(marked: Path, key: Path) -> None:
    options = ("--key", key, "--amount", "0.25", "--seed", "3", "--claim", f"{marked}.claim.json")
    told = call("attack", "noise", marked, *options, "--json").json
    assert (told["attack"], told["settings"]) == ("noise", {"amount": 0.25})
    assert told["held"] == told["survived"]
    assert told["change"] == pytest.approx(0.25, rel=0.05)
    again = call("attack", "noise", marked, *options, "--json").json
    assert told["change"] == again["change"]


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_output_is_what_was_judged(key: Path, tmp_path: Path, suffix: str) -> None:
    model, marked = tmp_path / f"m.{suffix}", tmp_path / f"marked.{suffix}"
    tensors: dict[str, np.ndarray[Any, np.dtype[Any]]]
    tensors = {"a.weight": gaussian(128, 128).astype(np.float16), "steps": np.arange(4)}
    if suffix == "npz":
        np.savez(model, **tensors)  # type: ignore[arg-type]
    else:
        save_file(tensors, model)
    embed(model, FIXED, marked)
    out = tmp_path / f"out.{suffix}"
    before = content_of(tmp_path)
    told = call("attack", "noise", marked, "--key", key, "--amount", 2, "-o", out, "--json").json
    assert told["output"].startswith(str(out))
    after = content_of(tmp_path)
    assert {name: after[name] for name in before} == before
    verdict = verify(out, FIXED, claim=f"{marked}.claim.json")
    assert verdict.matched == told["after"]["matched"] < 160
    assert open_checkpoint(out).info("a.weight").dtype == "F16"
    taken = call("attack", "noise", marked, "-o", out)
    assert "--force" in taken.failed(2, "OutputError")
    assert call("attack", "noise", marked, "-o", out, "--force").code == 0
    call("attack", "noise", marked, "-o", marked, "--force").failed(2, "OutputError")


def test_only_the_named_tensor_is_touched(marked: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    call("attack", "shift", marked, "--tensor", "layer2.weight", "-o", out)
    old, new = load_file(marked), load_file(out)
    changed = [name for name in old if not np.array_equal(old[name], new[name])]
    assert changed == ["layer2.weight"]
    wrong = call("attack", "shift", marked, "--tensor", "layer2.wait")
    assert "did you mean 'layer2.weight'" in wrong.failed(2, "UnknownTensorError")


def test_merging(marked: Path, key: Path, model: Path, tmp_path: Path) -> None:
    told = call("attack", "merge", marked, "--other", model, "--key", key, "--json").json
    assert told["note"] == ""
    small = tmp_path / "small.safetensors"
    save_file({"layer1.weight": gaussian(4, 4), "layer2.weight": gaussian(4, 4)}, small)
    call("attack", "merge", marked, "--other", small).failed(2, "DataMismatchError")
    call("attack", "merge", marked, "--other", tmp_path / "no").failed(3, "CheckpointError")
    options = ("--key", key, "--only", "merge", "--other", small, "--jobs", 1)
    call("attack", "suite", marked, *options).failed(2, "DataMismatchError")


def test_wrong_words(marked: Path, key: Path, model: Path) -> None:
    assert "did you mean 'prune'" in call("attack", "prun", marked).failed(2, "UnknownAttackError")
    call("attack", "zzzz").failed(2, "UnknownAttackError")
    line = call("attack", "prune", marked, "--share", "1.5").failed(2, "ParameterError")
    assert "share must be from 0 to 1" in line
    call("attack", "prune", marked, "--share", "much").failed(2, "BadParameter")
    call("attack", "prune", marked, "--how", "magnitud").failed(2, "BadParameter")
    call("attack", "prune", marked, "--shar", "1").failed(2, "NoSuchOption")
    call("attack", "noise", model, "--key", key).failed(2, "NoMarkError")
    call("attack", "suite", model, "--key", key, "--jobs", 1).failed(2, "NoMarkError")
    call("attack", "suite", marked).failed(2, "MissingParameter")
    only = call("attack", "suite", marked, "--key", key, "--only", "shft")
    assert "did you mean 'shift'" in only.failed(2, "UnknownAttackError")
    call("attack", "suite", marked, "--key", key, "--jobs", 0).failed(2, "ParameterError")


def test_attacks_that_need_data_show_the_python_call(marked: Path) -> None:
    for name in attacks.names():
        needs = attacks.get(name).needs
        if not needs & {"data", "model"}:
            continue
        line = call("attack", name, marked).failed(2, "MissingDataError")
        if "data" in needs:
            assert f"neuralmark.attacks.launch(neuralmark.attacks.get('{name}')()" in line
            assert "data=" in line
        else:
            assert line.endswith(f"neuralmark attack {name} MODEL --code FILE.py:NAME")


def forgers() -> list[str]:
    found = {name: attacks.get(name) for name in attacks.names()}
    return [name for name, each in found.items() if each.kind == "key" and not each.needs]


@pytest.mark.parametrize("name", forgers())
def test_forged_keys(name: str, key: Path, tmp_path: Path) -> None:
    model, marked = tmp_path / "m.safetensors", tmp_path / "marked.safetensors"
    save_file({f"l{i}.weight": gaussian(128, 128, seed=i) for i in range(3)}, model)
    embed(model, FIXED, marked)
    out = tmp_path / f"{name}.nmkey"
    result = call("attack", name, marked, "--key", key, "-o", out)
    assert result.code == 0, result
    assert result.out.startswith(("FORGERY FAILED\n", "FORGERY PASSES THE PUBLISHED CHECK"))
    unproven = "matches-unproven" in result.out
    assert unproven == ("FORGERY PASSES" in result.out)
    assert "forged key:" in result.out
    if out.exists():
        assert "without a passphrase" in result.err
        assert Key.load(out).fingerprint != FIXED.fingerprint
    else:
        assert "none was made" in result.out


def test_an_attack_that_only_looks_writes_nothing(marked: Path, tmp_path: Path) -> None:
    for name in attacks.names():
        if attacks.get(name).kind == "test":
            out = tmp_path / "out"
            call("attack", name, marked, "-o", out).failed(2, "UsageError")
            assert not out.exists()


def test_suite(marked: Path, key: Path, tmp_path: Path) -> None:
    report = tmp_path / "card.html"
    only = ("--only", "noise", "--only", "shift", "--jobs", 1)
    result = call("attack", "suite", marked, "--key", key, *only, "--report", report)
    assert result.code == 0
    assert result.err == f"neuralmark: card written to {report}\n"
    for words in ("Robustness card", "certified radius:", "flips at", "survives", "deviations"):
        assert words in result.out
    assert re.search(r"flips in \d of 2 sweeps without the anchor, in \d of 2 with it", result.out)
    page = report.read_text()
    assert FIXED.fingerprint in page
    assert not re.search(r"(src|href)=[\"']", page)
    assert "<script" not in page
    for path in (marked, key):
        refused = call("attack", "suite", marked, "--key", key, *only, "--report", path)
        refused.failed(2, "OutputError")


def test_what_never_flips_is_said_so(marked: Path, key: Path) -> None:
    only = ("--only", "convert", "--jobs", 1)
    told = call("attack", "suite", marked, "--key", key, *only).out
    line = next(line for line in told.splitlines() if "rename" in line)
    assert "never" in line


def test_suite_in_processes_is_the_same(marked: Path, key: Path) -> None:
    cards = []
    for jobs in (1, 2):
        options = ("--key", key, "--only", "shift", "--seed", 4, "--jobs", jobs, "--json")
        card = run("attack", "suite", marked, *options).json
        assert card["format"] == "neuralmark-card/1"
        assert card["before"]["status"] == "verified"
        assert card["certified_radius"]["relative"] > 0
        for row in card["rows"]:
            for point in row["points"]:
                del point["seconds"]
        cards.append(card["rows"])
    assert cards[0] == cards[1]


def test_suite_lists_what_is_not_run(marked: Path, key: Path) -> None:
    hungry = [name for name in attacks.names() if attacks.get(name).needs & {"data", "model"}]
    assert hungry
    for name in hungry:
        alone = call("attack", "suite", marked, "--key", key, "--only", name, "--jobs", 1)
        alone.failed(2, "MissingDataError")
    only = [word for name in (*hungry, "shift") for word in ("--only", name)]
    options = ("--key", key, "--jobs", 1, *only)
    card = call("attack", "suite", marked, *options, "--json").json
    assert {row["attack"] for row in card["rows"]} == {"shift"}
    assert [each["attack"] for each in card["skipped"]] == hungry
    assert "Not run" in call("attack", "suite", marked, *options).out


def test_suite_with_a_foreign_key(marked: Path, tmp_path: Path) -> None:
    other = plain_key(tmp_path / "other.nmkey")
    call("attack", "suite", marked, "--key", other).failed(2, "NoMarkError")


def test_progress_counts_attacks(marked: Path, key: Path) -> None:
    code, screen = on_terminal("attack", "suite", marked, "--key", key, "--only", "shift")
    assert code == 0
    count = len(attacks.get("shift").sweep())
    assert f"{count} of {count}" in screen
    assert "Robustness card" in screen
