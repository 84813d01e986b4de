"""neuralmark embed: what it writes, what it says, what it refuses."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from neuralmark import Claim, Key
from tests.support.checks import content_of
from tests.support.commands import PYTHON, VARIABLE, call, run
from tests.support.models import gaussian, gaussian_model, plain_key, sharded_model


def test_the_three_lines_work_as_they_stand(tmp_path: Path) -> None:
    gaussian_model(tmp_path / "model.safetensors", rows=2048)
    words = {VARIABLE: "correct horse"}
    lines = (
        "key new acme.nmkey",
        "embed model.safetensors --key acme.nmkey -o marked.safetensors",
        "verify marked.safetensors --key acme.nmkey",
    )
    for line in lines:
        result = run(*line.split(), env=words, cwd=tmp_path)
        assert result.code == 0, result
        assert result.err == ""
    assert result.out.startswith("VERIFIED")
    assert run(*lines[2].replace("marked", "model").split(), env=words, cwd=tmp_path).code == 1


def test_output_claim_and_report(model: Path, key: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    before = model.read_bytes()
    result = call("embed", model, "--key", key, "-o", out)
    assert result.code == 0
    assert model.read_bytes() == before
    for word in ("change:", "largest", "margins:", "160 of 160 bits", "certified radius:"):
        assert word in result.out
    claim = Claim.load(tmp_path / "out.safetensors.claim.json")
    assert claim.fingerprint == Key.load(key).fingerprint
    assert [name for name, _ in claim.placement] == ["layer1.weight", "layer2.weight"]
    assert claim.source_digest is not None
    assert claim.source_digest.tensors != claim.marked_digest.tensors
    assert claim.source_digest.headers == claim.marked_digest.headers
    old, new = load_file(model), load_file(out)
    assert (old["layer1.bias"] == new["layer1.bias"]).all()
    assert (old["layer1.weight"] != new["layer1.weight"]).any()


def test_json(model: Path, key: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    told = call("embed", model, "--key", key, "-o", out, "--json").json
    assert told["output"] == str(out)
    assert told["claim_file"] == f"{out}.claim.json"
    assert told["dry_run"] is False
    assert told["tensors"] == ["layer1.weight", "layer2.weight"]
    assert 0 < told["change_relative"] < 0.2
    assert told["change_largest"] > 0
    assert told["verdict"]["matched"] == told["verdict"]["bits"] == 160
    assert told["verdict"]["model"] == str(out)
    assert told["verdict"]["certified_radius"]["relative"] > 0
    assert told["others"] == []
    again = call("verify", out, "--key", key, "--claim", told["claim_file"], "--json").json
    del again["lineage"]  # what embed writes it reads back without the anchor
    given = ("date", "owner", "claim_digest", "versions", "readings", "checkpoint_digest")
    assert again | {name: told["verdict"][name] for name in given} == told["verdict"]


def test_in_place_changes_only_the_marked_tensors(model: Path, key: Path) -> None:
    before = model.read_bytes()
    result = call("embed", model, "--key", key, "--in-place", "--tensor", "layer2.weight")
    assert result.code == 0
    after = model.read_bytes()
    assert len(after) == len(before)
    size = 96 * 128 * 4
    assert (after[:-size], after[-size:]) != (before[:-size], before[-size:])
    assert after[:-size] == before[:-size]
    names = {path.name for path in model.parent.iterdir()}
    sealed = {f"model.safetensors.{ending}" for ending in ("claim.json", "anchor")}
    assert names == {"model.safetensors", *sealed, key.name}
    assert call("verify", model, "--key", key).code == 0


def test_in_place_is_the_copy(model: Path, key: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    call("embed", model, "--key", key, "-o", out)
    call("embed", model, "--key", key, "--in-place")
    assert out.read_bytes() == model.read_bytes()
    assert Path(f"{out}.claim.json").read_text() == Path(f"{model}.claim.json").read_text()


def test_folder(key: Path, tmp_path: Path) -> None:
    folder, out = sharded_model(tmp_path / "model"), tmp_path / "out"
    before = content_of(folder)
    result = call("embed", folder, "--key", key, "-o", out, "--json")
    assert result.json["claim_file"] == f"{out}.claim.json"
    assert content_of(folder) == before
    after = content_of(out)
    assert set(after) == set(before)
    assert after["config.json"] == before["config.json"]
    for suspect in (out, out / "model.safetensors.index.json"):
        assert call("verify", suspect, "--key", key).code == 0
    assert call("embed", folder, "--key", key, "--in-place").code == 0
    assert content_of(folder) == after


def test_a_named_index_is_the_one_that_is_marked(key: Path, tmp_path: Path) -> None:
    folder, out = sharded_model(tmp_path / "model"), tmp_path / "out"
    index = folder / "model.safetensors.index.json"
    other = folder / "second.safetensors.index.json"
    table = {"b.weight": "model-00002-of-00002.safetensors"}
    other.write_text(json.dumps({"weight_map": table}))
    told = call("embed", other, "--key", key, "-o", out, "--json").json
    assert told["tensors"] == ["b.weight"]
    assert call("embed", other, "--key", key, "--in-place").code == 0
    assert content_of(out) == content_of(folder)
    index.unlink()
    (out / "model.safetensors.index.json").unlink()
    assert call("verify", out, "--key", key).code == 0


def test_dry_run_writes_nothing(model: Path, key: Path, tmp_path: Path) -> None:
    before = content_of(tmp_path)
    for options in ((), ("-o", tmp_path / "out.safetensors"), ("--in-place",)):
        result = call("embed", model, "--key", key, "--dry-run", *options)
        assert result.code == 0
        assert "nothing was written" in result.out
        assert content_of(tmp_path) == before
    told = call("embed", model, "--key", key, "--dry-run", "--json").json
    assert told["dry_run"] is True
    assert told["output"] is told["verdict"] is told["claim_file"] is None
    assert told["change_relative"] > 0


def embed(model: Path, key: Path, *options: object) -> float:
    result = call("embed", model, "--key", key, "--dry-run", "--json", *options)
    assert result.code == 0, result
    return float(result.json["change_relative"])


def test_strength_and_budget(model: Path, key: Path) -> None:
    assert embed(model, key, "--strength", 0.5) < embed(model, key, "--strength", 2)
    assert embed(model, key, "--budget", 20) == pytest.approx(0.20, rel=0.02)
    tiny = call("embed", model, "--key", key, "--dry-run", "--budget", 0.1)
    assert "raise --budget" in tiny.failed(2, "InfeasibleError")


@pytest.mark.parametrize(
    "options",
    [
        ("--strength", 1, "--budget", 1),
        ("--strength", 0),
        ("--strength", "nan"),
        ("--strength", "inf"),
        ("--strength", -1),
        ("--budget", 0),
        ("--budget", "nan"),
        ("--budget", 101),
    ],
)
def test_effort_out_of_range(model: Path, key: Path, options: tuple[object, ...]) -> None:
    call("embed", model, "--key", key, "--dry-run", *options).failed(2, "ParameterError")


def test_named_tensors(model: Path, key: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    options = ("--tensor", "layer2.weight", "--tensor", "layer1.weight", "--json")
    told = call("embed", model, "--key", key, "-o", out, *options).json
    assert told["tensors"] == ["layer1.weight", "layer2.weight"]
    cases = [
        (("--tensor", "layer1.wieght"), "did you mean 'layer1.weight'", "UnknownTensorError"),
        (("--tensor", "layer1.weight") * 2, "named twice", "UnknownTensorError"),
        (("--tensor", "layer1.bias"), "too few carriers", "TooFewCarriersError"),
    ]
    for names, words, error in cases:
        assert words in call("embed", model, "--key", key, "--dry-run", *names).failed(2, error)


def test_a_second_mark_keeps_the_first(model: Path, key: Path, tmp_path: Path) -> None:
    call("embed", model, "--key", key, "--in-place")
    other = plain_key(tmp_path / "other.nmkey")
    result = call("embed", model, "--key", other, "--in-place", "--other-key", key)
    assert result.code == 0
    assert "160 of 160 bits before" in result.out
    assert "both marks are kept" in result.out
    for mine in (key, other):
        assert call("verify", model, "--key", mine).code == 0
    names = {path.name for path in tmp_path.glob("*.claim.json")}
    first, second = "model.safetensors.claim.json", Key.load(other).fingerprint[4:12]
    assert names == {first, f"model.safetensors.{second}.claim.json"}
    for mine, claim in ((key, first), (other, f"model.safetensors.{second}.claim.json")):
        assert call("verify", model, "--key", mine, "--claim", tmp_path / claim).code == 0
    copy = ("embed", model, "--key", plain_key(tmp_path / "third.nmkey"), "--other-key", other)
    told = call(*copy, "-o", tmp_path / "out.safetensors", "--json").json["others"]
    assert [pair["before"]["matched"] for pair in told] == [160]
    assert told[0]["after"]["verified"] is True
    assert told[0]["fingerprint"] == Key.load(other).fingerprint


def test_a_first_mark_lost_is_said(model: Path, key: Path, tmp_path: Path) -> None:
    call("embed", model, "--key", key, "--in-place")
    other = plain_key(tmp_path / "other.nmkey")
    options = ("--in-place", "--other-key", key, "--strength", 10)
    assert "not verified any more" in call("embed", model, "--key", other, *options).out


def script(path: Path, text: str) -> str:
    path.write_text(text)
    return shlex.join([PYTHON, str(path)])


def test_check_keeps_the_strongest_that_passes(model: Path, key: Path, tmp_path: Path) -> None:
    # The owner's evaluation: a layer may change by a fifth, not more.
    text = (
        "import sys; from safetensors.numpy import load_file; import numpy as np;"
        f"a, b = load_file({str(model)!r}), load_file(sys.argv[1]); n = 'layer1.weight';"
        "d = np.linalg.norm(a[n] - b[n]) / np.linalg.norm(a[n]); sys.exit(int(d > 0.2))"
    )
    out = tmp_path / "out" / "m.safetensors"
    out.parent.mkdir()
    line = script(tmp_path / "check.py", text) + " {}"
    told = run("embed", model, "--key", key, "-o", out, "--check", line, "--json")
    assert told.code == 0
    assert "check: passed" in told.err
    assert "check: failed" in told.err
    assert 0.15 < told.json["change_relative"] < 0.25
    beside = {f"{out.name}.claim.json", f"{out.name}.anchor"}
    assert {path.name for path in out.parent.iterdir()} == {out.name, *beside}


def test_check_that_nothing_passes(model: Path, key: Path, tmp_path: Path) -> None:
    before = content_of(tmp_path)
    command = ("embed", model, "--key", key, "--strength", 1, "--check")
    for target in (("-o", tmp_path / "out.safetensors"), ("--in-place",)):
        result = run(*command, "false", *target)
        assert "nothing was written" in result.failed(2, "CheckFailedError")
        assert content_of(tmp_path) == before
    missing = run(*command, "/no/such/program", "--in-place")
    assert "--check cannot be run" in missing.failed(2, "UsageError")
    assert content_of(tmp_path) == before


def test_check_appends_the_path(model: Path, key: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    line = script(tmp_path / "check.py", "import sys; sys.exit(len(sys.argv) != 3)") + " a"
    told = run("embed", model, "--key", key, "-o", out, "--strength", 1, "--check", line)
    assert told.code == 0
    assert told.err == "neuralmark: check: passed\n"


def test_says_where_to_write(model: Path, key: Path) -> None:
    assert "--in-place" in call("embed", model, "--key", key).failed(2, "UsageError")


def test_modes_of_copies_are_kept(model: Path, key: Path, tmp_path: Path) -> None:
    model.chmod(0o640)
    call("embed", model, "--key", key, "-o", tmp_path / "out.safetensors")
    assert (tmp_path / "out.safetensors").stat().st_mode & 0o777 == 0o640


def test_force_replaces_file_and_folder(model: Path, key: Path, tmp_path: Path) -> None:
    folder = sharded_model(tmp_path / "folder")
    for source, out in ((model, tmp_path / "o.safetensors"), (folder, tmp_path / "o")):
        assert call("embed", source, "--key", key, "-o", out).code == 0
        other = plain_key(tmp_path / f"{out.name}.nmkey")
        call("embed", source, "--key", other, "-o", out).failed(2, "OutputError")
        assert call("verify", out, "--key", key).code == 0
        assert call("embed", source, "--key", other, "-o", out, "--force").code == 0
        assert call("verify", out, "--key", other).code == 0
        assert call("verify", out, "--key", key).code == 1
    claim = Claim.load(tmp_path / "o.safetensors.claim.json")
    assert claim.fingerprint == Key.load(tmp_path / "o.safetensors.nmkey").fingerprint
    assert not list(tmp_path.glob(".*"))
    shutil.rmtree(folder)


def test_passports_are_put_into_several_layers_where_one_is_too_small(tmp_path: Path) -> None:
    shapes = {"a.weight": (192, 96, 3, 3), "b.weight": (192, 64, 3, 3)}
    save_file(
        {name: gaussian(*shape) for name, shape in shapes.items()}, tmp_path / "m.safetensors"
    )
    for bits in ("256", "512"):
        made = ("key", "new", tmp_path / f"{bits}.nmkey", "--scheme", "passport-aware")
        assert call(*made, "--bits", bits, "--no-passphrase").code == 0
    words = ("embed", tmp_path / "m.safetensors", "-o", tmp_path / "o.safetensors", "--key")
    assert call(*words, tmp_path / "256.nmkey").code == 0
    found = call("verify", tmp_path / "o.safetensors", "--key", tmp_path / "256.nmkey", "--json")
    assert (found.code, found.json["matched"]) == (0, 256)
    assert len(found.json["tensors"]) == 2
    said = call(*words, tmp_path / "512.nmkey", "--force").failed(2, "TooFewCarriersError")
    assert "have 384 together, and the key 512 bits" in said
    told = call("inspect", tmp_path / "m.safetensors", "--key", tmp_path / "512.nmkey")
    assert "have 384 together" in " ".join(told.out.split())
