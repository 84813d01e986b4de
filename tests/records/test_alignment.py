"""What became of the marked tensors, kept and read back."""

import pytest

from neuralmark.errors import RecordError
from neuralmark.records import Alignment, BitsRead, Fields, Kinship, Lineage, TensorFate

FATE = TensorFate("a.weight", "b.weight[0:4]", 0.02, 0.97, 0.5, ("renamed", "permuted"))
TOLD = Alignment("ab" * 64, 1, (FATE,), found=0.5, likeness=0.97, notes=("a: rank 4",), seconds=1.5)


def test_an_alignment_comes_back() -> None:
    assert Alignment.read(Fields(TOLD.to_dict())) == TOLD


def test_a_reading_comes_back() -> None:
    for reading in (BitsRead("position", 131), BitsRead("aligned", None, "not needed")):
        told = {"kind": reading.kind, "matched": reading.matched, "why": reading.why}
        assert BitsRead.read(Fields(told)) == reading


@pytest.mark.parametrize(
    ("member", "value"), [("likeness", 1.5), ("found", -0.1), ("found", 2), ("restored", -3)]
)
def test_an_impossible_share_is_refused(member: str, value: float) -> None:
    told = TOLD.to_dict()["tensors"][0] | {member: value}
    with pytest.raises(ValueError, match="impossible"):
        TensorFate.read(Fields(told))


def lineage(restored: float, chance: float, found: float = 1.0) -> Lineage:
    fate = TensorFate("a", "b", 0.0, restored, found)
    other = TensorFate("c", "", 0.0, 0.0, 0.0, ("filled from the anchor: not found",))
    return Lineage("one", "two", (Kinship(fate, 300, chance), Kinship(other, 100)))


def test_only_likeness_above_chance_counts() -> None:
    assert lineage(0.3, 0.3).score == 0
    assert lineage(0.2, 0.3).score == 0
    assert lineage(1.0, 0.3).score == 0.75
    assert lineage(0.65, 0.3, found=0.5).score == pytest.approx(0.75 * 0.25)
    assert lineage(1.0, 0.3).related
    assert not lineage(0.35, 0.3).related


def test_a_lineage_is_no_bool() -> None:
    with pytest.raises(TypeError, match="more than a bool"):
        bool(lineage(1.0, 0.0))
    assert "related" in str(lineage(1.0, 0.0))
    assert "no sign" in str(lineage(0.0, 0.0))


def test_a_lineage_comes_back() -> None:
    found = lineage(0.9, 0.2)
    assert Lineage.from_dict(found.to_dict()) == found
    told = found.to_dict() | {"score": 0.99}
    with pytest.raises(RecordError, match="contradicts"):
        Lineage.from_dict(told)
