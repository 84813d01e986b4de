"""Many notes in few lines."""

import pytest

from neuralmark.records import Alignment, TensorFate
from neuralmark.records.gathering import gathered_changes, gathered_notes, where, with_asides


def told(*notes: str) -> list[str]:
    return gathered_notes(Alignment("00", 1, (), notes=notes))


def test_a_line_for_each_kind() -> None:
    layers = [f"model.layers.{i}.mlp.up.weight" for i in range(3)]
    notes = [f"{name}: a change of rank 8 was set aside" for name in layers]
    notes += [f"{name}: {share} % of the weights are zeros and were not read" for name, share in
              zip(layers, ("0.5", "12", "3e+01"), strict=True)]  # fmt: skip
    notes += ["fc.weight: 1 outlier was set aside", "head.weight: 1,204 outliers were set aside"]
    assert told(*notes) == [
        "a change of rank 8 in layers 0 to 2 was set aside",
        "0.5 to 3e+01 % of the weights are zeros and were not read, in layers 0 to 2",
        "1 to 1,204 outliers in 2 tensors from fc.weight to head.weight were set aside",
    ]


def test_one_tensor_is_named() -> None:
    assert told("fc.weight: changes in 4 of 64 directions were set aside") == [
        "changes in 4 of 64 directions in fc.weight were set aside"
    ]
    assert told() == []


@pytest.mark.parametrize("words", ["", "no colon", ": x", "a: 1.2.3 and 4", "a: # 5"])
def test_any_note_can_be_told(words: str) -> None:
    assert len(told(words)) == 1


def test_changes_of_one_kind_are_counted_together() -> None:
    changes = ("1 dummy dropped", "permuted"), ("12 dummies dropped",), ("1 channel missing",)
    fates = [TensorFate("n", "n", 0.0, 1.0, 1.0, each) for each in changes]
    found = dict(gathered_changes(fates))
    limits = [f"too large to align: raise align_limit to {n}" for n in (16, 25)]
    large = [TensorFate("n", "n", 0.0, 0.0, 0.0, (each,)) for each in limits]
    assert gathered_changes(large) == [("too large to align", 2)]
    assert found == {"dummies dropped": 2, "permuted": 1, "channels missing": 1}


def test_where() -> None:
    assert where(["h.3.a", "h.3.b"]) == "in 2 tensors of layer 3"
    assert where(["a", "b"]) == "in 2 tensors from a to b"


def test_channels_that_were_not_matched_are_counted_together() -> None:
    changes = ("1 channel not matched", "3 channels not matched")
    fates = [TensorFate("n", "n", 0.0, 1.0, 1.0, (each,)) for each in changes]
    assert gathered_changes(fates) == [("channels not matched", 2)]


@pytest.mark.parametrize(
    ("notes", "brief"),
    [
        (("a change of rank 4 was set aside",), ("a change of rank 4 set aside",)),
        (("1 outlier was set aside",), ("1 outlier set aside",)),
        (
            ("50 % of the weights are zeros and were not read", "7 outliers were set aside"),
            ("7 outliers set aside", "50 % zeros not read"),
        ),
        (
            ("rows with more change than others count less",
             "what the suspect differs by is 0.7 times the anchor"),
            ("differs by 0.7 times the anchor",),
        ),
        ((), ()),
    ],
)  # fmt: skip
def test_what_was_set_aside_stands_among_the_changes(
    notes: tuple[str, ...], brief: tuple[str, ...]
) -> None:
    fates = tuple(TensorFate(n, n, 0.5, 0.9, 1.0, ("renamed",)) for n in ("a", "b"))
    told = Alignment("00", 1, fates, notes=tuple(f"b: {note}" for note in notes))
    first, second = with_asides(told)
    assert first == fates[0]
    assert second.changes == ("renamed", *brief)
