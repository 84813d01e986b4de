"""The hub: commits, pages, redirects to a CDN, tokens, and gated models."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from neuralmark import RemoteOptions, at_url
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import AccessError, AddressError, RemoteError
from tests.support import ranges
from tests.support.ranges import COMMIT, HubRepository, RangeServer

DATA = np.random.default_rng(8).bytes(400_000)


@pytest.fixture
def hub(web: RangeServer, monkeypatch: pytest.MonkeyPatch) -> HubRepository:
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    made = HubRepository(web, "Acme/bert-1.0", page=3)
    made.put("config.json", b"{}")
    return made


@pytest.fixture
def cdn(hub: HubRepository) -> Iterator[RangeServer]:
    with ranges.range_server() as other:
        hub.cdn = other
        yield other


def test_a_revision_becomes_a_commit_and_stays_it(
    hub: HubRepository, web: RangeServer, options: RemoteOptions
) -> None:
    hub.put("model.bin", DATA)
    place = at_url("hf://Acme/bert-1.0/model.bin", options)
    assert str(place) == "hf://Acme/bert-1.0/model.bin"
    assert place.size() == len(DATA)
    hub.commit = "f" * 40  # the branch moves on
    assert place.read_bytes() == DATA
    assert str(place) == f"hf://Acme/bert-1.0@{COMMIT}/model.bin"
    assert place.pinned() == f"commit {COMMIT}"
    asked = [each.path for each in web.asked]
    assert asked[0].startswith("/api/models/Acme/bert-1.0/revision/main?")
    assert all(path == f"/Acme/bert-1.0/resolve/{COMMIT}/model.bin" for path in asked[1:])


def test_a_commit_is_not_looked_up(
    hub: HubRepository, web: RangeServer, options: RemoteOptions
) -> None:
    hub.put("model.bin", DATA)
    assert at_url(f"hf://Acme/bert-1.0@{COMMIT}/model.bin", options).size() == len(DATA)
    assert len(web.asked) == 1


def test_revisions_with_slashes(
    hub: HubRepository, web: RangeServer, options: RemoteOptions
) -> None:
    web.always["/api/models/Acme/bert-1.0/revision/refs/pr/1"] = hub._revision
    assert at_url("hf://Acme/bert-1.0@refs%2Fpr%2F1/config.json", options).read_bytes() == b"{}"
    assert web.asked[0].path.startswith("/api/models/Acme/bert-1.0/revision/refs%2Fpr%2F1")


def test_folders_are_listed_by_pages(
    hub: HubRepository, web: RangeServer, options: RemoteOptions
) -> None:
    for i in range(8):
        hub.put(f"part{i}.bin", b"x")
    hub.put("sub/deep/w.safetensors", b"x")
    folder = at_url("hf://Acme/bert-1.0", options)
    assert folder.is_dir()
    assert not folder.is_file()
    names = {each.name for each in folder.iterdir()}
    assert names == {"config.json", "sub", *(f"part{i}.bin" for i in range(8))}
    before = len(web.asked)
    assert (folder / "part3.bin").is_file()
    assert not (folder / "part9.bin").is_file()  # the listing tells: nothing is asked
    assert len(web.asked) == before
    walked = [str(each).rpartition(f"@{COMMIT}/")[2] for each in folder.walk()]
    assert "sub/deep/w.safetensors" in walked
    assert len(walked) == 10
    assert [each.name for each in (folder / "sub").iterdir()] == ["deep"]


def test_walking_asks_for_pages_as_they_are_needed(
    hub: HubRepository, web: RangeServer, options: RemoteOptions
) -> None:
    for i in range(50):
        hub.put(f"part{i:02}.bin", b"x")
    walk = at_url("hf://Acme/bert-1.0", options).walk()
    next(walk)
    assert len([each for each in web.asked if "/tree/" in each.path]) == 1


def test_too_many_files_are_a_named_error(
    hub: HubRepository, options: RemoteOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuralmark.remote.transfer.session.MOST_LISTED", 20)
    for i in range(30):
        hub.put(f"part{i:02}.bin", b"x")
    with pytest.raises(RemoteError, match="holds more than 20 things: name the file"):
        open_checkpoint(at_url("hf://Acme/bert-1.0", options))


def test_names_with_control_characters(hub: HubRepository, options: RemoteOptions) -> None:
    hub.put("evil\x1b[2J.safetensors.index.json", b"{}")
    folder = at_url("hf://Acme/bert-1.0", options)
    assert all(str(each).isprintable() for each in folder.walk())
    with pytest.raises(AddressError, match="its name has control characters"):
        open_checkpoint(folder).names()


def test_a_sharded_folder_on_a_cdn_is_a_checkpoint(
    hub: HubRepository, cdn: RangeServer, options: RemoteOptions
) -> None:
    rng = np.random.default_rng(3)
    arrays = {f"l{i}": rng.standard_normal((50, 40)).astype(np.float32) for i in range(2)}
    for i, (name, array) in enumerate(arrays.items()):
        hub.put(f"model-0000{i + 1}-of-00002.safetensors", save({name: array}), large=True)
    names = {f"l{i}": f"model-0000{i + 1}-of-00002.safetensors" for i in range(2)}
    hub.put("model.safetensors.index.json", json.dumps({"weight_map": names}).encode())
    checkpoint = open_checkpoint(at_url("hf://Acme/bert-1.0", options))
    assert checkpoint.format == "folder of safetensors"
    for name, array in arrays.items():
        got = np.concatenate([piece.view(np.float32).copy() for piece in checkpoint.read(name)])
        assert np.array_equal(got, array.ravel())
    assert checkpoint.pins() == dict.fromkeys(names.values(), f"commit {COMMIT}")
    assert cdn.asked


def test_the_token_goes_to_the_hub_and_not_to_the_cdn(
    hub: HubRepository,
    cdn: RangeServer,
    web: RangeServer,
    options: RemoteOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub.token = "hf_hunter2"
    hub.put("model.bin", DATA, large=True)
    with pytest.raises(AccessError, match=r"is gated: ask its owner .* then log in"):
        at_url("hf://Acme/bert-1.0/model.bin", options).size()
    monkeypatch.setenv("HF_TOKEN", "hf_hunter2\n")
    place = at_url("hf://Acme/bert-1.0/model.bin", options)
    assert place.read_bytes() == DATA
    assert web.asked[-1].headers["authorization"] == "Bearer hf_hunter2"
    assert cdn.asked
    assert not any("authorization" in each.headers for each in cdn.asked)
    assert "hunter2" not in f"{place} {place!r} {place.pinned()} {place.stamp()}"


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_TOKEN_PATH", "XDG_CACHE_HOME", "HOME"])
def test_the_token_is_found_where_the_hubs_client_keeps_it(
    hub: HubRepository,
    options: RemoteOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    home = tmp_path / "elsewhere"
    below = {"HF_TOKEN_PATH": "", "HF_HOME": "token", "XDG_CACHE_HOME": "huggingface/token"}
    file = home / below.get(variable, ".cache/huggingface/token")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("hf_hunter2")
    monkeypatch.setenv(variable, str(home))
    hub.token = "hf_hunter2"
    assert at_url("hf://Acme/bert-1.0/config.json", options).read_bytes() == b"{}"
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    with pytest.raises(AccessError):
        at_url("hf://Acme/bert-1.0/config.json", options).size()


def test_what_the_hub_refuses_is_named(
    hub: HubRepository, web: RangeServer, options: RemoteOptions
) -> None:
    with pytest.raises(AccessError, match="no such model, or shows it only to some"):
        at_url("hf://Acme/other/model.bin", options).size()
    at = "/api/models/Acme/bert-1.0/revision/v9"
    web.always[at] = ranges.status(404, X_Error_Code="RevisionNotFound")
    with pytest.raises(RemoteError, match="has no revision 'v9'"):
        at_url("hf://Acme/bert-1.0@v9/model.bin", options).size()
    assert not at_url("hf://Acme/bert-1.0/none.bin", options).exists()


@pytest.mark.parametrize(
    "answer", [b"[]", b"{", b'{"sha": 7}', b'{"sha": "../../etc"}', b'{"id": "x"}', b"\xff"]
)
def test_a_hub_that_talks_nonsense(
    hub: HubRepository, web: RangeServer, options: RemoteOptions, answer: bytes
) -> None:
    def nonsense(handler: ranges.RangeHandler, _: bytes) -> bool:
        handler.answer(200, answer)
        return True

    web.always["/api/models/Acme/bert-1.0/revision/main"] = nonsense
    with pytest.raises(RemoteError):
        at_url("hf://Acme/bert-1.0/model.bin", options).size()


@pytest.mark.parametrize(
    "target", ["{tree}", "https://elsewhere.example/x", "https://[::1", "//a@b"]
)
def test_a_listing_that_never_ends_or_leads_away_is_refused(
    hub: HubRepository, web: RangeServer, options: RemoteOptions, target: str
) -> None:
    tree = f"/api/models/Acme/bert-1.0/tree/{COMMIT}"
    link = target.format(tree=web.url + tree)

    def around(handler: ranges.RangeHandler, _: bytes) -> bool:
        handler.answer(200, b"[]", {"Link": f'<{link}>; rel="next"'})
        return True

    web.always[tree] = around
    with pytest.raises(RemoteError, match=r"^hf://Acme.*goes on in an odd place"):
        list(at_url("hf://Acme/bert-1.0", options).iterdir())
