"""Trace: which buyer's mark a suspect carries (docs/formats.md)."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self

from neuralmark.core.bound import bound_log2, boundary
from neuralmark.core.key import Parameters
from neuralmark.core.subkeys import plain_label
from neuralmark.records.alignment import Alignment
from neuralmark.records.fields import Fields, Record
from neuralmark.version import __version__

TRACE_FORMAT = "neuralmark-trace/1"


def quoted(labels: Iterable[str]) -> list[str]:
    """Names of buyers for a list of them: some have commas.

    >>> ", ".join(quoted(["Bolt GmbH", "Miller, J."]))
    '“Bolt GmbH”, “Miller, J.”'
    """
    return [f"“{label}”" for label in labels]


@dataclass(frozen=True)
class MarkRead:
    """What a suspect shows of one key's mark.

    Attributes:
        label: The buyer; empty for the owner.
        fingerprint: Public name of the key.
        position: Bits that match where the weights lie; None where they could not be read so.
        aligned: Bits that match after the weights were put in order; for a buyer, in what they
            differ by from the anchor. None where this was not done.

    Examples:
        >>> MarkRead("Acme", "nm1-00", 131, 256).matched
        256
    """

    label: str
    fingerprint: str
    position: int | None
    aligned: int | None

    @property
    def matched(self) -> int:
        """The larger of both."""
        return max(self.position or 0, self.aligned or 0)

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed trace.

        Args:
            given: The table of the reading.

        Returns:
            The reading.

        Raises:
            TypeError: A part has the wrong form.
            ValueError: A part is missing.

        Examples:
            >>> MarkRead.read(Fields(asdict(MarkRead("Acme", "nm1-00", 131, 256)))).label
            'Acme'
        """
        return cls(
            given.text("label"),
            given.text("fingerprint"),
            given.count_or_none("position"),
            given.count_or_none("aligned"),
        )


@dataclass(frozen=True)
class Trace(Record):
    """Which buyers' marks a suspect carries, of all that were looked for.

    Attributes:
        suspect: The suspect, as it was given.
        parameters: What shapes the read-out of all marks.
        owner: What it shows of the owner's mark.
        buyers: What it shows of each buyer's, in the order of the list.
        ways: In how many ways every key was looked for.
        reason: What was read, or why it was not, in a sentence.
        identical: The buyer whose recorded copy has the very same files, if there is one.
        sha256: SHA-256 of the suspect's files, by name.
        anchor: Digest of the anchor, in hexadecimal digits.
        alignment: How the weights were put in order; None where they were not.
        version: Version that traced.
        date: When, in UTC.
        pins: Of suspects behind URLs: the commit, version or ETag of each file, by its name.

    Examples:
        >>> buyers = ["Acme Ltd.", "Bolt GmbH"]
        >>> register, _ = neuralmark.issue_copies("model.safetensors", key, buyers, "copies")
        >>> found = neuralmark.trace(f"copies/{register.copies[0].path}", key, "copies")
        >>> found.named, found.trials, found.identical
        (('Acme Ltd.',), 4, 'Acme Ltd.')
    """

    noun: ClassVar[str] = "trace"
    file_format: ClassVar[str] = TRACE_FORMAT

    suspect: str
    parameters: Parameters
    owner: MarkRead
    buyers: tuple[MarkRead, ...]
    ways: int
    reason: str
    identical: str | None = None
    sha256: dict[str, str] | None = None
    anchor: str = ""
    alignment: Alignment | None = None
    version: str = __version__
    date: str | None = None
    pins: dict[str, str] = field(default_factory=dict)

    @property
    def trials(self) -> int:
        """Every way of looking for every buyer: the bound is corrected for all of them."""
        return self.ways * len(self.buyers)

    @property
    def boundary(self) -> int | None:
        """How many bits of a buyer's mark must match; None if no number suffices."""
        return boundary(self.parameters.bits, self.trials)

    @property
    def named(self) -> tuple[str, ...]:
        """The buyers whose marks it carries, the surest first."""
        needed = self.boundary
        found = [each for each in self.buyers if needed is not None and each.matched >= needed]
        return tuple(each.label for each in sorted(found, key=lambda each: -each.matched))

    @property
    def owned(self) -> bool:
        """Whether it carries the owner's mark."""
        needed = boundary(self.parameters.bits, self.ways)
        return needed is not None and self.owner.matched >= needed

    @property
    def bound_log2(self) -> float:
        """log2 of the chance that any innocent buyer shows as many bits as the surest one does."""
        most = max((each.matched for each in self.buyers), default=0)
        return bound_log2(self.parameters.bits, most, self.trials)

    def __bool__(self) -> bool:
        """Refuse to be a bare truth value: ask for `.named`."""
        raise TypeError("a Trace is more than a bool: use trace.named")

    def __str__(self) -> str:
        """One line; `to_json()` has everything."""
        if not self.named:
            return f"no buyer is named: {self.reason}"
        chance = f"an innocent is named with a chance of at most 2^{self.bound_log2:.1f}"
        return f"{', '.join(quoted(self.named))}: {self.reason}; {chance}"

    def bound_of(self, read: MarkRead) -> float:
        """log2 of the chance that some innocent buyer shows as many bits as this one.

        Args:
            read: One of the buyers' readings.

        Returns:
            The logarithm, at most 0.

        Examples:
            >>> read = MarkRead("Acme", "nm1-00", 256, None)
            >>> owner = MarkRead("", "nm1-01", 256, None)
            >>> Trace("a.npz", Parameters(), owner, (read,) * 4, 2, "").bound_of(read)
            -253.0
        """
        return bound_log2(self.parameters.bits, read.matched, self.trials)

    def to_dict(self) -> dict[str, Any]:
        """As `neuralmark trace --json` prints it.

        Returns:
            Plain values, by name.

        Examples:
            >>> owner = MarkRead("", "nm1-01", 256, None)
            >>> Trace("a.npz", Parameters(), owner, (owner,), 2, "").to_dict()["trials"]
            2
        """
        return {
            "format": TRACE_FORMAT,
            "version": self.version,
            "suspect": self.suspect,
            "named": list(self.named),
            "owned": self.owned,
            "bits": self.parameters.bits,
            "boundary": self.boundary,
            "bound_log2": self.bound_log2,
            "trials": self.trials,
            "ways": self.ways,
            "reason": self.reason,
            "identical": self.identical,
            "sha256": self.sha256,
            "pins": dict(self.pins),
            "parameters": self.parameters.to_dict(),
            "owner": asdict(self.owner),
            "buyers": [
                asdict(each) | {"matched": each.matched, "bound_log2": self.bound_of(each)}
                for each in self.buyers
            ],
            "anchor": self.anchor,
            "alignment": None if self.alignment is None else self.alignment.to_dict(),
            "date": self.date,
        }

    @classmethod
    def _read(cls, given: Fields) -> Self:
        parameters = Parameters.from_dict(given.raw("parameters"))
        buyers = tuple(map(MarkRead.read, given.tables("buyers")))
        owner = MarkRead.read(given.table("owner"))
        if any(each.matched > parameters.bits for each in (*buyers, owner)):
            raise ValueError("more bits match than there are")
        if not buyers or len({plain_label(each.label) for each in buyers}) != len(buyers):
            raise ValueError("no buyers, or one of them twice")
        if given.raw("ways") not in (1, 2):
            raise ValueError("every key is looked for in one way or in two")
        return cls(
            suspect=given.text("suspect"),
            parameters=parameters,
            owner=owner,
            buyers=buyers,
            ways=given.count("ways"),
            reason=given.text("reason"),
            identical=given.text_or_none("identical"),
            sha256=None if given.empty("sha256") else given.table("sha256").all_texts(),
            pins=given.table("pins").all_texts(),
            anchor=given.text("anchor"),
            alignment=(
                None if given.empty("alignment") else Alignment.read(given.table("alignment"))
            ),
            version=given.text("version"),
            date=given.text_or_none("date"),
        )
