"""Write the files that a release leaves behind, for `test_releases`.

python -m tests.golden.make_release release-X.Y  (once, when X.Y is released; never again after)

The keys are no secrets: they follow from the name of the release.
"""

import contextlib
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import Claimant, Key, Parameters
from neuralmark.attacks.engine.options import StandardOptions, SuiteOptions
from neuralmark.attacks.engine.standard import standard
from neuralmark.attacks.engine.suite import suite
from neuralmark.keys.key import content_bytes
from neuralmark.records import to_json

PASSPHRASE = "golden passphrase"
BUYERS = ("Acme Ltd.", "Bolt GmbH")


def write(folder: Path) -> None:
    """Keys of every kind, a small model with its claim, and a record of each kind."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    salt, secret = (_bytes(folder.name, part) for part in ("salt", "secret"))
    number = folder.name.removeprefix("release-")
    content = content_bytes("Golden", f"release {number}")
    key = Key(Parameters(bits=256, pools=288), content, salt=salt, secret=secret)
    key.save(folder / "plain.nmkey", None)
    key.save(folder / "encrypted.nmkey", PASSPHRASE)
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((16, 24)).astype("<f4")
    Key.raw(matrix, 2, "contiguous", b"raw").save(folder / "raw.nmkey", None)
    weights = (0.05 * rng.standard_normal((128, 160))).astype(np.float16)
    save_file({"layer.weight": weights}, folder / "model.safetensors")
    neuralmark.embed(folder / "model.safetensors", key, folder / "marked.safetensors")
    (folder / "model.safetensors").unlink()
    with contextlib.chdir(folder):  # so that the records hold no path of this machine
        write_records(folder.name)


def write_records(release: str) -> None:
    """A record of every kind, in the folder of a release."""
    key, model = Key.load("plain.nmkey"), "marked.safetensors"
    claim = f"{model}.claim.json"
    verdict = neuralmark.verify(
        model, key, claim=claim, options=neuralmark.VerifyOptions(full_digest=True)
    ).with_owner("Golden")
    verdict.save("verdict.json")
    Path("public.json").write_text(to_json(verdict.public_dict()), encoding="utf-8")
    attacks = ("noise", "prune", "quantize", "forge_random", "detect", "finetune")
    suite(model, key, options=SuiteOptions(only=attacks, jobs=1), claim=claim).save("card.json")
    some = StandardOptions(only=("noise", "quantize", "finetune"))
    standard(model, key, options=some, claim=claim).save("standard.json")
    salt, secret = (_bytes(release, "thief", part) for part in ("salt", "secret"))
    thief = Key(key.parameters, content_bytes("Thief", ""), salt=salt, secret=secret)
    neuralmark.embed(model, thief, "stolen.safetensors")
    parties = (
        Claimant("Golden", key, model, claim, "2026-01-01"),
        Claimant("Thief", thief, "stolen.safetensors"),
    )
    neuralmark.arbitrate(parties, disputed="stolen.safetensors").save("ruling.json")
    write_moved(key, model, claim)
    write_copies(key, model)
    for path in [*Path().glob("stolen.*"), *Path().glob("moved.*")]:
        path.unlink()


def write_moved(key: Key, model: str, claim: str) -> None:
    """The verdict on a copy whose rows were permuted, and its lineage."""
    weights = load_file(model)["layer.weight"]
    rng = np.random.default_rng(2)
    moved = weights[rng.permutation(len(weights))]
    save_file({"other.weight": np.ascontiguousarray(moved)}, "moved.safetensors")
    verdict = neuralmark.verify("moved.safetensors", key, claim=claim)
    assert verdict.verified
    verdict.save("aligned.json")
    neuralmark.lineage(model, "moved.safetensors").save("lineage.json")


def write_copies(key: Key, model: str) -> None:
    """The register of two buyers' copies, one of these, its sub-key, and what a trace says."""
    weights = load_file(model)
    with tempfile.TemporaryDirectory() as name:
        sold = Path(name) / "sold"
        save_file({"layer.weight": weights["layer.weight"]}, Path(name) / "model.safetensors")
        register, _ = neuralmark.issue_copies(Path(name) / "model.safetensors", key, BUYERS, sold)
        register.save("copies.json")
        shutil.copyfile(sold / register.copies[1].path, "copy.safetensors")
        shutil.copyfile(sold / f"{register.base}.anchor", "copies.anchor")
    with_anchor = neuralmark.VerifyOptions(anchor="copies.anchor")
    found = neuralmark.trace("copy.safetensors", key, "copies.json", options=with_anchor)
    assert found.named == (BUYERS[1],)
    found.save("trace.json")
    sub, claim = neuralmark.buyer_key(key, BUYERS[1], "copies.json")
    sub.save("buyer.nmkey", None)
    claim.save("buyer.claim.json")


def _bytes(*words: str) -> bytes:
    return hashlib.sha256("/".join(words).encode()).digest()


if __name__ == "__main__":
    write(Path(__file__).parent / sys.argv[1])
