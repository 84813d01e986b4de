"""Numbers of two verdicts are the same up to a millionth."""

import pytest

from neuralmark.marking.rechecking import _near


@pytest.mark.parametrize("size", [0.0, 1.0, -300.0])
def test_numbers_are_near_up_to_a_millionth(size: float) -> None:
    unit = 1e-6 * max(abs(size), 1.0)
    for then, now in ((size, size + 0.9 * unit), (size + 0.9 * unit, size)):
        assert _near("bound", then, now).holds
    for then, now in ((size, size + 1.5 * unit), (size - 1.5 * unit, size)):
        assert not _near("bound", then, now).holds
