"""What became of the marked tensors: where they were found, and how they were put back in order."""

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self, get_args

from neuralmark.records.fields import Fields

ReadingKind = Literal["position", "aligned"]
"""Whether weights were read where they lie, or after they were put back in order."""
POSITION: Final = "position"
ALIGNED: Final = "aligned"
LEAST_FOUND = 0.05
"""With less of the marked weights than this, whatever the bits say is not called a match."""
TOO_LARGE: Final = "too large to align"
"""Begins what is said of a tensor that was not put in order, because of the limit."""
READING_KINDS: tuple[ReadingKind, ...] = get_args(ReadingKind)


def recorded(value: float) -> float:
    """A cosine or a share to six digits: what is recorded does not hang on the last of a sum.

    >>> recorded(1 / 3), recorded(1.0000001)
    (0.333333, 1.0)
    """
    return float(min(1.0, max(-1.0, round(value, 6))))


@dataclass(frozen=True)
class BitsRead:
    """What one way of reading an anchored mark gave.

    Attributes:
        kind: `position` (where the weights lie) or `aligned` (put back in order first).
        matched: How many bits match; None where this way was not taken.
        why: Why it was not taken, or empty.

    Examples:
        >>> BitsRead("position", 131).matched
        131
    """

    kind: ReadingKind
    matched: int | None
    why: str = ""

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed verdict.

        Args:
            given: The table of the reading.

        Returns:
            The reading.

        Raises:
            TypeError: A part has the wrong form.
            ValueError: A part is missing.

        Examples:
            >>> BitsRead.read(Fields({"kind": "aligned", "matched": 256, "why": ""})).matched
            256
        """
        return cls(
            given.one_of("kind", READING_KINDS), given.count_or_none("matched"), given.text("why")
        )


@dataclass(frozen=True)
class TensorFate:
    """What became of one marked tensor.

    Attributes:
        name: The canonical name that the key was derived for.
        source: Which tensor, slice or product of the suspect was taken for it; empty if none was.
        likeness: Cosine with the anchor as it was found, rows rescaled.
        restored: Cosine with the anchor after it was put back in order.
        found: Share of its weights that are the suspect's; the rest is filled from the anchor.
        changes: What had been done to it, in words.

    Examples:
        >>> TensorFate("fc.weight", "head.weight", 0.02, 0.98, 1.0, ("permuted",)).changes
        ('permuted',)
    """

    name: str
    source: str
    likeness: float
    restored: float
    found: float
    changes: tuple[str, ...] = ()

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed verdict.

        Args:
            given: The table of the tensor.

        Returns:
            What became of it.

        Raises:
            TypeError: A part has the wrong form.
            ValueError: A part is missing or impossible.

        Examples:
            >>> told = Alignment("00", 1, (TensorFate("a", "b", 0.1, 0.9, 1.0),)).to_dict()
            >>> TensorFate.read(Fields(told["tensors"][0])).source
            'b'
        """
        likeness, restored, found = (given.number(n) for n in ("likeness", "restored", "found"))
        if max(abs(likeness), abs(restored)) > 1 or not 0 <= found <= 1:
            raise ValueError("a likeness or a share is impossible")
        return cls(
            given.text("name"),
            given.text("source"),
            likeness,
            restored,
            found,
            given.texts("changes"),
        )


@dataclass(frozen=True)
class Alignment:
    """How a suspect was put back into the order that its owner knew.

    Attributes:
        anchor: Digest of the anchor that the mark is bound to, in hexadecimal digits.
        aligner: Version of the procedure.
        tensors: What became of each marked tensor, in the order of the mark.
        effort: Share of the marked tensors that was looked for; the rest is filled.
        found: Share of the marked weights that are the suspect's.
        set_aside: Share of what was found that shows itself as added later, and was not read.
        likeness: Cosine of all that was found with the anchor: a sign of descent, not of ownership.
        notes: What was set aside, in sentences.
        seconds: How long it took.

    Examples:
        >>> fate = TensorFate("fc.weight", "head.weight", 0.02, 0.98, 1.0, ("permuted",))
        >>> Alignment("00" * 64, 1, (fate,), found=1.0).tensors[0].restored
        0.98
    """

    anchor: str
    aligner: int
    tensors: tuple[TensorFate, ...]
    effort: float = 1.0
    found: float = 0.0
    set_aside: float = 0.0
    likeness: float = 0.0
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def enough(self) -> bool:
        """Whether enough of the marked weights was found for their bits to mean anything."""
        return self.found >= LEAST_FOUND

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a verdict.

        Returns:
            Plain values, by name.

        Examples:
            >>> Alignment("00", 1, ()).to_dict()["aligner"]
            1
        """
        told = asdict(self) | {"notes": list(self.notes)}
        told["tensors"] = [asdict(t) | {"changes": list(t.changes)} for t in self.tensors]
        return told

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed verdict.

        Args:
            given: The table of the alignment.

        Returns:
            The alignment.

        Raises:
            TypeError: A part has the wrong form.
            ValueError: A part is missing.

        Examples:
            >>> Alignment.read(Fields(Alignment("00", 1, ()).to_dict())).anchor
            '00'
        """
        return cls(
            given.text("anchor"),
            given.count("aligner"),
            tuple(map(TensorFate.read, given.tables("tensors"))),
            given.number("effort"),
            given.number("found"),
            given.number("set_aside"),
            given.number("likeness"),
            given.texts("notes"),
            given.number("seconds"),
        )
