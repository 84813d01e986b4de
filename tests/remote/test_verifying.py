"""Verdicts, inspections, rulings on models behind URLs: as on files, and as little is read."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from neuralmark import (
    EmbedOptions,
    Key,
    Parameters,
    RemoteOptions,
    Verdict,
    at_url,
    embed,
    inspect,
    lineage,
    recheck,
    verify,
)
from neuralmark.cli import _output as output
from neuralmark.errors import ChangedError, CheckpointError, UsageError
from neuralmark.remote.transfer import metering
from tests.support import ranges
from tests.support.commands import Result, call
from tests.support.ranges import COMMIT, HubRepository, RangeServer

SIZE = 300 * 400 * 4


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    """Nine tensors, one of them marked; key and claim beside it."""
    rng = np.random.default_rng(1)
    arrays = {f"l{i}.weight": rng.standard_normal((300, 400)).astype(np.float32) for i in range(9)}
    save_file(arrays, tmp_path / "plain.safetensors")
    key = Key.new(Parameters(bits=160, pools=200))
    key.save(tmp_path / "k.nmkey", None)
    options = EmbedOptions(tensors=["l3.weight"], anchor=False)
    embed(tmp_path / "plain.safetensors", key, tmp_path / "m.safetensors", options)
    return tmp_path / "m.safetensors"


@pytest.fixture
def key(marked: Path) -> Path:
    return marked.parent / "k.nmkey"


@pytest.fixture
def claim(marked: Path) -> Path:
    return marked.parent / "m.safetensors.claim.json"


def far(*words: object) -> Result:
    return call(*words, "--allow-private", "--no-cache")


def test_a_verdict_on_a_url_reads_the_header_and_the_marked_tensor(
    web: RangeServer, options: RemoteOptions, marked: Path, key: Path, claim: Path
) -> None:
    url = web.put("/m.safetensors", marked)
    verdict = verify(at_url(url, options), Key.load(key), claim=claim)
    near = verify(marked, Key.load(key), claim=claim)
    assert verdict.verified
    assert verdict.matched == near.matched
    assert verdict.checkpoint_digest.tensors == near.checkpoint_digest.tensors
    assert verdict.sha256 is None  # the whole file was not read
    assert web.sent <= 65_536 + SIZE + 2
    assert verdict.model == url
    assert list(verdict.pins) == ["m.safetensors"]
    assert verdict.pins["m.safetensors"].startswith('ETag "')
    assert Verdict.from_dict(json.loads(verdict.to_json())) == verdict
    assert "pins" not in near.to_dict()
    assert recheck(verdict, at_url(url, options), Key.load(key), claim=claim).holds


def test_a_file_that_changes_while_it_is_read(
    web: RangeServer, options: RemoteOptions, marked: Path, key: Path, claim: Path
) -> None:
    url = web.put("/m.safetensors", marked)
    place = at_url(url, options)
    place.size()
    web.put("/m.safetensors", marked.read_bytes()[::-1])
    with pytest.raises(ChangedError):
        verify(place, Key.load(key), claim=claim)
    web.put("/m.safetensors", marked)
    place = at_url(url, options)

    def swap(handler: ranges.RangeHandler, data: bytes) -> bool:
        handler.serve(handler.server.files["/m.safetensors"])
        web.put("/m.safetensors", data, etag='"swapped"')  # behind the last range
        return True

    web.faults["/m.safetensors"] = [lambda *_: False, lambda *_: False, swap]
    with pytest.raises(CheckpointError, match="changed while it was read"):
        verify(place, Key.load(key), claim=claim)


def test_the_command_takes_urls(
    web: RangeServer, marked: Path, key: Path, claim: Path, tmp_path: Path
) -> None:
    url = web.put("/m.safetensors", marked)
    told = far("verify", url, "--key", key, "--claim", claim, "--json").json
    assert told["verified"]
    assert told["model"] == url
    assert told["pins"]["m.safetensors"].startswith("ETag")
    shown = far("verify", url, "--key", key, "--claim", claim)
    assert shown.code == 0
    assert "version of m.safetensors" in shown.out
    page = tmp_path / "page.html"
    again = far("verify", url, "--key", key, "--claim", claim, "--report", page)
    assert again.code == 0
    assert "held to" in page.read_text()
    record = tmp_path / "v.json"
    record.write_text(json.dumps(told))
    assert far("recheck", record, url, "--key", key, "--claim", claim).code == 0
    rows = far("inspect", url, "--headers-only", "--json").json["rows"]
    assert len(rows) == 9


def test_the_command_refuses_private_addresses_unless_told(
    web: RangeServer, marked: Path, key: Path
) -> None:
    url = web.put("/m.safetensors", marked)
    line = call("verify", url, "--key", key).failed(3, "AddressError")
    assert "--allow-private" in line
    secure = url.replace("http:", "https:")
    line = call("verify", secure, "--key", key).failed(3, "AddressError")
    assert "--allow-private" in line
    assert not web.asked


def test_only_models_that_are_read_may_be_urls(key: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.safetensors"
    line = call("embed", "hf://acme/bert", "--key", key, "-o", out).failed(2, "BadParameter")
    assert "download it first" in line
    line = call("verify", "m", "--key", "https://me:hunter2@host/k").failed(2, "BadParameter")
    assert "hunter2" not in line
    with pytest.raises(UsageError, match="download it first"):
        embed("hf://acme/bert", Key.load(key), out)


def test_secrets_reach_no_output(
    web: RangeServer, marked: Path, key: Path, claim: Path, tmp_path: Path
) -> None:
    for url in ("https://me:hunter2@host/m.safetensors", "https://host/m?sig=hunter2"):
        for words in (("verify", url, "--key", key), ("inspect", url), ("lineage", url, url)):
            for more in ((), ("--json",)):
                done = call(*words, *more)
                assert done.code == 3
                assert "hunter2" not in done.out + done.err
    web.put("/m.safetensors", marked)
    web.always["/link"] = ranges.redirect(f"{web.url}/m.safetensors?X-Amz-Signature=hunter2")
    page = tmp_path / "page.html"
    redirected = ("verify", f"{web.url}/link?id=hunter3", "--key", key, "--claim", claim)
    for option in ([], ["--json"], ["--report", page], ["--public"]):
        done = far(*redirected, *option)
        assert done.code == 0
        assert "hunter" not in done.out + done.err
    assert "hunter" not in page.read_text()


def test_a_model_of_the_hub_by_text_alone(
    web: RangeServer, marked: Path, key: Path, claim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    hub = HubRepository(web, "acme/bert")
    hub.put("model.safetensors", marked.read_bytes(), large=True)
    hub.put("config.json", b"{}")
    told = far("verify", "hf://acme/bert", "--key", key, "--claim", claim, "--json").json
    assert told["verified"]
    assert told["model"] == f"hf://acme/bert@{COMMIT}"
    assert told["pins"] == {"model.safetensors": f"commit {COMMIT}"}


def test_lineage_and_inspection_by_url(
    web: RangeServer, options: RemoteOptions, marked: Path
) -> None:
    url = web.put("/m.safetensors", marked)
    found = lineage(marked.parent / "plain.safetensors", at_url(url, options))
    assert found.related
    assert found.other == url
    looked = inspect(at_url(url, options))
    assert looked.model == url
    assert looked.rows[0].grid == "float32"


def test_a_ruling_on_urls(web: RangeServer, marked: Path, key: Path, tmp_path: Path) -> None:
    thief = Key.new(Parameters(bits=160, pools=200))
    thief.save(tmp_path / "t.nmkey", None)
    stolen = tmp_path / "stolen.safetensors"
    embed(marked, thief, stolen, EmbedOptions(tensors=["l5.weight"], anchor=False))
    one, two = web.put("/m.safetensors", marked), web.put("/s.safetensors", stolen)
    done = far(
        *("arbitrate", "--claimant", "Acme", key, one, "--claimant", "Bandit"),
        *(tmp_path / "t.nmkey", two, "--claim", "Acme", tmp_path / "m.safetensors.claim.json"),
        *("--claim", "Bandit", tmp_path / "stolen.safetensors.claim.json", "--json"),
    )
    assert done.code == 0, done
    assert done.json["owner"] == "Acme"


def test_what_was_fetched_is_told(web: RangeServer, options: RemoteOptions) -> None:
    before = metering.traffic()
    at_url(web.put("/m.bin", bytes(1000)), options).read_bytes()
    assert (metering.traffic() - before).fetched == 1000
    assert output._fetched() == metering.traffic().fetched


def test_formats_that_read_about_are_read_too(
    web: RangeServer, options: RemoteOptions, tmp_path: Path
) -> None:
    """Archives begin at their end; their tensors are the same from afar."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    arrays = {f"w{i}": rng.standard_normal((40, 50)).astype(np.float32) for i in range(30)}
    np.savez(tmp_path / "m.npz", **arrays)  # type: ignore[arg-type]
    torch.save({name: torch.from_numpy(a) for name, a in arrays.items()}, tmp_path / "m.pt")
    from neuralmark.checkpoints import open_checkpoint

    for name in ("m.npz", "m.pt"):
        checkpoint = open_checkpoint(at_url(web.put(f"/{name}", tmp_path / name), options))
        for tensor, array in arrays.items():
            got = np.concatenate([p.view(np.float32).copy() for p in checkpoint.read(tensor)])
            assert np.array_equal(got, array.ravel())
        asked = [each.headers["range"] for each in web.asked if each.path == f"/{name}"]
        assert len(asked) == len(set(asked))  # nothing is fetched twice
