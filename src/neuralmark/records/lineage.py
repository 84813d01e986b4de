"""Lineage: how alike two checkpoints are once their weights are put in the same order."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from neuralmark.records.alignment import TOO_LARGE, TensorFate
from neuralmark.records.fields import Fields, Record
from neuralmark.version import __version__

LINEAGE_FORMAT = "neuralmark-lineage/1"

RELATED_SCORE = 0.1
"""From this score on two models count as related (docs/lineage.md says how it was set)."""

NOT_LOOKED_FOR = "not looked for"
"""Stands alone among the changes of a tensor that an effort below 1 left out."""

LEAST_COMPARED = 0.5
"""Where less of the weights could be compared than this, finding no likeness says nothing."""

NOT_FINITE, ALL_ZEROS = "it holds NaN or infinity", "it is all zeros"
"""Stand alone among the changes of a tensor that cannot be compared with anything."""

_LIMIT = re.compile(rf"{TOO_LARGE}: raise align_limit to (\d+)")


@dataclass(frozen=True)
class Kinship:
    """One tensor of the first model, and what in the second is most like it.

    Attributes:
        fate: Where it was found, and what had been done to it. `restored` is its likeness once it
            is in order, with no direction counting for more than the middle one.
        weights: How many weights it has.
        chance: The likeness to which the same alignment brings strangers with the same spectra; 0
            where nothing had to be aligned.
        set_aside: Share of it that shows itself as added later, and was not compared.

    Examples:
        >>> Kinship(TensorFate("a", "b", 0.1, 0.9, 1.0), weights=100, chance=0.2).score
        0.875
    """

    fate: TensorFate
    weights: int
    chance: float = 0.0
    set_aside: float = 0.0

    @property
    def looked_for(self) -> bool:
        """Whether it counts: what an effort below 1 leaves out does not."""
        return self.fate.changes != (NOT_LOOKED_FOR,)

    @property
    def compared(self) -> bool:
        """Whether it could be compared: not what is too large to align, not finite, or nothing."""
        if self.fate.changes in ((NOT_FINITE,), (ALL_ZEROS,)):
            return False
        return self.looked_for and not any(c.startswith(TOO_LARGE) for c in self.fate.changes)

    @property
    def held(self) -> float:
        """How many of its weights were compared."""
        return self.weights * (1 - self.set_aside) if self.compared else 0.0

    @property
    def score(self) -> float:
        """0 for what chance would give, 1 for the same weights."""
        above = (self.fate.restored - self.chance) / max(1 - self.chance, 1e-6)
        return round(max(0.0, above) * self.fate.found, 6)


@dataclass(frozen=True)
class Lineage(Record):
    """How alike two checkpoints are after alignment. A sign of descent; no proof of ownership.

    Attributes:
        model: The first model, as it was given.
        other: The second.
        tensors: What became of each tensor of the first.
        seconds: How long it took.
        version: Version that compared.
        date: When, in UTC.

    Examples:
        >>> found = neuralmark.lineage("model.safetensors", "marked.safetensors")
        >>> found.related, found.score > 0.9
        (True, True)
    """

    noun: ClassVar[str] = "lineage"
    file_format: ClassVar[str] = LINEAGE_FORMAT

    model: str
    other: str
    tensors: tuple[Kinship, ...]
    seconds: float = 0.0
    version: str = __version__
    date: str | None = None

    @property
    def score(self) -> float:
        """Mean over what was compared, weighted by size: 0 for unrelated weights, 1 for equal.

        Where less than half could be compared, the rest counts as unlike.
        """
        if self.compared < LEAST_COMPARED:
            return self.least_score
        return _mean(self.tensors, sum(each.held for each in self.tensors))

    @property
    def least_score(self) -> float:
        """The score if all that could not be compared were unlike."""
        return _mean(self.tensors, self._sought)

    @property
    def compared(self) -> float:
        """Share of the weights looked for that could be compared."""
        part = sum(each.held for each in self.tensors)
        return round(part / self._sought, 6) if self._sought else 0.0

    @property
    def _sought(self) -> int:
        return sum(each.weights for each in self.tensors if each.looked_for)

    @property
    def decided(self) -> bool:
        """Whether it says anything: no sign of a relation is none where little was compared."""
        return self.related or self.compared >= LEAST_COMPARED

    @property
    def hindrance(self) -> str:
        """Why tensors could not be compared, and what to do about it; empty where all were."""
        sought = [each for each in self.tensors if each.looked_for]
        left = [each for each in sought if not each.compared]
        added = sum(each.set_aside > 0 for each in sought)
        if not (left or added):
            return "" if self.tensors else "the first model has no matrix that is large enough"
        changes = [change for each in left for change in each.fate.changes]
        limits = [int(found[1]) for found in map(_LIMIT.search, changes) if found]
        beyond = sum(change.startswith(TOO_LARGE) for change in changes)
        parts = [
            (beyond, f"too large to align (raise align_limit to {max(limits, default=0)})"),
            (changes.count(NOT_FINITE), "with NaN or infinity"),
            (changes.count(ALL_ZEROS), "all zeros"),
            (added, "behind changes that were set aside"),
        ]
        told = ", ".join(f"{count} {what}" for count, what in parts if count)
        return f"of {len(self.tensors)} tensors {told}"

    @property
    def looked_at(self) -> float:
        """Share of the first model's weights that was looked for: below 1 by choice (effort)."""
        whole = sum(each.weights for each in self.tensors)
        return round(self._sought / whole, 6) if whole else 0.0

    @property
    def related(self) -> bool:
        """Whether the score is one that models trained apart do not reach."""
        return self.score >= RELATED_SCORE

    def __bool__(self) -> bool:
        """Refuse to be a bare truth value: ask for `.related`."""
        raise TypeError("a Lineage is more than a bool: use lineage.related or .score")

    def __str__(self) -> str:
        """One line; `to_json()` has everything."""
        if not self.decided:
            return f"could not be compared: {self.hindrance}"
        said = "related" if self.related else "no sign of a relation"
        part = "" if self.looked_at == 1 else f", {self.looked_at:.0%} of the weights looked for"
        part += "" if self.compared == 1 else f", {self.compared:.0%} of these compared"
        return f"{said}: score {self.score:.3f} ({RELATED_SCORE:g} or more is related{part})"

    def to_dict(self) -> dict[str, Any]:
        """As `neuralmark lineage --json` prints it.

        Returns:
            Plain values, by name.

        Examples:
            >>> found = neuralmark.lineage("model.safetensors", "marked.safetensors")
            >>> found.to_dict()["related"]
            True
        """
        return {
            "format": LINEAGE_FORMAT,
            "version": self.version,
            "model": self.model,
            "other": self.other,
            "score": self.score,
            "related": self.related,
            "limit": RELATED_SCORE,
            **({} if self.compared == 1 else {"compared": self.compared}),
            **({} if self.decided else {"undecided": self.hindrance}),
            "tensors": [
                asdict(each.fate)
                | {"changes": list(each.fate.changes)}
                | {"weights": each.weights, "chance": each.chance, "score": each.score}
                | ({"set_aside": each.set_aside} if each.set_aside else {})
                for each in self.tensors
            ],
            "seconds": self.seconds,
            "date": self.date,
        }

    @classmethod
    def _read(cls, given: Fields) -> Self:
        return cls(
            model=given.text("model"),
            other=given.text("other"),
            tensors=tuple(
                Kinship(
                    TensorFate.read(each),
                    each.count("weights"),
                    each.number("chance"),
                    _share(each, "set_aside"),
                )
                for each in given.tables("tensors")
            ),
            seconds=given.number("seconds"),
            version=given.text("version"),
            date=given.text_or_none("date"),
        )


def _share(given: Fields, name: str) -> float:
    share = 0.0 if given.optional(name) is None else given.number(name)
    if not 0 <= share <= 1:
        raise ValueError("a share is impossible")
    return share


def _mean(tensors: Sequence[Kinship], whole: float) -> float:
    """The scores of what was compared, as a share of so many weights."""
    return round(sum(each.score * each.held for each in tensors) / whole, 6) if whole else 0.0
