"""`neuralmark copies`, `trace` and `key sub` at the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuralmark import CopyRegister, Key, Trace
from tests.support.commands import call
from tests.support.market import chain_model, owners_key
from tests.support.pages import read

NAMES = ("Acme Ltd.", "Bolt GmbH", "Müller & Söhne")


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("market")
    chain_model(folder / "model.safetensors")
    owners_key().save(folder / "me.nmkey", None)
    lines = ["id,buyer", *(f'{n},"{name}"' for n, name in enumerate(NAMES))]
    (folder / "buyers.csv").write_text("\n".join(lines), encoding="utf-8")
    done = call(
        *("copies", folder / "model.safetensors", "--key", folder / "me.nmkey"),
        *("--buyers", folder / "buyers.csv", "-o", folder / "copies"),
    )
    assert done.code == 0, done.err
    assert "3 copies in" in done.out
    assert all(name in done.out for name in NAMES)
    assert "hand out the copies" in done.out
    return folder


def copy_of(market: Path, number: int) -> Path:
    register = CopyRegister.load(market / "copies" / "copies.json")
    return market / "copies" / register.copies[number].path


def test_copies_again_says_the_same(market: Path) -> None:
    done = call(
        *("copies", market / "model.safetensors", "--key", market / "me.nmkey", "--json"),
        *("--buyers", market / "buyers.csv", "-o", market / "copies"),
    )
    assert done.code == 0
    assert CopyRegister.from_dict(done.json) == CopyRegister.load(market / "copies/copies.json")


def test_many_copies_are_counted(tmp_path: Path) -> None:
    save_file({"w": np.ones((4, 4), np.float32)}, tmp_path / "small.safetensors")
    owners_key().save(tmp_path / "me.nmkey", None)
    (tmp_path / "buyers.csv").write_text("\n".join(f"b{n}" for n in range(14)))
    chain_model(tmp_path / "model.safetensors")
    given = ("--key", tmp_path / "me.nmkey", "--buyers", tmp_path / "buyers.csv")
    small = call("copies", tmp_path / "small.safetensors", *given, "-o", tmp_path / "a")
    small.failed(2, "TooFewCarriersError")
    done = call(
        *("copies", tmp_path / "model.safetensors", *given, "-o", tmp_path / "b"),
        *("--tensor", "0.weight"),
    )
    assert "and 2 more (the register has all)" in done.out


def test_trace_names_a_buyer(market: Path, tmp_path: Path) -> None:
    given = ("--key", market / "me.nmkey", "--buyers", market / "copies")
    done = call("trace", copy_of(market, 1), *given, "--report", tmp_path / "page.html")
    assert done.code == 0
    assert done.out.startswith("NAMED: “Bolt GmbH”")
    assert "byte for byte the copy of Bolt GmbH" in done.out
    assert "6 (3 buyers, 2 ways each)" in done.out
    assert "(Acme Ltd.)" in done.out
    assert "Named: “Bolt GmbH”" in read((tmp_path / "page.html").read_text()).text
    told = call("trace", copy_of(market, 1), *given, "--json")
    (tmp_path / "trace.json").write_text(told.out)
    assert Trace.load(tmp_path / "trace.json").named == ("Bolt GmbH",)
    page = call("report", tmp_path / "trace.json", "-o", tmp_path / "again.html")
    assert page.code == 0, page.err


def test_trace_names_nobody(market: Path) -> None:
    done = call(
        *("trace", market / "model.safetensors", "--key", market / "me.nmkey"),
        *("--buyers", market / "copies" / "copies.json"),
    )
    assert done.code == 1
    assert done.out.startswith("NO BUYER IS NAMED")
    assert "(not verified)" in done.out
    assert "chance of error" not in done.out


def test_trace_with_a_list_needs_the_claim(market: Path, tmp_path: Path) -> None:
    suspect = tmp_path / "suspect.safetensors"
    save_file(load_file(copy_of(market, 2)), suspect)
    given = ("trace", suspect, "--key", market / "me.nmkey", "--buyers", market / "buyers.csv")
    assert "--claim" in call(*given).failed(2, "ParameterError")
    claim = market / "copies" / "owner.safetensors.claim.json"
    done = call(*given, "--claim", claim)
    assert (done.code, done.out.splitlines()[0]) == (0, f"NAMED: “{NAMES[2]}”")
    report = call(*given, "--claim", claim, "--report", suspect)
    report.failed(2, "OutputError")


def test_named_errors(market: Path, tmp_path: Path) -> None:
    base = ("copies", market / "model.safetensors", "--key", market / "me.nmkey")
    cases = {
        "Acme\nBolt\n acme \n": "named twice",
        "Acme\x1b[2J\n": "control or invisible",
        "\n": "empty",
    }
    for number, (text, said) in enumerate(cases.items()):
        file = tmp_path / f"{number}.csv"
        file.write_text(text)
        line = call(*base, "--buyers", file, "-o", tmp_path / "out").failed(3, "BuyersError")
        assert said in line
        assert "\x1b" not in line
    chain_model(tmp_path / "other.safetensors", seed=9)
    other = call(
        *("copies", tmp_path / "other.safetensors", "--key", market / "me.nmkey"),
        *("--buyers", market / "buyers.csv", "-o", market / "copies"),
    )
    assert "--force" in other.failed(2, "OutputError")


def test_a_sub_key_for_a_judge(market: Path, tmp_path: Path) -> None:
    out = tmp_path / "judge.nmkey"
    done = call(
        *("key", "sub", market / "me.nmkey", "--buyer", "BOLT gmbh", "-o", out),
        *("--copies", market / "copies", "--with-anchor", "--no-passphrase"),
    )
    assert done.code == 0, done.err
    assert "buyer=bolt gmbh" in done.out
    assert f"{out}.claim.json was written beside it" in done.err
    verdict = call("verify", copy_of(market, 1), "--key", out, "--claim", f"{out}.claim.json")
    assert verdict.code == 0
    other = call("verify", copy_of(market, 0), "--key", out, "--claim", f"{out}.claim.json")
    assert other.code == 1
    renamed = {f"m.{n}.x": v for n, v in load_file(copy_of(market, 1)).items()}
    save_file(renamed, tmp_path / "renamed.safetensors")
    found = call(
        *("verify", tmp_path / "renamed.safetensors", "--key", out),
        *("--claim", f"{out}.claim.json"),
    )
    assert found.code == 0  # the anchor lies beside the claim
    again = call(
        *("key", "sub", market / "me.nmkey", "--buyer", "Bolt GmbH", "-o", out),
        *("--copies", market / "copies", "--no-passphrase"),
    )
    again.failed(2, "OutputError")


def test_a_judge_never_needs_the_owners_passphrase(market: Path, tmp_path: Path) -> None:
    owners_key().save(tmp_path / "me.nmkey", "mine", cost=10)
    words = ("key", "sub", tmp_path / "me.nmkey", "--dispute", "a", "-o", tmp_path / "a.nmkey")
    mine = {"NEURALMARK_PASSPHRASE": "mine"}
    assert "--new-passphrase-file" in call(*words, env=mine).failed(2, "PassphraseError")
    assert not (tmp_path / "a.nmkey").exists()
    (tmp_path / "new").write_text("theirs")
    assert call(*words, "--new-passphrase-file", tmp_path / "new", env=mine).code == 0
    assert Key.load(tmp_path / "a.nmkey", "theirs").content.endswith(b"dispute=a")


def test_a_key_for_a_dispute(market: Path, tmp_path: Path) -> None:
    out = tmp_path / "case.nmkey"
    given = ("key", "sub", market / "me.nmkey", "-o", out, "--no-passphrase", "--json")
    done = call(*given, "--dispute", "Case 7")
    assert done.code == 0
    assert json.loads(done.out)["content"] == "owner=me\ndispute=case 7"
    assert Key.load(out).fingerprint == owners_key().sub("Case 7", "dispute").fingerprint
    assert not Path(f"{out}.claim.json").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "either --buyer or --dispute"),
        (("--buyer", "a", "--dispute", "b"), "either --buyer or --dispute"),
        (("--buyer", "a"), "belong together"),
        (("--dispute", "a", "--copies", "x"), "belong together"),
        (("--dispute", "a", "--with-anchor"), "give both"),
    ],
)
def test_slips(market: Path, tmp_path: Path, given: tuple[str, ...], said: str) -> None:
    done = call("key", "sub", market / "me.nmkey", "-o", tmp_path / "k.nmkey", *given)
    assert done.code == 2
    assert said in done.err
