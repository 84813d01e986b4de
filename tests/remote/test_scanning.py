"""Scans, sandboxed verdicts and traces of models behind real URLs: the worker has no network."""

import json
from pathlib import Path

import pytest

from neuralmark import Key, RemoteOptions, ScanOptions, issue_copies, scan
from neuralmark.errors import UsageError
from tests.support import ranges
from tests.support.cluster import TOKEN
from tests.support.commands import call
from tests.support.market import LABELS, sold
from tests.support.models import QUICK, gaussian_model
from tests.support.ranges import COMMIT, HubRepository, RangeServer
from tests.support.scans import by_name, keys_of, mark, models_in, same


@pytest.fixture
def far(options: RemoteOptions) -> ScanOptions:
    return ScanOptions(jobs=1, remote=options)


@pytest.fixture
def near(tmp_path: Path) -> tuple[dict[str, Key], Path, Path]:
    """A key, a model with its mark, and one without."""
    keys = keys_of("a")
    other, model = models_in(tmp_path / "models", 2)
    return keys, mark(model, keys["a.nmkey"]), other


def test_files_behind_urls_are_scanned(
    web: RangeServer,
    far: ScanOptions,
    near: tuple[dict[str, Key], Path, Path],
    tmp_path: Path,
) -> None:
    """One with a mark, one without, a dead link, a server that gives up, credentials."""
    keys, marked, other = near
    good, plain = web.put("/good.safetensors", marked), web.put("/plain.safetensors", other)
    broken = web.put("/broken.safetensors", other)
    web.always["/broken.safetensors"] = ranges.status(500)
    secret = f"{web.url}/x.safetensors?sig=hunter2"
    user = "https://me:hunter3@example.org/x.safetensors"
    given = [good, plain, f"{web.url}/dead.safetensors", broken, secret, user, "gopher://x/y"]
    result = scan(given, keys, tmp_path / "out", options=far)
    assert result.protection is not None
    assert result.protection.whole
    rows = list(result.rows())
    assert [(row.status, row.error) for row in rows] == [
        *(("verified", None), ("nothing", None), ("error", "CheckpointError")),
        *(("error", "RemoteError"), ("error", "AddressError"), ("error", "AddressError")),
        ("error", "AddressError"),
    ]
    verdict = rows[0].verdict
    assert verdict is not None
    assert (rows[0].target, verdict["model"]) == (good, good)
    assert verdict["pins"]["good.safetensors"].startswith("ETag")
    assert "there is no such file" in rows[2].why
    for file in (tmp_path / "out").rglob("*"):
        assert file.is_dir() or b"hunter" not in file.read_bytes()


def test_private_addresses_become_rows(
    web: RangeServer,
    near: tuple[dict[str, Key], Path, Path],
    tmp_path: Path,
) -> None:
    keys, marked, _ = near
    url = web.put("/m.safetensors", marked).replace("http:", "https:")
    options = ScanOptions(jobs=1, remote=RemoteOptions(cache=False, retries=0))
    (row,) = scan([url], keys, tmp_path / "out", options=options).rows()
    assert (row.target, row.error) == (url, "AddressError")
    assert "private address" in row.why
    assert not web.asked


def test_a_repository_is_walked_page_by_page(
    web: RangeServer,
    far: ScanOptions,
    near: tuple[dict[str, Key], Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files in folders, and a pipeline whose index comes after its first component."""
    keys, marked, other = near
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    hub = HubRepository(web, "acme/zoo", page=2)
    hub.put("README.md", b"#")
    hub.put("deep/deeper/m.safetensors", marked.read_bytes(), large=True)
    hub.put("pipe/encoder/model.safetensors", other.read_bytes())
    hub.put("pipe/model_index.json", json.dumps({"encoder": ["a", "B"]}).encode())
    hub.put("plain.safetensors", other.read_bytes())
    result = scan(["hf://acme/zoo"], keys, tmp_path / "out", options=far)
    told = {row.target: (row.status, row.format) for row in result.rows()}
    root = f"hf://acme/zoo@{COMMIT}"
    assert told == {
        f"{root}/deep/deeper/m.safetensors": ("verified", "safetensors"),
        f"{root}/pipe": ("nothing", "diffusers of safetensors"),
        f"{root}/plain.safetensors": ("nothing", "safetensors"),
    }


def test_the_command_scans_folders_of_web_servers(
    web: RangeServer,
    near: tuple[dict[str, Key], Path, Path],
    tmp_path: Path,
) -> None:
    keys, marked, _ = near
    keys["a.nmkey"].save(tmp_path / "a.nmkey", None)
    web.put("/models/model.safetensors", marked)
    words = ("scan", f"{web.url}/models/", "--keys", tmp_path / "a.nmkey", "--jobs", 1, "--json")
    done = call(*words, "-o", tmp_path / "out", "--allow-private", "--no-cache")
    assert done.code == 0, done
    (found,) = done.json["findings"]
    assert found["target"] == f"{web.url}/models/model.safetensors"
    assert not (tmp_path / "cache").exists()
    refused = call(*words, "-o", tmp_path / "refused")
    assert (refused.code, refused.json["counts"]) == (1, {"error": 1})


def test_a_sandboxed_verdict_on_a_url_is_the_same(
    web: RangeServer,
    tmp_path: Path,
) -> None:
    key = Key.new(QUICK)
    key.save(tmp_path / "k.nmkey", None)
    claims = tmp_path / "claims"
    marked = mark(gaussian_model(tmp_path / "m.safetensors"), key, claims)
    url = web.put("/m.safetensors", marked)
    start = ("verify", url, "--key", tmp_path / "k.nmkey", "--json")
    words = (
        *start,
        "--allow-private",
        "--no-cache",
        "--claim",
        claims / f"{marked.name}.claim.json",
    )
    plain, apart = call(*words), call(*words, "--sandbox", "--memory", "1G")
    assert plain.code == apart.code == 0, apart
    assert plain.json["pins"]
    assert {**plain.json, "date": None} == {**apart.json, "date": None}
    line = call(*start, "--sandbox").failed(3, "AddressError")
    assert "--allow-private" in line


def test_a_trace_takes_a_url_and_copies_do_not(
    web: RangeServer,
    tmp_path: Path,
) -> None:
    market = sold(tmp_path, LABELS[:2])
    url = web.put("/leak.safetensors", market.path(LABELS[1]))
    market.key.save(tmp_path / "k.nmkey", None)
    words = ("trace", url, "--key", tmp_path / "k.nmkey", "--buyers", market.folder, "--json")
    done = call(*words, "--allow-private", "--no-cache")
    assert (done.code, done.json["named"]) == (0, [LABELS[1]])
    assert done.json["suspect"] == url
    assert "--allow-private" in call(*words).failed(3, "AddressError")
    with pytest.raises(UsageError, match="download it first"):
        issue_copies("hf://acme/bert", market.key, ["x"], tmp_path / "new")
    assert not (tmp_path / "new").exists()
    given = ("--key", tmp_path / "k.nmkey", "--buyers", "b.csv", "-o", tmp_path / "new")
    line = call("copies", "hf://acme/bert", *given).failed(2, "BadParameter")
    assert "download it first" in line


@pytest.mark.slow
def test_a_cluster_reads_urls(
    web: RangeServer,
    far: ScanOptions,
    near: tuple[dict[str, Key], Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    keys, marked, _ = near
    url = web.put("/m.safetensors", marked)
    here = scan([url], keys, tmp_path / "here", options=far)
    chosen = ScanOptions(jobs=1, engine="ray", remote=far.remote)
    there = scan([url], keys, tmp_path / "there", options=chosen)
    assert same(there.rows()) == same(here.rows())
    assert by_name(there)["m.safetensors"][0].status == "verified"
