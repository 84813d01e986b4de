"""Verdict: what verification found, in full and as it may be published (docs/formats.md)."""

from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import PurePath
from typing import Any, ClassVar, Final, Literal, Self, get_args

from neuralmark import schemes
from neuralmark.core.key import KEY_KINDS, MAX_BITS, KeyKind, Parameters, Placement
from neuralmark.errors import RecordError
from neuralmark.records import presenting
from neuralmark.records.alignment import Alignment, BitsRead
from neuralmark.records.fields import Fields, Record
from neuralmark.records.parts import (
    ANCHOR_DIGEST,
    MAPPINGS,
    ORIENTATIONS,
    SCALINGS,
    Coverage,
    Digest,
    Gap,
    Histogram,
    Orientation,
    Scaling,
    TensorMapping,
    TensorRead,
    digest_from,
    placement_from,
    placement_list,
    triggers_from,
)
from neuralmark.version import __version__

VERDICT_FORMAT = "neuralmark-verdict/1"
PUBLIC = (
    *("format", "version", "verified", "status", "matched", "bits", "rate", "boundary"),
    *("bound_log2", "bound_holds", "full_match_bound_log2", "trials", "fingerprint"),
    *("date", "owner"),
)
"""What the public view of a verdict takes over from the full one."""

Status = Literal["verified", "not-verified", "matches-unproven", "unprovable", "unreadable"]
VERIFIED: Final = "verified"
NOT_VERIFIED: Final = "not-verified"
UNPROVEN: Final = "matches-unproven"
UNPROVABLE: Final = "unprovable"
UNREADABLE: Final = "unreadable"
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class Verdict(Record):
    """What verification found, with everything that influenced it and nothing of the key.

    Attributes:
        status: `verified`, `not-verified`, `matches-unproven`, `unprovable` or `unreadable`.
        reason: Why, in a sentence.
        matched: How many bits match.
        bits: How many bits there are.
        boundary: How many must match; None if no number suffices.
        bound_log2: Logarithm of the chance that luck alone matches as well.
        full_match_bound_log2: The same if all bits matched.
        trials: Ways of looking that the bound is corrected for.
        parameters: What shapes the read-out.
        key_kind: `native` or `raw`.
        fingerprint: Public name of the key.
        placement: The tensors of the mark in order, a canonical name and a shape each.
        tensors: The tensors that were read.
        mapping: How they were found, `names`, `prefix`, `search` or `anchor` (by likeness).
        orientation: Whether they were read as they are stored, or transposed.
        smallest_margin: The smallest margin of a bit; negative where it does not match.
        median_margin: The median of the margins.
        margin_histogram: Counts of bits by margin.
        certified_radius: No smaller change of the weights can undo the verdict; None if not known.
        certified_radius_relative: The same, as a share of the norm of the weights read.
        model: What was verified, as it was given.
        checkpoint_digest: SHA-256 of headers, of the tensors read, and of whole files (`sha256`).
        coverage: How many weights the verdict rests on.
        missing: Tensors of the mark that were not read.
        scaling: Whether rows were read as stored or at one size.
        version: Version that gave it.
        date: When it was given, in UTC.
        owner: The owner's public label, where he wants it shown; nothing depends on it.
        claim_digest: SHA-256 of the claim that was followed, as `sha256sum` prints it for the file.
        anchor_digest: Digest of the anchor that the key was bound to, in hexadecimal digits.
        trigger_digest: Digest of the triggers, where activations were read.
        versions: Of what it was computed with.
        readings: What reading by position and reading aligned gave, where there was an anchor.
        alignment: How the weights were put back in order; None if they were not.
        lineage: With an anchor: how alike the weights are to it, as `neuralmark.lineage` scores two
            models, from 0 to 1; a sign of descent, not of ownership. None where it is not known.
        pins: Of models behind URLs: the commit, version or ETag of each file, by its name.

    Examples:
        >>> verdict = neuralmark.verify("marked.safetensors", key)
        >>> verdict.status, verdict.rate
        ('verified', 1.0)
    """

    noun: ClassVar[str] = "verdict"
    file_format: ClassVar[str] = VERDICT_FORMAT

    status: Status
    reason: str
    matched: int
    bits: int
    boundary: int | None
    bound_log2: float
    full_match_bound_log2: float
    trials: int
    parameters: Parameters
    key_kind: KeyKind
    fingerprint: str
    placement: Placement
    tensors: tuple[TensorRead, ...]
    mapping: TensorMapping
    orientation: Orientation
    smallest_margin: float
    median_margin: float
    margin_histogram: Histogram
    certified_radius: float | None
    certified_radius_relative: float | None
    model: str
    checkpoint_digest: Digest
    coverage: Coverage
    missing: tuple[Gap, ...] = ()
    scaling: Scaling = "stored"
    version: str = __version__
    date: str | None = None
    owner: str | None = None
    claim_digest: str | None = None
    anchor_digest: str | None = None
    trigger_digest: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    readings: tuple[BitsRead, ...] = ()
    alignment: Alignment | None = None
    lineage: float | None = None
    pins: dict[str, str] = field(default_factory=dict)

    @property
    def sha256(self) -> dict[str, str] | None:
        """SHA-256 of the whole files, by name, as `sha256sum` prints them.

        None for files of over 64 MiB, unless full_digest=True asked for it, and for live models.
        """
        return self.checkpoint_digest.files

    @property
    def verified(self) -> bool:
        """True only for a native key that reached the boundary."""
        return self.status == VERIFIED

    @property
    def rate(self) -> float:
        """Share of matching bits."""
        return self.matched / self.bits

    @property
    def bound_holds(self) -> bool:
        """Whether luck is bounded: not for a key that may have been chosen to fit."""
        return self.key_kind == "native"

    @property
    def bits_counted(self) -> bool:
        """Whether the bits count: not where too little of the marked weights was found."""
        told = self.alignment if self.mapping == "anchor" else None
        return told is None or told.enough

    @property
    def unanchored(self) -> bool:
        """Whether the mark that was looked for is known to have no anchor."""
        known = self.verified or self.claim_digest is not None
        return known and self.anchor_digest is None and self.trigger_digest is None

    @property
    def margin_unit(self) -> str:
        """What margins are counted in: deviations of unmarked logits, or logits as they are."""
        return "sigma_z" if schemes.get(self.parameters.scheme).linear else "logit"

    def __bool__(self) -> bool:
        """Refuse to be a bare truth value: ask for `.verified`."""
        raise TypeError("a Verdict is more than a bool: use verdict.verified")

    def with_owner(self, owner: str | None) -> "Verdict":
        """The same verdict with a public label of the owner on it; nothing depends on it.

        Args:
            owner: A line of text to show, or None.

        Returns:
            A verdict that differs in the label only.

        Raises:
            ParameterError: The label is empty, too long, or more than a line.

        Examples:
            >>> neuralmark.verify("marked.safetensors", key).with_owner("Acme").owner
            'Acme'
        """
        return replace(self, owner=presenting.check_owner(owner))

    def public_dict(self) -> dict[str, Any]:
        """What may be published: counts, bound and status, of which key and which file.

        It does not tell which tensors carry the mark, and a stranger who hands in suspects cannot
        learn the key's bits from it.

        Returns:
            Plain values, by name.

        Examples:
            >>> public = neuralmark.verify("marked.safetensors", key).public_dict()
            >>> public["status"], "tensors" in public
            ('verified', False)
        """
        whole = self.to_dict()
        return {name: whole[name] for name in PUBLIC} | {
            "view": "public",
            "model": PurePath(self.model).name,
            "files": self.checkpoint_digest.files,
        }

    def __str__(self) -> str:
        """One line; `to_json()` has everything."""
        return presenting.short(self.to_dict(), counted=self.bits_counted)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return presenting.table(self.to_dict(), counted=self.bits_counted)

    def to_dict(self) -> dict[str, Any]:
        """The whole evidence, as `neuralmark verify --json` prints it; for owner and judge.

        Returns:
            Plain values, by name.

        Examples:
            >>> neuralmark.verify("marked.safetensors", key).to_dict()["bits"]
            160
        """
        radius = None
        if self.certified_radius is not None:
            relative = self.certified_radius_relative
            radius = {"absolute": self.certified_radius, "relative": relative}
        return {
            "format": VERDICT_FORMAT,
            "view": "full",
            "version": self.version,
            "verified": self.verified,
            "status": self.status,
            "reason": self.reason,
            "matched": self.matched,
            "bits": self.bits,
            "rate": self.rate,
            "boundary": self.boundary,
            "bound_log2": self.bound_log2,
            "bound_holds": self.bound_holds,
            "full_match_bound_log2": self.full_match_bound_log2,
            "trials": self.trials,
            "scheme": self.parameters.scheme,
            "parameters": self.parameters.to_dict(),
            "key_kind": self.key_kind,
            "fingerprint": self.fingerprint,
            "placement": placement_list(self.placement),
            "tensors": [asdict(tensor) | {"shape": list(tensor.shape)} for tensor in self.tensors],
            "mapping": self.mapping,
            "orientation": self.orientation,
            "scaling": self.scaling,
            "missing": [asdict(gap) for gap in self.missing],
            "coverage": asdict(self.coverage) | {"share": self.coverage.share},
            "margins": {
                "smallest": self.smallest_margin,
                "median": self.median_margin,
                "unit": self.margin_unit,
            },
            "margin_histogram": {k: list(v) for k, v in asdict(self.margin_histogram).items()},
            "certified_radius": radius,
            "model": self.model,
            "checkpoint_digest": asdict(self.checkpoint_digest),
            "date": self.date,
            "owner": self.owner,
            "claim_digest": self.claim_digest,
            "anchor_digest": self.anchor_digest,
            **({} if self.trigger_digest is None else {"trigger_digest": self.trigger_digest}),
            **({} if not self.pins else {"pins": dict(self.pins)}),
            "versions": dict(self.versions),
            "readings": [asdict(reading) for reading in self.readings],
            "alignment": None if self.alignment is None else self.alignment.to_dict(),
            **({} if self.lineage is None else {"lineage": self.lineage}),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read back what `to_dict` gave.

        Args:
            data: The parsed content of a verdict's file.

        Returns:
            The verdict.

        Raises:
            RecordError: It is not a verdict, only the public view of one, or damaged.

        Examples:
            >>> verdict = neuralmark.verify("marked.safetensors", key)
            >>> Verdict.from_dict(verdict.to_dict()) == verdict
            True
        """
        if isinstance(data, dict) and data.get("view") == PublicVerdict.view:
            raise RecordError(
                "the public view of a verdict, which is without the evidence: ask the owner or"
                " the judge for the full one"
            )
        return super().from_dict(data)

    @classmethod
    def _read(cls, given: Fields) -> Self:
        placement = given.raw("placement")
        radius = None if given.empty("certified_radius") else given.table("certified_radius")
        margins, bars = given.table("margins"), given.table("margin_histogram")
        return cls(
            **_counted(given),
            reason=given.text("reason"),
            parameters=_parameters(given),
            key_kind=given.one_of("key_kind", KEY_KINDS),
            placement=placement_from(placement) if placement != [] else (),
            tensors=tuple(map(_tensor, given.tables("tensors"))),
            mapping=given.one_of("mapping", MAPPINGS),
            orientation=given.one_of("orientation", ORIENTATIONS),
            scaling=given.one_of("scaling", SCALINGS),
            missing=tuple(map(_gap, given.tables("missing"))),
            coverage=_coverage(given.table("coverage")),
            smallest_margin=margins.number("smallest"),
            median_margin=margins.number("median"),
            margin_histogram=_histogram(bars),
            certified_radius=radius.number("absolute") if radius else None,
            certified_radius_relative=(radius.number_or_none("relative") if radius else None),
            model=given.text("model"),
            checkpoint_digest=digest_from(given.raw("checkpoint_digest")),
            claim_digest=given.text_or_none("claim_digest"),
            anchor_digest=_anchor(given.text_or_none("anchor_digest")),
            trigger_digest=triggers_from(given.optional("trigger_digest")),
            pins={} if given.optional("pins") is None else given.table("pins").all_texts(),
            versions=given.table("versions").all_texts(),
            readings=tuple(map(BitsRead.read, given.tables("readings"))),
            alignment=(
                None if given.empty("alignment") else Alignment.read(given.table("alignment"))
            ),
            lineage=_lineage(given),
        )


@dataclass(frozen=True)
class PublicVerdict(Record):
    """What of a verdict may be published: counts, bound and status."""

    noun: ClassVar[str] = "public verdict"
    file_format: ClassVar[str] = VERDICT_FORMAT
    view: ClassVar[str] = "public"

    status: Status
    matched: int
    bits: int
    boundary: int | None
    bound_log2: float
    bound_holds: bool
    full_match_bound_log2: float
    trials: int
    fingerprint: str
    model: str
    """The name of its file or folder, without where it lay."""
    files: dict[str, str] | None
    version: str
    date: str | None
    owner: str | None

    @property
    def verified(self) -> bool:
        """True only for a native key that reached the boundary."""
        return self.status == VERIFIED

    @property
    def rate(self) -> float:
        """Share of matching bits."""
        return self.matched / self.bits

    def to_dict(self) -> dict[str, Any]:
        """As `neuralmark verify --json --public` prints it."""
        told = {name: getattr(self, name) for name in PUBLIC if name != "format"}
        return {
            "format": VERDICT_FORMAT,
            **told,
            "view": self.view,
            "model": self.model,
            "files": self.files,
        }

    @classmethod
    def _read(cls, given: Fields) -> Self:
        files = None if given.empty("files") else given.table("files").all_texts()
        return cls(
            **_counted(given),
            bound_holds=given.flag("bound_holds"),
            model=given.text("model"),
            files=files,
        )


def _counted(given: Fields) -> dict[str, Any]:
    """What both views have, held against each other."""
    status, matched = given.one_of("status", STATUSES), given.count("matched")
    bits, boundary = given.count("bits"), given.count_or_none("boundary")
    if not 0 < bits <= MAX_BITS or matched > bits or (boundary or 0) > bits:
        raise ValueError("its counts contradict each other")
    reached = boundary is not None and matched >= boundary
    if status in (VERIFIED, UNPROVEN) and not reached:
        raise ValueError("its status contradicts its counts")
    if status == VERIFIED and not given.flag("bound_holds"):
        raise ValueError("its status contradicts its kind of key")
    chances = {name: given.number(name) for name in ("bound_log2", "full_match_bound_log2")}
    if max(chances.values()) > 0:
        raise ValueError("a chance is above 1")
    return {
        "status": status,
        "matched": matched,
        "bits": bits,
        "boundary": boundary,
        **chances,
        "trials": given.count("trials"),
        "fingerprint": given.text("fingerprint"),
        "version": given.text("version"),
        "date": given.text_or_none("date"),
        "owner": presenting.check_owner(given.text_or_none("owner")),
    }


def _parameters(given: Fields) -> Parameters:
    parameters = Parameters.from_dict(given.raw("parameters"))
    schemes.get(parameters.scheme)
    if parameters.bits != given.count("bits"):
        raise ValueError("its bits are not those of its parameters")
    return parameters


def _anchor(digest: str | None) -> str | None:
    if digest is not None and not ANCHOR_DIGEST.fullmatch(digest):
        raise ValueError("the digest of an anchor is none")
    return digest


def _lineage(given: Fields) -> float | None:
    score = None if given.optional("lineage") is None else given.number("lineage")
    if score is not None and not 0 <= score <= 1:
        raise ValueError("the score of the lineage is impossible")
    return score


def _tensor(given: Fields) -> TensorRead:
    return TensorRead(
        name=given.text("name"),
        stored_name=given.text("stored_name"),
        dtype=given.text("dtype"),
        shape=given.counts("shape"),
    )


def _gap(given: Fields) -> Gap:
    return Gap(
        name=given.text("name"),
        weights=given.count("weights"),
        why=given.text("why"),
        stored=given.flag("stored"),
    )


def _coverage(given: Fields) -> Coverage:
    return Coverage(
        in_model=given.count("in_model"),
        looked_at=given.count("looked_at"),
        wanted=given.count("wanted"),
        unreadable=given.count("unreadable"),
        why=given.text("why"),
    )


def _histogram(given: Fields) -> Histogram:
    bars = Histogram(given.numbers("edges"), given.counts("matched"), given.counts("missed"))
    rising = all(low < high for low, high in pairwise(bars.edges))
    if not rising or not len(bars.edges) - 1 == len(bars.matched) == len(bars.missed) > 0:
        raise ValueError("margin_histogram is not one")
    return bars
