"""Buckets: moto's S3, and servers that speak Google's and Azure's language."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from neuralmark import RemoteOptions, at_url
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import AccessError, AddressError, ChangedError, RemoteError
from neuralmark.remote.transfer import metering
from neuralmark.storage.places import FarPlace
from tests.support import buckets, ranges
from tests.support.ranges import RangeServer

DATA = np.random.default_rng(9).bytes(500_000)
PATIENT = RemoteOptions(allow_private=True, cache=False, timeout=10, retries=2)
Put = Callable[[str, bytes], None]


def read(place: FarPlace, at: int, length: int) -> bytes:
    room = bytearray(length)
    return bytes(room[: place.read_into(memoryview(room), at)])


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with buckets.moto_s3() as address:
        yield address


@pytest.fixture
def s3(moto: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    import boto3

    monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAHUNTER2")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    client = boto3.client("s3", endpoint_url=moto, region_name="us-east-1")
    client.create_bucket(Bucket="models")
    yield client
    found = client.list_object_versions(Bucket="models")
    for each in [*found.get("Versions", []), *found.get("DeleteMarkers", [])]:
        client.delete_object(Bucket="models", Key=each["Key"], VersionId=each["VersionId"])
    client.delete_bucket(Bucket="models")


@pytest.fixture(params=["s3", "gs", "az"])
def store(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[str, Put]]:
    """A bucket of each kind, and how something is put into it."""
    if request.param == "s3":
        client = request.getfixturevalue("s3")
        yield (
            "s3://models",
            lambda key, data: client.put_object(Bucket="models", Key=key, Body=data),
        )
    elif request.param == "gs":
        with buckets.google() as server:
            account = {"gcs_base_url": server.url, "disable_oauth": True, "client_email": ""}
            told = {**account, "private_key": "", "private_key_id": ""}
            monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(told))
            yield "gs://bucket", lambda key, data: buckets.put(server, f"/bucket/{key}", data)
    else:
        with buckets.azure() as server:
            monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acme")
            monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", server.url)
            yield "az://container", lambda key, data: buckets.put(server, f"/container/{key}", data)


def test_objects_are_read_in_ranges(store: tuple[str, Put]) -> None:
    root, put = store
    put("a/model.bin", DATA)
    place = at_url(f"{root}/a/model.bin", PATIENT)
    before = metering.traffic()
    assert place.is_file()
    assert not place.is_dir()
    assert read(place, 200_000, 100_000) == DATA[200_000:300_000]
    assert (metering.traffic() - before).fetched == 65_536 + 100_000
    assert place.size() == len(DATA)
    assert place.read_bytes() == DATA
    assert str(place.pinned()).startswith("ETag ")
    assert not at_url(f"{root}/a/none.bin", PATIENT).exists()


def test_folders_are_listed(store: tuple[str, Put]) -> None:
    root, put = store
    for key in ("a/model.safetensors", "a/b/c/deep.bin", "a/z.txt", "ab/other.bin", "top.bin"):
        put(key, b"x")
    folder = at_url(f"{root}/a", PATIENT)
    assert folder.is_dir()
    assert not folder.is_file()
    assert [each.name for each in folder.iterdir()] == ["b", "model.safetensors", "z.txt"]
    assert (folder / "z.txt").is_file()
    assert (folder / "b").is_dir()
    walked = [str(each) for each in folder.walk()]
    assert walked == [f"{root}/a/{name}" for name in ("b/c/deep.bin", "model.safetensors", "z.txt")]
    assert {each.name for each in at_url(root, PATIENT).iterdir()} == {"a", "ab", "top.bin"}


def test_a_model_in_a_bucket_is_a_checkpoint(store: tuple[str, Put]) -> None:
    root, put = store
    array = np.random.default_rng(2).standard_normal((300, 200)).astype(np.float32)
    put("m/model.safetensors", save({"w": array}))
    put("m/config.json", b"{}")
    checkpoint = open_checkpoint(at_url(f"{root}/m", PATIENT))
    got = np.concatenate([piece.view(np.float32).copy() for piece in checkpoint.read("w")])
    assert np.array_equal(got, array.ravel())


def test_a_swapped_object_is_noticed(store: tuple[str, Put]) -> None:
    root, put = store
    put("model.bin", DATA)
    place = at_url(f"{root}/model.bin", PATIENT)
    before = place.stamp()
    place.size()
    put("model.bin", DATA[::-1])
    with pytest.raises(ChangedError):
        read(place, 200_000, 100_000)
    assert place.stamp() != before


def test_empty_objects(store: tuple[str, Put]) -> None:
    root, put = store
    put("empty.bin", b"")
    assert at_url(f"{root}/empty.bin", PATIENT).read_bytes() == b""


def test_a_version_is_read_on_after_a_newer_one(s3: Any) -> None:
    s3.put_bucket_versioning(Bucket="models", VersioningConfiguration={"Status": "Enabled"})
    s3.put_object(Bucket="models", Key="m.bin", Body=DATA)
    place = at_url("s3://models/m.bin", PATIENT)
    assert str(place.pinned()).startswith("version ")
    before = place.stamp()
    s3.put_object(Bucket="models", Key="m.bin", Body=DATA[::-1])
    assert read(place, 200_000, 100_000) == DATA[200_000:300_000]
    assert place.stamp() != before  # a verdict says so all the same


def test_a_bucket_of_very_many_objects_is_a_named_error_after_a_few_pages(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuralmark.remote.transfer.session.MOST_LISTED", 50)
    for i in range(60):
        s3.put_object(Bucket="models", Key=f"many/part{i:03}.bin", Body=b"x")
    with pytest.raises(RemoteError, match="holds more than 50 things: name the file"):
        open_checkpoint(at_url("s3://models/many", PATIENT))
    assert at_url("s3://models/many", PATIENT).is_dir()
    assert at_url("s3://models/many/part001.bin", PATIENT).is_file()


def test_what_lies_deeper_is_skipped_not_listed(s3: Any) -> None:
    for i in range(40):
        s3.put_object(Bucket="models", Key=f"a/deep/part{i:03}.bin", Body=b"x")
    s3.put_object(Bucket="models", Key="a/model.bin", Body=b"x")
    from neuralmark.remote.transfer import bucket

    names = [each.name for each in at_url("s3://models/a", PATIENT).iterdir()]
    assert names == ["deep", "model.bin"]
    assert bucket.PAGE == 1000


@pytest.mark.parametrize("store", ["gs", "az"], indirect=True)  # moto takes no such names
def test_names_with_control_characters(store: tuple[str, Put]) -> None:
    root, put = store
    put("odd/evil\n.index.json", b"x")
    put("odd/model.bin", b"y")
    with pytest.raises(RemoteError, match=r"whose name cannot be used.*name the file"):
        open_checkpoint(at_url(f"{root}/odd", PATIENT))
    assert at_url(f"{root}/odd/model.bin", PATIENT).read_bytes() == b"y"


def test_a_bucket_that_is_not_there(s3: Any) -> None:
    gone = at_url("s3://nowhere-at-all/m.bin", PATIENT)
    assert not gone.is_file()


def test_secrets_stay_out_of_everything(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put_object(Bucket="models", Key="m.bin", Body=DATA)
    place = at_url("s3://models/m.bin", PATIENT)
    told = f"{place} {place!r} {place.pinned()} {place.stamp()}"
    assert "hunter2" not in told.lower()


@pytest.mark.parametrize("code", [401, 403])
def test_wrong_credentials(web: RangeServer, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acme")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", web.url)
    monkeypatch.setenv("AZURE_STORAGE_SAS_KEY", "sv=2020&sig=hunter2")
    web.always["/container/m.bin"] = ranges.status(code)
    with pytest.raises(AccessError, match="access is denied") as caught:
        at_url("az://container/m.bin", PATIENT).size()
    assert "sig=hunter2" in web.asked[0].path  # it was sent, and stays out of the message
    assert "hunter2" not in str(caught.value)


def test_servers_that_cut_off_stall_and_lie(
    web: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acme")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", web.url)
    hasty = RemoteOptions(allow_private=True, cache=False, timeout=0.5, retries=1)
    buckets.put(web, "/container/m.bin", DATA)
    for fault in (ranges.stall, ranges.silent, ranges.whole, ranges.says("bytes 1-2/3")):
        place = at_url("az://container/m.bin", hasty)
        place.size()
        web.always["/container/m.bin"] = fault
        with pytest.raises(RemoteError):
            read(place, 200_000, 100_000)
        del web.always["/container/m.bin"]


def test_private_endpoints_need_a_word(web: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", web.url)
    with pytest.raises(AddressError, match="private address"):
        at_url("s3://models/m.bin")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acme")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "https://user:hunter2@localhost/x?sig=hunter2")
    with pytest.raises(AddressError, match="private address") as caught:
        at_url("az://container/m.bin")
    assert "hunter2" not in str(caught.value)
    assert not web.asked
    for odd in ("https://[::1", "https://[nonsense]/", "https://localhost:99999"):
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", odd)
        with pytest.raises(RemoteError, match="there is no such host"):
            at_url("az://container/m.bin")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "https://[::1]")
    with pytest.raises(AddressError, match="private address"):
        at_url("az://container/m.bin")


def test_the_account_is_asked_for() -> None:
    with pytest.raises(AccessError, match="set AZURE_STORAGE_ACCOUNT_NAME"):
        at_url("az://container/m.bin")


def test_without_credentials_open_buckets_are_read_unsigned(
    moto: str, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_object(Bucket="models", Key="m.bin", Body=DATA, ACL="public-read")
    s3.put_object(Bucket="models", Key="closed.bin", Body=DATA)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert at_url("s3://models/m.bin", PATIENT).size() == len(DATA)
    with pytest.raises(AccessError, match="access is denied"):
        at_url("s3://models/closed.bin", PATIENT).size()
