"""neuralmark verify: verdicts, exit codes, and nothing secret in the evidence."""

import base64
import hashlib
import itertools
import json
import math
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuralmark import Claim, Key, Parameters
from neuralmark.core.carriers import Carriers
from neuralmark.core.readout import logits, pool
from neuralmark.marking import verification
from tests.support.commands import PYTHON, call, clean_environment, run
from tests.support.models import gaussian, gaussian_model, plain_key, sharded_model

FORMATS = Path(__file__).parents[2] / "docs" / "formats.md"


def documented(section: str) -> set[str]:
    """The members that docs/formats.md lists under a heading."""
    text = FORMATS.read_text().partition(f"## {section}")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_verified(marked: Path, key: Path) -> None:
    result = call("verify", marked, "--key", key)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("VERIFIED\n")
    for words in ("160 of 160 bits", "boundary:", "2^-", "trials:", "layer1.weight", "margins:"):
        assert words in result.out
    assert "lineage:" in result.out
    assert "related (0.1 or more); a sign of descent" in " ".join(result.out.split())
    assert "lineage:" not in call("verify", marked, "--key", key, "--public").out


def test_a_report_tells_the_lineage(marked: Path, key: Path, tmp_path: Path) -> None:
    page, moved = tmp_path / "page.html", tmp_path / "moved.safetensors"
    save_file({f"{n}x": np.ascontiguousarray(v) for n, v in load_file(marked).items()}, moved)
    for suspect in (marked, moved):
        claim = f"{marked}.claim.json"
        told = call("verify", suspect, "--key", key, "--claim", claim, "--report", page)
        assert told.code == 0
        assert "Lineage, score 0.9" in page.read_text()


def test_not_verified(model: Path, marked: Path, key: Path, tmp_path: Path) -> None:
    other = plain_key(tmp_path / "other.nmkey")
    for suspect, mine in ((model, key), (marked, other)):
        result = call("verify", suspect, "--key", mine)
        assert (result.code, result.err) == (1, "")
        assert result.out.startswith("NOT VERIFIED\n")


def test_unprovable(model: Path, tmp_path: Path) -> None:
    key = plain_key(tmp_path / "short.nmkey", Parameters(64, 128, 1))
    result = call("verify", model, "--key", key, "--json")
    assert (result.code, result.json["status"]) == (1, "unprovable")
    assert result.json["boundary"] is None


def test_json_has_what_is_documented(marked: Path, key: Path) -> None:
    verdict = call("verify", marked, "--key", key, "--json").json
    assert set(verdict) == documented("Verdict")
    assert verdict["format"] == "neuralmark-verdict/1"
    assert verdict["verified"] is True
    assert verdict["matched"] == verdict["bits"] == 160
    assert verdict["rate"] == 1.0
    assert verdict["trials"] == 2
    assert verdict["boundary"] <= 160
    assert verdict["bound_log2"] == pytest.approx(-160 + np.log2(2))
    assert verdict["fingerprint"] == Key.load(key).fingerprint
    assert verdict["parameters"] == Key.load(key).parameters.to_dict()
    assert verdict["margins"]["unit"] == "sigma_z"
    assert verdict["margins"]["smallest"] <= verdict["margins"]["median"]
    assert set(verdict["certified_radius"]) == {"absolute", "relative"}
    histogram = verdict["margin_histogram"]
    assert sum(histogram["matched"]) + sum(histogram["missed"]) == 160
    assert len(histogram["edges"]) == len(histogram["matched"]) + 1
    names = [[tensor["name"], tensor["shape"]] for tensor in verdict["tensors"]]
    assert names == verdict["placement"]
    raw = load_file(marked)["layer1.weight"].tobytes()
    digest = verdict["checkpoint_digest"]
    assert digest["tensors"]["layer1.weight"] == hashlib.sha256(raw).hexdigest()
    assert digest["files"] == {marked.name: hashlib.sha256(marked.read_bytes()).hexdigest()}


def test_claim_has_what_is_documented(marked: Path) -> None:
    claim = json.loads(Path(f"{marked}.claim.json").read_text())
    assert set(claim) == documented("Claim")


def test_full_digest(marked: Path, key: Path, tmp_path: Path) -> None:
    told = call("verify", marked, "--key", key, "--full-digest", "--owner", "Acme").out
    whole = hashlib.sha256(marked.read_bytes()).hexdigest()
    assert whole in told.replace("\n", "").replace(" ", "").replace("│", "")
    assert "Acme" in told
    verdict = call("verify", marked, "--key", key, "--json", "--full-digest").json
    whole = hashlib.sha256(marked.read_bytes()).hexdigest()
    assert verdict["checkpoint_digest"]["files"] == {marked.name: whole}
    folder = sharded_model(tmp_path / "folder")
    verdict = call("verify", folder, "--key", key, "--json", "--full-digest").json
    assert len(verdict["checkpoint_digest"]["files"]) == 2
    verdict = call("verify", marked, "--key", key, "--json", "--no-full-digest").json
    assert verdict["checkpoint_digest"]["files"] is None


def test_a_page_to_sign_names_the_file(
    marked: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a small model every verdict has what sha256sum prints; of a large one the page has."""
    whole = hashlib.sha256(marked.read_bytes()).hexdigest()
    page = tmp_path / "page.html"
    assert call("verify", marked, "--key", key, "--json").json["checkpoint_digest"]["files"]
    monkeypatch.setattr(verification, "WHOLE_UP_TO", 0)
    assert whole not in call("verify", marked, "--key", key, "--json").out
    for public in ([], ["--public"]):
        assert call("verify", marked, "--key", key, "--report", page, *public).code == 0
        assert whole in page.read_text(encoding="utf-8")
    call("verify", marked, "--key", key, "--report", page, "--no-full-digest")
    assert whole not in page.read_text(encoding="utf-8")


def forms(bits: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> list[str]:
    """The first half of a secret string of bits as someone might let it slip."""
    shapes = []
    for flipped, reverse, order in itertools.product((0, 1), (1, -1), ("big", "little")):
        turned = (bits ^ flipped)[::reverse]
        packed = np.packbits(turned, bitorder="big" if order == "big" else "little").tobytes()
        shapes += [packed.hex(), base64.b64encode(packed).decode().rstrip("=")]
        shapes += [joint.join(map(str, turned)) for joint in ("", ",")]
    return [squeezed(shape)[: len(shape) // 2] for shape in shapes]


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text).lower()


@pytest.mark.parametrize("damage", [0.0, 0.05])
def test_nothing_secret_is_printed(marked: Path, key: Path, damage: float) -> None:
    tensors = load_file(marked)
    for name in ("layer1.weight", "layer2.weight"):
        tensors[name] = tensors[name] + np.float32(damage) * gaussian(*tensors[name].shape, seed=9)
    save_file(tensors, marked)
    secret = Key.load(key)
    anchor = Claim.load(f"{marked}.claim.json").anchor_digest
    mark = secret.at((("layer1.weight", (128, 128)), ("layer2.weight", (96, 128))), anchor)
    weights = np.concatenate([tensors[f"layer{i}.weight"].ravel() for i in (1, 2)])
    carriers = weights[Carriers.of(mark, len(weights)).positions()].astype(np.float64)
    extracted = logits(pool(carriers, 320, "strided"), mark.matrix.astype(np.float64)) > 0
    assert 150 <= (extracted == mark.bits).sum() <= 160
    text = call("verify", marked, "--key", key, "--json").out
    text += call("verify", marked, "--key", key).out
    haystack = squeezed(text)
    for bits in (mark.bits, extracted.astype(np.uint8)):
        for form in forms(bits):
            assert form not in haystack
    assert secret.secret is not None
    for data in (secret.secret, secret.salt, mark.matrix.tobytes()[:64]):
        assert data.hex() not in haystack
        assert base64.b64encode(data).decode().rstrip("=").lower() not in haystack
    # no list of as many numbers as there are bits, carriers or entries of K
    verdict = json.loads(call("verify", marked, "--key", key, "--json").out)
    histogram = verdict.pop("margin_histogram")
    assert max(map(len, histogram.values())) < 64
    longest = max((len(v) for v in verdict.values() if isinstance(v, list)), default=0)
    assert longest == len(verdict["tensors"]) == 2


def test_named_tensors(marked: Path, key: Path) -> None:
    both = ("--tensor", "layer2.weight", "--tensor", "layer1.weight")
    verdict = call("verify", marked, "--key", key, "--json", *both).json
    assert (verdict["verified"], verdict["trials"], verdict["mapping"]) == (True, 2, "names")
    one = call("verify", marked, "--key", key, "--json", "--tensor", "layer1.weight")
    assert one.code == 1
    wrong = call("verify", marked, "--key", key, "--tensor", "layer1.wait")
    assert "did you mean 'layer1.weight'" in wrong.failed(2, "UnknownTensorError")


def test_claim_and_tensors_exclude_each_other(marked: Path, key: Path) -> None:
    options = ("--claim", f"{marked}.claim.json", "--tensor", "layer1.weight")
    call("verify", marked, "--key", key, *options).failed(2, "UsageError")


def test_too_small_a_model(key: Path, tmp_path: Path) -> None:
    model = tmp_path / "tiny.safetensors"
    save_file({"w": gaussian(8, 8)}, model)
    call("verify", model, "--key", key).failed(2, "TooFewCarriersError")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none(model: Path, key: Path, value: float) -> None:
    tensors = load_file(model)
    for name in ("layer1.weight", "layer2.weight"):
        tensors[name][:] = value
    save_file(tensors, model)
    call("verify", model, "--key", key).failed(3, "NonFiniteError")
    call("embed", model, "--key", key, "--dry-run").failed(3, "NonFiniteError")


def test_zero_weights(key: Path, tmp_path: Path) -> None:
    model = tmp_path / "zero.safetensors"
    save_file({"w": np.zeros((128, 128), np.float32)}, model)
    verdict = call("verify", model, "--key", key, "--json")
    assert (verdict.code, verdict.json["matched"]) == (1, 0)
    refused = call("embed", model, "--key", key, "--dry-run").failed(2, "UnsuitableTensorError")
    assert "all values are zero" in refused


def test_errors_as_json(model: Path, key: Path, tmp_path: Path) -> None:
    result = call("verify", tmp_path / "no.safetensors", "--key", key, "--json")
    line = result.failed(3, "CheckpointError")
    assert result.json["error"] == "CheckpointError"
    assert result.json["exit_code"] == 3
    assert line.endswith(result.json["message"])
    call("verify", model, "--key", tmp_path / "no.nmkey").failed(3, "KeyFileError")
    call("verify", model).failed(2, "MissingParameter")


def test_names_that_are_not_text(model: Path, key: Path) -> None:
    odd = model.with_name("odd\udcff\n\x1b[31m.safetensors")
    model.rename(odd)
    result = run("verify", odd, "--key", key)
    assert (result.code, result.err) == (1, "")
    assert "\x1b" not in result.out
    told = run("verify", odd, "--key", key, "--json")
    assert told.json["model"] == str(odd)


def test_names_of_tensors_cannot_play_with_the_terminal(key: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.safetensors"
    save_file({"a\n\x1b[2Jb.weight": gaussian(128, 128)}, model)
    for command in (("verify", model, "--key", key), ("inspect", model)):
        result = call(*command)
        assert "\x1b" not in result.out
        assert "a\\n\\x1b[2Jb.weight" in result.out


def test_a_small_file_needs_no_heavy_import(marked: Path, key: Path) -> None:
    code = (
        "import sys, atexit; sys.argv = ['neuralmark', *sys.argv[1:]];"
        "from neuralmark.cli import main;"
        "atexit.register(lambda: print(*sorted({n.split('.')[0] for n in sys.modules}),"
        " file=sys.stderr)); main()"
    )
    Path(f"{marked}.anchor").unlink()  # opening it takes cryptography
    for options in ((), ("--json",), ("--claim", f"{marked}.claim.json")):
        words = [PYTHON, "-c", code, "verify", str(marked), "--key", str(key), *options]
        done = subprocess.run(
            words, env=clean_environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done
        loaded = set(done.stderr.split())
        assert "numpy" in loaded
        heavy = {"torch", "scipy", "cryptography", "safetensors", "rich", "sklearn"}
        assert not loaded & heavy


def test_report(marked: Path, key: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert call("verify", marked, "--key", key, "--report", report).code == 0
    page = report.read_text()
    assert Key.load(key).fingerprint in page
    assert not re.search(r"(src|href)=[\"']https?:", page)
    secret = Key.load(key)
    mark = secret.at((("layer1.weight", (128, 128)), ("layer2.weight", (96, 128))))
    haystack = squeezed(page)
    for form in forms(mark.bits):
        assert form not in haystack
    # a report may be renewed
    assert call("verify", marked, "--key", key, "--report", report).code == 0


def test_damaged_but_verified(marked: Path, key: Path) -> None:
    tensors = load_file(marked)
    gaussian_model(marked)
    clean = load_file(marked)
    for name in tensors:
        tensors[name] += np.float32(0.02) * clean[name][::-1]
    save_file(tensors, marked)
    assert call("verify", marked, "--key", key).code == 0


def test_the_public_view(marked: Path, key: Path, tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    args = ("verify", marked, "--key", key, "--public", "--full-digest", "--report", page)
    public = call(*args, "--json").json
    assert (public["view"], public["model"]) == ("public", marked.name)
    assert list(public["files"]) == [marked.name]
    assert not {"margins", "margin_histogram", "placement", "tensors", "reason"} & set(public)
    panel = call(*args)
    assert panel.code == 0
    for text in (panel.out, page.read_text()):
        assert "160" in text
        assert "layer1" not in text
        assert "margin" not in text.lower().replace("margin:", "").replace("margin-", "")


@pytest.fixture
def deep(key: Path, tmp_path: Path) -> Path:
    """A marked model of many layers of one size."""
    path = tmp_path / "deep.safetensors"
    save_file({f"{n}.weight": gaussian(96, 88 + n, seed=n) for n in range(25)}, path)
    out = tmp_path / "deep-marked.safetensors"
    assert call("embed", path, "--key", key, "-o", out).code == 0
    return out


def test_bits_of_too_few_weights_are_not_counted(deep: Path, key: Path, tmp_path: Path) -> None:
    suspect = tmp_path / "away.safetensors"
    save_file({"a": load_file(deep)["3.weight"]}, suspect)
    args = ("verify", suspect, "--key", key, "--claim", f"{deep}.claim.json")
    result = call(*args)
    assert (result.code, result.err) == (1, "")
    for words in (
        "not counted: only 3.64 % of the marked weights were found; at least 5 % is asked for",
        "none is claimed, as the bits are not counted",
        "found:               3.64 % of the marked weights; at least 5 % is asked for",
    ):
        assert words in result.out
    assert re.search(r"aligned: .* bits, not counted \(aligner version \d+, [\d.]+ s\)", result.out)
    assert "by luck" not in result.out
    public = call(*args, "--public").out
    assert "not counted: too little of the marked weights was found; at least 5 %" in public
    assert "3.64 %" not in public


def test_bits_by_position_are_said_to_be(marked: Path, key: Path, tmp_path: Path) -> None:
    suspect = gaussian_model(tmp_path / "stranger.safetensors", seed=99)
    args = ("verify", suspect, "--key", key, "--claim", f"{marked}.claim.json")
    told, shown = call(*args, "--json").json, call(*args).out
    assert told["alignment"]["found"] < 0.05
    assert told["mapping"] == "names"  # whatever the bits of what was filled from the anchor
    assert "), read by position" in shown
    assert "bits, not counted: only" not in shown
    assert "by luck" not in shown


def test_nan_beside_the_carriers_is_told(marked: Path, key: Path, tmp_path: Path) -> None:
    suspect, weights = tmp_path / "nan.safetensors", load_file(marked)
    secret, claim = Key.load(key), Claim.load(f"{marked}.claim.json")
    mark = secret.at(claim.placement, claim.anchor_digest)
    carriers = Carriers.of(mark, sum(math.prod(shape) for _, shape in claim.placement))
    at = set(carriers.positions(0, carriers.size).tolist())
    name, shape = claim.placement[0]
    beside = next(place for place in range(math.prod(shape)) if place not in at)
    weights[name].reshape(-1)[beside] = np.nan
    save_file(weights, suspect)
    told = call("verify", suspect, "--key", key, "--claim", f"{marked}.claim.json")
    assert told.code == 0
    words = " ".join(told.out.split())
    assert "that do not carry the mark are NaN or infinite" in words
    assert re.search(r"certified radius: [\d.]+: no smaller change", words)


def test_what_was_set_aside_is_not_nothing(deep: Path, key: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    changed = load_file(deep)
    for name, weights in changed.items():
        rows, columns = (rng.standard_normal((size, 2)) for size in weights.shape)
        changed[name] = weights + (0.15 * rows @ columns.T).astype(np.float32)
    suspect = tmp_path / "merged.safetensors"
    save_file(changed, suspect)
    shown = call("verify", suspect, "--key", key, "--claim", f"{deep}.claim.json").out
    assert "set aside:           a change of rank 2" in shown
    assert "what was done:       changed in place: see what was set aside" in shown
    assert re.search(r"aligned: .* bits \(aligner version \d+, [\d.]+ s\)", shown)
