"""The record of an evaluation after MPAI-NNW: imperceptibility, robustness, computational cost.

`standard` makes it. What was not measured is null and says why, never a guess.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from neuralmark.attacks.engine.card import Before
from neuralmark.attacks.engine.modifications import STANDARD
from neuralmark.attacks.engine.outlay import Machine, MarkingCost
from neuralmark.records import Fields, Record
from neuralmark.version import __version__

STANDARD_FORMAT = "neuralmark-standard/1"


@dataclass(frozen=True)
class Imperceptibility:
    """What the mark costs the network: the unmarked and the marked one on the same test data."""

    accuracy_unmarked: float | None = None
    accuracy_marked: float | None = None
    examples: int = 0
    """Test examples that both accuracies are of."""
    accuracy_why: str = ""
    """Why an accuracy was not measured."""
    change: float | None = None
    """‖Δw‖/‖w‖ of the marked tensors, against the unmarked original."""
    change_whole: float | None = None
    """The same of all floating-point tensors."""
    change_why: str = ""

    @property
    def loss(self) -> float | None:
        """Accuracy lost by marking; negative: gained."""
        if self.accuracy_unmarked is None or self.accuracy_marked is None:
            return None
        return self.accuracy_unmarked - self.accuracy_marked

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "loss": self.loss}

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed report; raises on anything of the wrong form."""
        shares = [given.number_or_none(f"accuracy_{each}") for each in ("unmarked", "marked")]
        if any(share is not None and not 0 <= share <= 1 for share in shares):
            raise ValueError("an accuracy is no share")
        return cls(
            accuracy_unmarked=shares[0],
            accuracy_marked=shares[1],
            examples=given.count("examples"),
            accuracy_why=given.text("accuracy_why"),
            change=given.number_or_none("change"),
            change_whole=given.number_or_none("change_whole"),
            change_why=given.text("change_why"),
        )


@dataclass(frozen=True)
class ModifiedPoint:
    """A modification at one value: what detector and decoder found in the modified networks."""

    value: float
    detected: bool
    """Whether the mark is still proven (for raw keys: still matches); else it was missed."""
    matched: int | None
    """Bits of the payload that were decoded; None: the marked tensors are gone."""
    bits: int
    change: float | None
    accuracy: float | None
    """On the test data afterwards; None without a live model and data."""
    false_alarm: bool | None
    """Whether the unmarked network, modified alike, passes for marked; None: not tried."""
    matched_unmarked: int | None
    seconds: float

    @property
    def error_rate(self) -> float | None:
        """Symbol error rate of the decoder; a symbol is a bit."""
        return None if self.matched is None else 1 - self.matched / self.bits

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "error_rate": self.error_rate}

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed report; raises on anything of the wrong form."""
        bits = given.count("bits")
        counts = given.count_or_none("matched"), given.count_or_none("matched_unmarked")
        if not bits or max(count or 0 for count in counts) > bits:
            raise ValueError("the counts of a point contradict each other")
        return cls(
            value=given.number("value"),
            detected=given.flag("detected"),
            matched=counts[0],
            bits=bits,
            change=given.number_or_none("change"),
            accuracy=given.number_or_none("accuracy"),
            false_alarm=None if given.empty("false_alarm") else given.flag("false_alarm"),
            matched_unmarked=counts[1],
            seconds=given.number("seconds"),
        )


@dataclass(frozen=True)
class Modification:
    """One of the standard's modifications, at each value of its parameter."""

    name: str
    parameter: str
    attack: str
    """The attack that makes it here."""
    points: tuple[ModifiedPoint, ...]
    why: str = ""
    """Why it was not made, or not at every value."""

    @property
    def missed(self) -> int:
        """Values at which the mark was missed."""
        return sum(not point.detected for point in self.points)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "parameter": self.parameter,
            "attack": self.attack,
            "points": [point.to_dict() for point in self.points],
            "why": self.why,
        }

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed report; raises on anything of the wrong form."""
        points = tuple(map(ModifiedPoint.read, given.tables("points")))
        if not points and not given.text("why"):
            raise ValueError("a modification has neither points nor a reason")
        name, parameter, attack = map(given.text, ("name", "parameter", "attack"))
        return cls(name, parameter, attack, points, given.text("why"))


@dataclass(frozen=True)
class StandardReport(Record):
    """One marked network measured in the three ways of MPAI-NNW (IEEE 3304).

    Attributes:
        model: What was evaluated, as it was given.
        original: The unmarked network, as it was given; None without one.
        fingerprint: Public name of the key.
        before: The verdict on the marked network as it came; its bits are the payload.
        proves: What a match of the scheme proves, in one sentence.
        imperceptibility: Accuracies, and how far the weights were moved.
        modifications: What detector and decoder found after each modification.
        cost: Time and memory of embedding and of verification.
        machine: Where they were measured.
        seed: Where everything random began.
        seconds: What it took.
        date: When it was made (UTC).
        version: Version that made it.

    Examples:
        >>> options = neuralmark.attacks.StandardOptions(only=["noise"], jobs=1)
        >>> report = neuralmark.attacks.standard("marked.safetensors", key, options)
        >>> report.before.bits, report.modifications[0].name
        (160, 'Gaussian noise addition')
    """

    noun: ClassVar[str] = "standard report"
    file_format: ClassVar[str] = STANDARD_FORMAT

    model: str
    original: str | None
    fingerprint: str
    before: Before
    proves: str
    imperceptibility: Imperceptibility
    modifications: tuple[Modification, ...]
    cost: MarkingCost
    machine: Machine
    seed: int
    seconds: float
    date: str
    version: str = __version__

    @property
    def points(self) -> tuple[ModifiedPoint, ...]:
        """Of all modifications."""
        return tuple(point for each in self.modifications for point in each.points)

    @property
    def bound_log2(self) -> float | None:
        """Of the verdict before, where it is a proof; None: nothing is proven."""
        return self.before.bound_log2 if self.before.verified else None

    @property
    def missed(self) -> int:
        """Modified copies of the marked network in which the detector missed the mark."""
        return sum(each.missed for each in self.modifications)

    @property
    def unmarked(self) -> int:
        """Modified copies of the unmarked network that the detector was shown."""
        return sum(point.false_alarm is not None for point in self.points)

    @property
    def false_alarms(self) -> int:
        """How many of these passed for marked."""
        return sum(bool(point.false_alarm) for point in self.points)

    @property
    def error_rate(self) -> float | None:
        """Mean symbol error rate over the modified marked networks that could be decoded."""
        rates = [point.error_rate for point in self.points if point.error_rate is not None]
        return sum(rates) / len(rates) if rates else None

    def to_dict(self) -> dict[str, Any]:
        """As it stands in its file.

        Returns:
            Plain values, by name.

        Examples:
            >>> options = neuralmark.attacks.StandardOptions(only=["noise"], jobs=1)
            >>> report = neuralmark.attacks.standard("marked.safetensors", key, options)
            >>> report.to_dict()["robustness"]["false_alarms"]
            0
        """
        before = self.before
        return {
            "format": STANDARD_FORMAT,
            "version": self.version,
            "standard": STANDARD,
            "date": self.date,
            "model": self.model,
            "original": self.original,
            "fingerprint": self.fingerprint,
            "payload": before.bits,
            "proves": self.proves,
            "before": before.to_dict(),
            "certified_radius": {
                "absolute": before.certified_radius,
                "relative": before.certified_radius_relative,
            },
            "imperceptibility": self.imperceptibility.to_dict(),
            "robustness": {
                "modifications": [each.to_dict() for each in self.modifications],
                "marked": len(self.points),
                "missed": self.missed,
                "unmarked": self.unmarked,
                "false_alarms": self.false_alarms,
                "error_rate": self.error_rate,
            },
            "cost": self.cost.to_dict(),
            "machine": asdict(self.machine),
            "seed": self.seed,
            "seconds": self.seconds,
        }

    @classmethod
    def _read(cls, given: Fields) -> Self:
        seed = given.raw("seed")
        if type(seed) is not int:
            raise TypeError("seed is not a whole number")
        made = given.table("robustness").tables("modifications")
        return cls(
            model=given.text("model"),
            original=given.text_or_none("original"),
            fingerprint=given.text("fingerprint"),
            before=Before.read(given.table("before"), given.table("certified_radius")),
            proves=given.text("proves"),
            imperceptibility=Imperceptibility.read(given.table("imperceptibility")),
            modifications=tuple(map(Modification.read, made)),
            cost=MarkingCost.read(given.table("cost")),
            machine=Machine.read(given.table("machine")),
            seed=seed,
            seconds=given.number("seconds"),
            date=given.text("date"),
            version=given.text("version"),
        )
