"""The picture of where the weights went: what was done to a tensor is never cut off in a word."""

import pytest

from neuralmark.reports.alignment import briefly


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ((), ""),
        (("permuted",), "permuted"),
        (("permuted", "flipped"), "permuted, flipped"),
        (
            ("permuted", "1 dummy dropped", "1 channel missing"),
            "permuted, 1 dummy dropped, 1 channel missing",
        ),
        (
            ("permuted", "12 dummies dropped", "1 channel missing"),
            "permuted, 12 dummies dropped and 1 more",
        ),
        (
            ("rows rescaled", "columns rescaled", "a" * 30),
            "rows rescaled, columns rescaled and 1 more",
        ),
        (("a" * 40, "flipped"), "a" * 40 + "…"),
        (("a" * 60,), "a" * 43 + "…"),
    ],
)
def test_what_was_done_fits_into_a_row(changes: tuple[str, ...], told: str) -> None:
    assert briefly(changes) == told


def test_nothing_is_longer_than_the_room() -> None:
    words = [f"change {n} of several kinds" for n in range(9)]
    assert all(len(briefly(words[:count])) <= 44 for count in range(10))
