"""The robustness card: what a mark withstood, and at which strength each attack undid it.

A record like a verdict; `suite` runs the attacks, and `tally` makes the card of their results.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, Self, get_args

from neuralmark.attacks.contract import KEY, TEST, WEIGHTS, AttackKind
from neuralmark.attacks.engine import presenting
from neuralmark.core.key import MAX_BITS
from neuralmark.records import STATUSES, VERIFIED, Fields, Record, Status, Verdict
from neuralmark.version import __version__

CARD_FORMAT = "neuralmark-card/1"
PointStatus = Literal[Status, "no-key"]
UNREADABLE: Final = "unreadable"
"""Status where the marked tensors are gone, so that there is nothing to give a verdict on."""
NO_KEY: Final = "no-key"
"""Status where a forger came back without a key."""


@dataclass(frozen=True)
class CardPoint:
    """One attack of a sweep and what became of the mark."""

    strength: float
    settings: Mapping[str, Any]
    status: PointStatus
    """Of the owner's key afterwards; of the forged key for an attack that forges one."""
    matched: int | None
    bits: int | None
    held: bool
    """Whether the owner is as well off as before: the verdict stands, the forgery fails."""
    change: float | None
    """‖Δw‖/‖w‖ of the attacked tensors; None when their shapes changed."""
    seconds: float
    note: str = ""
    figures: Mapping[str, float | None] = field(default_factory=dict)
    """None for a figure that is not a number."""
    status_aligned: Status | None = None
    """The same three as `verify` gives them with the anchor; None where there is none."""
    matched_aligned: int | None = None
    held_aligned: bool | None = None

    @property
    def aligned(self) -> Self:
        """The point as it is read with the anchor."""
        assert self.status_aligned is not None
        return replace(
            self,
            status=self.status_aligned,
            matched=self.matched_aligned,
            held=bool(self.held_aligned),
        )

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed card; raises on anything of the wrong form."""
        matched, bits = given.count_or_none("matched"), given.count_or_none("bits")
        counts = [matched, given.count_or_none("matched_aligned")]
        read = [count for count in counts if count is not None]
        anchored = not given.empty("status_aligned")
        if bool(read) is not (bits is not None) or max(read, default=0) > (bits or 0):
            raise ValueError("the counts of a point contradict each other")
        if anchored is given.empty("held_aligned") or (not anchored and counts[1] is not None):
            raise ValueError("a point says with the anchor what it was not asked")
        return cls(
            strength=given.number("strength"),
            settings=_table(given.raw("settings")),
            status=given.one_of("status", get_args(PointStatus)),
            matched=matched,
            bits=bits,
            held=given.flag("held"),
            change=given.number_or_none("change"),
            seconds=given.number("seconds"),
            note=given.text("note"),
            figures=given.table("figures").all_numbers(),
            status_aligned=given.one_of("status_aligned", STATUSES) if anchored else None,
            matched_aligned=counts[1],
            held_aligned=given.flag("held_aligned") if anchored else None,
        )


@dataclass(frozen=True)
class CardRow:
    """One sweep: an attack in one variant, weak first."""

    attack: str
    variant: str
    kind: AttackKind
    dial: str
    """Name of the setting that says how strong it is; empty: there is only one strength."""
    unit: str
    summary: str
    expects: str
    boundary: int | None
    points: tuple[CardPoint, ...]

    @property
    def label(self) -> str:
        """Attack and variant."""
        return f"{self.attack} ({self.variant})" if self.variant else self.attack

    @property
    def aligned(self) -> "CardRow | None":
        """The same sweep as it is read with the anchor; None where there is none."""
        if any(point.status_aligned is None for point in self.points):
            return None
        return replace(self, points=tuple(point.aligned for point in self.points))

    @property
    def sooner_anchored(self) -> bool:
        """Whether the verdict flips at a weaker strength with the anchor than without it.

        It may: without the anchor weights are read as stored and with their rows divided by their
        size, with it as stored and put back in order.
        """
        if self.aligned is None:
            return False
        held = [[point.held for point in row.points] + [False] for row in (self, self.aligned)]
        return held[1].index(False) < held[0].index(False)

    @property
    def flipped(self) -> CardPoint | None:
        """The weakest that undid the mark (or forged a key); None: none did."""
        return next((point for point in self.points if not point.held), None)

    @property
    def withstood(self) -> CardPoint | None:
        """The strongest before that; None: already the weakest undid it."""
        before = self.points[: self.points.index(self.flipped)] if self.flipped else self.points
        return before[-1] if before else None

    @property
    def flip(self) -> float | None:
        """The smallest strength at which the verdict flips; None: it survives all tried."""
        return None if self.flipped is None else self.flipped.strength

    @property
    def largest_survived(self) -> float | None:
        """The largest strength below the flip that was survived; None: none was."""
        return None if self.withstood is None else self.withstood.strength

    @property
    def again(self) -> tuple[float, ...]:
        """Strengths above the flip at which the mark is read all the same."""
        flipped = self.flipped
        later = () if flipped is None else self.points[self.points.index(flipped) :]
        return tuple(point.strength for point in later if point.held)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        aligned = self.aligned
        return {
            "attack": self.attack,
            "variant": self.variant,
            "kind": self.kind,
            "dial": self.dial,
            "unit": self.unit,
            "summary": self.summary,
            "expects": self.expects,
            "boundary": self.boundary,
            "flip": self.flip,
            "largest_survived": self.largest_survived,
            "survived_all": self.flipped is None,
            "flip_aligned": None if aligned is None else aligned.flip,
            "largest_survived_aligned": None if aligned is None else aligned.largest_survived,
            "survived_all_aligned": None if aligned is None else aligned.flipped is None,
            "points": [jsonable(asdict(point)) for point in self.points],
        }

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed card; raises on anything of the wrong form."""
        points = tuple(map(CardPoint.read, given.tables("points")))
        if not points:
            raise ValueError("a sweep has no points")
        return cls(
            attack=given.text("attack"),
            variant=given.text("variant"),
            kind=given.one_of("kind", (WEIGHTS, KEY, TEST)),
            dial=given.text("dial"),
            unit=given.text("unit"),
            summary=given.text("summary"),
            expects=given.text("expects"),
            boundary=given.count_or_none("boundary"),
            points=points,
        )


@dataclass(frozen=True)
class Skipped:
    """An attack (or one variant of it) that was not run, and why."""

    attack: str
    why: str
    variant: str = ""

    @property
    def label(self) -> str:
        """Attack and variant."""
        return f"{self.attack} ({self.variant})" if self.variant else self.attack

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed card; raises on anything of the wrong form."""
        return cls(given.text("attack"), given.text("why"), given.text("variant"))


@dataclass(frozen=True)
class Before:
    """What of the verdict on the model as it came is on its card: no margins, no tensors."""

    status: Status
    matched: int
    bits: int
    boundary: int | None
    trials: int
    bound_log2: float
    scheme: str
    certified_radius: float | None = None
    certified_radius_relative: float | None = None

    @property
    def verified(self) -> bool:
        """Whether the mark was proven before anything was attacked."""
        return self.status == VERIFIED

    @classmethod
    def of(cls, verdict: Verdict) -> Self:
        """From the whole verdict."""
        return cls(
            status=verdict.status,
            matched=verdict.matched,
            bits=verdict.bits,
            boundary=verdict.boundary,
            trials=verdict.trials,
            bound_log2=verdict.bound_log2,
            scheme=verdict.parameters.scheme,
            certified_radius=verdict.certified_radius,
            certified_radius_relative=verdict.certified_radius_relative,
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON; the radius stands beside it."""
        told = asdict(self)
        return {name: value for name, value in told.items() if not name.startswith("certified")}

    @classmethod
    def read(cls, given: Fields, radius: Fields) -> Self:
        """From a parsed card; raises on anything of the wrong form."""
        before = cls(
            status=given.one_of("status", STATUSES),
            matched=given.count("matched"),
            bits=given.count("bits"),
            boundary=given.count_or_none("boundary"),
            trials=given.count("trials"),
            bound_log2=given.number("bound_log2"),
            scheme=given.text("scheme"),
            certified_radius=radius.number_or_none("absolute"),
            certified_radius_relative=radius.number_or_none("relative"),
        )
        if not 0 < before.bits <= MAX_BITS or before.matched > before.bits:
            raise ValueError("its counts contradict each other")
        return before


@dataclass(frozen=True)
class Card(Record):
    """What the mark of one key in one model withstands.

    Attributes:
        model: What was attacked, as it was given.
        fingerprint: Public name of the key.
        before: The verdict before any attack, without margins and tensors.
        rows: The sweeps, each an attack from weak to strong.
        skipped: The attacks that were not run, and why.
        seed: Where everything random began.
        seconds: What it took.
        version: Version that made it.

    Examples:
        >>> options = neuralmark.attacks.SuiteOptions(only=["shift"], jobs=1)
        >>> card = neuralmark.attacks.suite("marked.safetensors", key, options)
        >>> card.before.verified, [row.attack for row in card.removals]
        (True, ['shift'])
    """

    noun: ClassVar[str] = "card"
    file_format: ClassVar[str] = CARD_FORMAT

    model: str
    fingerprint: str
    before: Before
    rows: tuple[CardRow, ...]
    skipped: tuple[Skipped, ...]
    seed: int
    seconds: float
    version: str = __version__

    @property
    def certified_radius(self) -> float | None:
        """Norm below which no change of the weights read can undo the verdict."""
        return self.before.certified_radius

    @property
    def certified_radius_relative(self) -> float | None:
        """The same as a share of the norm of these weights."""
        return self.before.certified_radius_relative

    @property
    def removals(self) -> tuple[CardRow, ...]:
        """Sweeps that try to remove the mark."""
        return self._of(WEIGHTS)

    @property
    def forgeries(self) -> tuple[CardRow, ...]:
        """Sweeps that try to make a key that matches."""
        return self._of(KEY)

    @property
    def looks(self) -> tuple[CardRow, ...]:
        """Sweeps that only look."""
        return self._of(TEST)

    @property
    def anchored(self) -> bool:
        """Whether attacked copies were read with an anchor too."""
        return any(row.aligned is not None for row in self.removals)

    def _of(self, kind: AttackKind) -> tuple[CardRow, ...]:
        return tuple(row for row in self.rows if row.kind == kind)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return presenting.table(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """As it stands in its file.

        Returns:
            Plain values, by name.

        Examples:
            >>> before = Before.of(neuralmark.verify("marked.safetensors", key))
            >>> card = Card("marked.safetensors", key.fingerprint, before, (), (), 0, 0.0)
            >>> card.to_dict()["format"]
            'neuralmark-card/1'
        """
        return {
            "format": CARD_FORMAT,
            "version": self.version,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "before": self.before.to_dict(),
            "certified_radius": {
                "absolute": self.certified_radius,
                "relative": self.certified_radius_relative,
            },
            "rows": [row.to_dict() for row in self.rows],
            "skipped": [asdict(each) for each in self.skipped],
            "seed": self.seed,
            "seconds": self.seconds,
        }

    @classmethod
    def _read(cls, given: Fields) -> Self:
        seed = given.raw("seed")
        if type(seed) is not int:
            raise TypeError("seed is not a whole number")
        return cls(
            model=given.text("model"),
            fingerprint=given.text("fingerprint"),
            before=Before.read(given.table("before"), given.table("certified_radius")),
            rows=tuple(map(CardRow.read, given.tables("rows"))),
            skipped=tuple(map(Skipped.read, given.tables("skipped"))),
            seed=seed,
            seconds=given.number("seconds"),
            version=given.text("version"),
        )


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("settings are not a table")
    return value


def jsonable(value: Any) -> Any:
    """The same with None for every number that JSON lacks, and plain lists and tables."""
    if isinstance(value, Mapping):
        return {str(name): jsonable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
