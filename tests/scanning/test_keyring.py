"""Which marks are looked for."""

from pathlib import Path
from typing import Any

import pytest

from neuralmark import EmbedOptions, Key, embed, schemes
from neuralmark.errors import ClaimMismatchError, KeyFileError, ParameterError
from neuralmark.records import Claim
from neuralmark.scanning.keyring import key_files, keyring_of
from tests.support.models import QUICK, gaussian_model
from tests.support.scans import PLAIN, keys_of


def test_keys_come_from_folders_lists_and_tables(tmp_path: Path) -> None:
    keys = keys_of("a", "b")
    (tmp_path / "deep").mkdir()
    keys["a.nmkey"].save(tmp_path / "a.nmkey", None)
    keys["b.nmkey"].save(tmp_path / "deep" / "b.nmkey", None)
    assert [path.name for path in key_files(tmp_path)] == ["a.nmkey", "b.nmkey"]
    assert key_files(tmp_path / "a.nmkey") == [tmp_path / "a.nmkey"]
    for given in (tmp_path, keys, list(keys.values())):
        ring = keyring_of(given)
        assert {key.fingerprint for key in ring.keys} == {k.fingerprint for k in keys.values()}
    assert keyring_of(keys).digest == keyring_of(dict(reversed(keys.items()))).digest
    with pytest.raises(KeyFileError, match="no such file or folder"):
        key_files(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(KeyFileError, match="no key file"):
        key_files(tmp_path / "empty")


def test_one_key_counts_once() -> None:
    key = Key.new(QUICK)
    assert len(keyring_of({"a": key, "b": key}).sought) == 1


def test_several_places_and_keys(tmp_path: Path) -> None:
    """Files of one name are told apart, a file that is named twice is taken once."""
    keys = keys_of("a", "b", "c", "d", "e")
    one, two, three, four, five = keys.values()
    places = [tmp_path / name for name in ("one/a.nmkey", "two/a.nmkey", "two/deep/a.nmkey")]
    for path, key in zip(places, (one, two, three), strict=True):
        path.parent.mkdir(parents=True)
        key.save(path, None)
    four.save(tmp_path / "d.nmkey", None)
    given: list[Key | str | Path] = [places[0], str(tmp_path / "two"), five, tmp_path / "d.nmkey"]
    ring = keyring_of([*given, tmp_path / "two" / "deep", str(places[0])])
    named = {
        "a.nmkey": one,
        str(places[1]): two,
        str(Path("deep") / "a.nmkey"): three,
        "d.nmkey": four,
        five.fingerprint: five,
    }
    found = {each.name: each.key.fingerprint for each in ring.sought}
    assert found == {name: key.fingerprint for name, key in named.items()}
    with pytest.raises(KeyFileError, match="no such file"):
        keyring_of([places[0], "nosuch.nmkey"])


def test_a_file_of_the_working_folder_is_told_from_its_namesake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far").mkdir()
    monkeypatch.chdir(tmp_path)
    for path in ("far/a.nmkey", "a.nmkey"):
        Key.new(QUICK).save(Path(path), None)
    assert len(keyring_of(["far/a.nmkey", "a.nmkey"]).sought) == 2


def test_what_is_no_key_is_refused() -> None:
    wrong: tuple[Any, ...] = ([], [b"a.nmkey"], [QUICK], {}, {"a": "a.nmkey"})
    for keys in wrong:
        with pytest.raises(ParameterError, match="keys must be"):
            keyring_of(keys)


def test_keys_that_read_activations_are_passed_over() -> None:
    live = Key.new(schemes.parameters("deepsigns"))
    ring = keyring_of({"a": Key.new(QUICK), "live": live})
    assert [each.name for each in ring.sought] == ["a"]
    assert "live" in ring.passed_over[0]
    with pytest.raises(ParameterError, match="none of the keys"):
        keyring_of({"live": live})


def test_claims_and_anchors_belong_to_their_keys(tmp_path: Path) -> None:
    keys = keys_of("a", "b", "c", "d")
    one, two, three, _ = keys.values()
    model = gaussian_model(tmp_path / "model.safetensors")
    claims, anchors = tmp_path / "claims", tmp_path / "anchors"
    claims.mkdir()
    anchors.mkdir()
    embed(model, one, claims / "one", options=PLAIN)
    embed(
        model, one, claims / "again", options=EmbedOptions(anchor=False, tensors=["layer1.weight"])
    )
    embed(model, two, claims / "two")
    embed(model, three, tmp_path / "three")
    (tmp_path / "three.anchor").rename(anchors / "three.anchor")
    ring = keyring_of(keys, claims, anchors)
    told = [(each.name, each.claim is not None, each.anchor is not None) for each in ring.sought]
    assert told == [
        ("a.nmkey", True, False),
        ("a.nmkey", True, False),
        ("b.nmkey", True, True),
        ("c.nmkey", False, True),
        ("d.nmkey", False, False),
    ]
    assert ring.digest != keyring_of(keys, claims).digest
    given = keyring_of({"c": three}, tmp_path / "three.claim.json", anchors)
    assert [each.anchor for each in given.sought] == [str(anchors / "three.anchor")]
    lost = keyring_of({"c": three}, tmp_path / "three.claim.json")
    assert [each.anchor for each in lost.sought] == [None]
    others = keyring_of({"d": keys["d.nmkey"]}, claims, anchors)
    assert len(others.passed_over) == 4


def test_an_edited_claim_stops_the_scan(tmp_path: Path) -> None:
    key = Key.new(QUICK)
    embed(gaussian_model(tmp_path / "m.safetensors"), key, tmp_path / "out", options=PLAIN)
    path = tmp_path / "out.claim.json"
    text = path.read_text().replace(Claim.load(path).commitment, "0" * 64)
    path.write_text(text)
    with pytest.raises(ClaimMismatchError, match="edited"):
        keyring_of([key], path)
