"""The loader of E2E: files in their usual places, damaged ones, groups, words for GPT-2."""

import hashlib
from pathlib import Path

import pytest

from neuralmark.errors import DamagedDataSetError, MissingDataSetError, ParameterError
from neuralmark.text import e2e

LINES = (
    '"mr","ref"\n'
    '"name[Aromi], area[riverside]","Aromi, by the river."\n'
    '"name[Aromi], area[riverside]","The Aromi is  at the\r\n riverside."\n'
    '"name[Café Zoë], priceRange[more than £30]",Café Zoë is dear.\n'
)


def written(folder: Path, text: str = LINES, name: str = "trainset.csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(text.encode())
    return folder


@pytest.mark.parametrize("place", e2e.PLACES)
def test_the_usual_places(place: str, tmp_path: Path) -> None:
    written(tmp_path / place)
    found = e2e.load(tmp_path, "train")
    assert found.rows == (
        e2e.E2ERow("name[Aromi], area[riverside]", "Aromi, by the river."),
        e2e.E2ERow("name[Aromi], area[riverside]", "The Aromi is at the riverside."),
        e2e.E2ERow("name[Café Zoë], priceRange[more than £30]", "Café Zoë is dear."),
    )
    assert found.digest == hashlib.sha256(LINES.encode()).hexdigest()


def test_a_part_is_named(tmp_path: Path) -> None:
    found = e2e.load(written(tmp_path, name="testset_w_refs.csv"), "test")
    assert not found.complete
    assert found.note == "E2E test, 3 rows (4693 as published)"


def test_what_is_missing(tmp_path: Path) -> None:
    written(tmp_path, name="devset.csv")
    message = r"no trainset.csv .*missing: trainset.csv, testset_w_refs.csv;.*unpack https://github"
    with pytest.raises(MissingDataSetError, match=message):
        e2e.load(tmp_path, "train")
    with pytest.raises(MissingDataSetError, match="there is no folder"):
        e2e.load(tmp_path / "none", "train")
    with pytest.raises(ParameterError, match="train, dev, test, not 'valid'"):
        e2e.load(tmp_path, "valid")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "columns mr, ref, and has none"),
        ("MR\nname[Aromi]\n", "columns mr, ref, and has mr"),
        ("mr,ref\n", "has no rows"),
        ("mr,ref\nname[Aromi],A pub.\nname[Zizzi]\n", "damaged at line 3"),
        ("mr,ref\nname[Aromi],\n", "damaged at line 2"),
        ("mr,ref\nAromi,A pub.\n", "damaged at line 2"),
        ('mr,ref\nname[Aromi],"A pub', "damaged at line 2"),
    ],
)
def test_damaged_files(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DamagedDataSetError, match=message):
        e2e.load(written(tmp_path, text), "train")


def test_other_encodings(tmp_path: Path) -> None:
    (tmp_path / "trainset.csv").write_bytes(LINES.encode("latin-1"))
    with pytest.raises(DamagedDataSetError, match="is not UTF-8"):
        e2e.load(tmp_path, "train")
    (tmp_path / "trainset.csv").write_bytes(LINES.encode("utf-8-sig"))
    assert len(e2e.load(tmp_path, "train").rows) == 3


def test_groups_keep_the_order_of_meanings() -> None:
    rows = [e2e.E2ERow(meaning, text) for meaning, text in ("bx", "ay", "bz", "ay")]
    assert e2e.group(rows) == (e2e.E2ECase("b", ("x", "z")), e2e.E2ECase("a", ("y", "y")))


def test_words_for_gpt2() -> None:
    meaning = (
        "name[The Mill], eatType[pub], food[English], priceRange[£20-25],"
        " customer rating[5 out of 5], area[city centre], familyFriendly[yes], near[Café, Rouge]"
    )
    assert e2e.linearise(meaning) == (
        "name : The Mill | Type : pub | food : English | price : £20-25 |"
        " customer rating : 5 out of 5 | area : city centre | family friendly : yes |"
        " near : Café, Rouge"
    )


@pytest.mark.parametrize("meaning", ["", "Aromi", "name[Aromi", "name[Aromi], ", "[Aromi]", "]["])
def test_no_meanings(meaning: str) -> None:
    with pytest.raises(ParameterError, match="not a meaning representation"):
        e2e.linearise(meaning)
