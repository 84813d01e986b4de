"""The owner's check decides how strong a mark may be: which strengths are tried, which is kept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from neuralmark.errors import CheckFailedError
from neuralmark.marking.checking import strongest
from neuralmark.marking.drafting import Draft


class Candidate:
    """A draft that writes its strength."""

    def __init__(self, strength: float) -> None:
        self.strength = strength
        self.checkpoint = self

    def edits(self) -> None:
        """Nothing: the strength is all that it writes."""

    def at(self, strength: float) -> "Candidate":
        return Candidate(strength)

    def write(self, path: Path, edits: Any) -> None:
        path.write_text(str(self.strength))


def tried(
    folder: Path, passes: Callable[[float], bool], start: float = 1.0, *, fixed: bool = False
) -> tuple[list[float], float]:
    """The strengths that were checked, in order, and the one that is kept."""
    seen: list[float] = []

    def check(path: Path) -> bool:
        assert path.parent == folder
        seen.append(float(path.read_text()))
        return passes(seen[-1])

    first = cast("Draft", Candidate(start))
    kept = strongest(first, check, folder / "out.safetensors", fixed=fixed)
    assert list(folder.iterdir()) == []
    return seen, kept.strength


def test_what_fails_is_halved_until_it_passes_then_narrowed(tmp_path: Path) -> None:
    seen, kept = tried(tmp_path, lambda strength: strength <= 0.3)
    assert seen[:3] == [1.0, 0.5, 0.25]
    assert seen[3:] == pytest.approx([2**-1.5, 2**-1.75, 2**-1.625])
    assert kept == pytest.approx(2**-1.75)


def test_what_passes_is_doubled_until_it_fails_then_narrowed(tmp_path: Path) -> None:
    seen, kept = tried(tmp_path, lambda strength: strength <= 3)
    assert seen[:3] == [1.0, 2.0, 4.0]
    assert seen[3:] == pytest.approx([2**1.5, 2**1.75, 2**1.625])
    assert kept == pytest.approx(2**1.5)


def test_a_check_that_never_fails_ends(tmp_path: Path) -> None:
    assert tried(tmp_path, lambda _: True) == ([1.0, 2.0, 4.0, 8.0, 16.0], 16.0)


def test_a_strength_that_was_named_is_the_most_that_is_tried(tmp_path: Path) -> None:
    assert tried(tmp_path, lambda _: True, 3.0, fixed=True) == ([3.0], 3.0)
    seen, kept = tried(tmp_path, lambda strength: strength < 2, 3.0, fixed=True)
    assert seen[:2] == [3.0, 1.5]
    assert max(seen) == 3.0
    assert 1.5 <= kept < 2


def test_where_nothing_passes_nothing_is_kept(tmp_path: Path) -> None:
    seen: list[float] = []

    def check(path: Path) -> bool:
        seen.append(float(path.read_text()))
        return False

    with pytest.raises(CheckFailedError, match=r"0\.0625"):
        strongest(cast("Draft", Candidate(1.0)), check, tmp_path / "out", fixed=False)
    assert seen == [1.0, 0.5, 0.25, 0.125, 0.0625]


def test_a_check_that_raises_leaves_nothing_behind(tmp_path: Path) -> None:
    def check(path: Path) -> bool:
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        strongest(cast("Draft", Candidate(1.0)), check, tmp_path / "out", fixed=False)
    assert list(tmp_path.iterdir()) == []
