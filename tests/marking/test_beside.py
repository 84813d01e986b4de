"""What lies beside a model: where claims and anchors go, and which are found."""

from pathlib import Path

import pytest

from neuralmark import Claim, EmbedOptions, Key, embed
from neuralmark.errors import AnchorError, OutputError
from neuralmark.marking.beside import (
    Places,
    anchor_beside,
    anchor_path,
    claim_beside,
    claim_path,
    claims_beside,
    places_for,
)
from neuralmark.marking.evidence import Evidence, evidence_for
from tests.support.models import QUICK, sharded_model


def short(key: Key) -> str:
    return key.fingerprint.removeprefix("nm1-")[:8]


def test_a_claim_lies_beside_the_folder_however_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "models" / "mine"
    inner.mkdir(parents=True)
    assert claim_path(inner) == tmp_path / "models" / "mine.claim.json"
    assert claim_path(Path("mine")) == Path("mine.claim.json")
    monkeypatch.chdir(inner)
    assert claim_path(Path()) == tmp_path / "models" / "mine.claim.json"
    assert claim_path(Path("..")) == tmp_path / "models.claim.json"
    assert anchor_path(Path("mine.claim.json")) == Path("mine.anchor")
    shards = sharded_model(tmp_path / "shards")
    for model in (shards, shards / "model.safetensors.index.json"):
        assert claim_path(model) == tmp_path / "shards.claim.json"


def test_what_is_not_ours_stays_where_a_claim_or_an_anchor_belongs(tmp_path: Path) -> None:
    key, out = Key.new(QUICK), tmp_path / "m.safetensors"
    claim, anchor = tmp_path / "m.safetensors.claim.json", tmp_path / "m.safetensors.anchor"

    def places(*, overwrite: bool = False, bound: bool = True) -> Places:
        return places_for(out, key, anchor=bound, overwrite=overwrite, in_place=False)

    assert places() == Places(out, claim, anchor)
    assert places(bound=False) == Places(out, claim)
    anchor.write_text("something else")
    with pytest.raises(OutputError, match="no anchor of this key"):
        places()
    assert places(bound=False) == Places(out, claim)
    assert places(overwrite=True) == Places(out, claim, anchor)
    claim.write_text("something else")
    own = tmp_path / f"m.safetensors.{short(key)}.claim.json"
    beside = tmp_path / f"m.safetensors.{short(key)}.anchor"
    assert places() == Places(out, own, beside)
    assert places(overwrite=True) == Places(out, claim, anchor)
    anchor.unlink()
    anchor.mkdir()
    with pytest.raises(OutputError, match="the anchor belongs there"):
        places(overwrite=True)
    claim.unlink()
    claim.mkdir()
    with pytest.raises(OutputError, match="the claim belongs there"):
        places(overwrite=True)


def test_anchors_of_two_keys_are_found_beside_and_links_are_not_followed(
    marked: Path, key: Path, tmp_path: Path
) -> None:
    first, second = Key.load(key), Key.new(QUICK)
    result = embed(marked, second, options=EmbedOptions(), in_place=True)
    assert result.anchor_file == f"{marked}.{short(second)}.anchor"
    assert anchor_beside(marked, first) == Path(f"{marked}.anchor")
    assert anchor_beside(marked, second) == Path(result.anchor_file)
    assert anchor_beside(marked, Key.new(QUICK)) is None
    kept = Path(result.anchor_file).rename(tmp_path / "kept")
    Path(result.anchor_file).symlink_to(kept)
    assert anchor_beside(marked, second) is None


def test_a_claim_is_found_behind_files_that_are_none(marked: Path, key: Path) -> None:
    Path(f"{marked}.a.claim.json").write_text("no claim")
    Path(f"{marked}.z.claim.json").write_text("{}")
    mine = Key.load(key)
    assert claims_beside(marked) == {mine.fingerprint: Claim.load(f"{marked}.claim.json")}


def test_evidence_beside_is_looked_for_unless_told_not_to(marked: Path, key: Path) -> None:
    mine = Key.load(key)
    found = evidence_for(marked, mine)
    assert found.beside
    assert found.claim == Claim.load(f"{marked}.claim.json")
    assert found.anchor is not None
    assert evidence_for(marked, mine, beside=False) == Evidence()
    given = evidence_for(marked, mine, claim=f"{marked}.claim.json")
    assert not given.beside
    assert given.anchor is not None


def test_a_link_in_the_place_of_an_anchor_is_not_followed(
    marked: Path, key: Path, tmp_path: Path
) -> None:
    claim = Path(f"{marked}.claim.json").rename(tmp_path / "elsewhere.claim.json")
    anchor = Path(f"{marked}.anchor").rename(tmp_path / "kept")
    (tmp_path / "elsewhere.anchor").symlink_to(anchor)
    with pytest.raises(AnchorError, match="cannot be read"):
        evidence_for(marked, Key.load(key), claim=claim)


def test_claims_in_a_folder_are_those_of_its_model(marked: Path, key: Path, tmp_path: Path) -> None:
    claim = Claim.load(f"{marked}.claim.json")
    folder = tmp_path / "model"
    folder.mkdir()
    assert claims_beside(folder) == {}
    (folder / "other.claim.json").write_text(claim.to_json())
    assert claims_beside(folder) == {}
    (folder / "neuralmark-1.claim.json").write_text(claim.to_json())
    assert claims_beside(folder) == {Key.load(key).fingerprint: claim}
    assert claim_beside(folder, Key.load(key)) == claim
    assert claim_beside(folder, Key.new(QUICK)) is None
