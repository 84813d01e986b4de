"""How much is done to put a suspect back in order."""

from dataclasses import dataclass

from neuralmark.errors import ParameterError

ALIGN_LIMIT = 1 << 28
"""No axis is aligned whose table of likenesses would have more entries than this."""


@dataclass(frozen=True)
class AlignOptions:
    """How much is done to put a suspect back in order.

    Attributes:
        effort: Share of the marked weights that is looked for, fixed before anything is read; the
            rest is filled from the anchor.
        limit: The most entries that a table of likenesses may have; larger axes are not aligned.

    Raises:
        ParameterError: A value is out of range.

    Examples:
        >>> AlignOptions(effort=0.25).limit == ALIGN_LIMIT
        True
    """

    effort: float = 1.0
    limit: int = ALIGN_LIMIT

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        if isinstance(self.effort, bool) or not 0 < self.effort <= 1:
            raise ParameterError(f"effort must be above 0 and at most 1, not {self.effort!r}")
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1:
            raise ParameterError(f"align_limit must be a whole number from 1, not {self.limit!r}")


def over_all_depths(count: int) -> list[int]:
    """The places of so many tensors in an order of which every beginning is spread over all.

    >>> over_all_depths(6)
    [0, 5, 2, 4, 1, 3]
    """
    return sorted(range(count), key=lambda place: (place * 0.6180339887498949) % 1.0)
