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


def partly(alike: float, share: int, changes: tuple[str, ...]) -> Lineage:
    """A lineage of which only so many percent of the weights could be compared."""
    compared = Kinship(TensorFate("a", "b", 0.0, alike, 1.0), share)
    return Lineage(
        "one", "two", (compared, Kinship(TensorFate("c", "", 0, 0, 0, changes), 100 - share))
    )


@pytest.mark.parametrize(
    "changes",
    [
        ("it holds NaN or infinity",),
        ("it is all zeros",),
        ("renamed", "too large to align: raise align_limit to 9"),
    ],
)
def test_what_could_not_be_compared_is_not_unlike(changes: tuple[str, ...]) -> None:
    half = partly(0.15, 50, changes)
    assert (half.score, half.least_score, half.compared) == (0.15, 0.075, 0.5)
    assert (half.related, half.decided) == (True, True)
    assert "50% of these compared" in str(half)
    stranger = partly(0.0, 50, changes)
    assert (stranger.related, stranger.decided) == (False, True)
    less = partly(0.15, 49, changes)
    assert less.score == less.least_score == pytest.approx(0.0735)
    assert (less.related, less.decided) == (False, False)
    assert str(less).startswith("could not be compared: of 2 tensors 1 ")
    clear = partly(0.5, 49, changes)  # alike enough, whatever the rest may be
    assert (clear.related, clear.decided) == (True, True)
    for found in (half, stranger, less, clear):
        told = found.to_dict()
        assert told["compared"] == found.compared
        assert ("undecided" in told) is not found.decided
        assert Lineage.from_dict(told) == found


def test_what_was_not_found_is_unlike() -> None:
    found = partly(0.0, 10, ("not found",))
    assert (found.compared, found.decided) == (1, True)
    assert not {"compared", "undecided"} & set(found.to_dict())
    assert not Lineage("one", "two", ()).decided
