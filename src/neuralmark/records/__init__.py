"""Claim and Verdict: frozen, versioned, JSON (docs/formats.md)."""

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any

from neuralmark import schemes
from neuralmark.core.encoding import strict_json
from neuralmark.core.key import Parameters, Placement
from neuralmark.errors import ParameterError, RecordError
from neuralmark.records import presenting
from neuralmark.storage import files
from neuralmark.version import __version__

CLAIM_FORMAT = "neuralmark-claim"
VERDICT_FORMAT = "neuralmark-verdict/1"
MAX_CLAIM = 16 << 20
PUBLIC = (
    *("format", "version", "verified", "status", "matched", "bits", "rate", "boundary"),
    *("bound_log2", "bound_holds", "full_match_bound_log2", "trials", "fingerprint"),
    *("date", "owner"),
)
"""What the public view of a verdict takes over from the full one."""

VERIFIED = "verified"
NOT_VERIFIED = "not-verified"
UNPROVEN = "matches-unproven"
UNPROVABLE = "unprovable"
UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Digest:
    """SHA-256 of a checkpoint's headers, of the tensors read, and of whole files on request."""

    headers: str
    tensors: dict[str, str]
    files: dict[str, str] | None = None
    algorithm: str = "sha256"


@dataclass(frozen=True)
class Claim:
    """Record of where a key was put into which model. Never trusted, only followed.

    Attributes:
        fingerprint: Public name of the key.
        commitment: Hiding commitment to the key.
        parameters: What shapes the read-out.
        placement: The marked tensors in order, a canonical name and a shape each.
        marked_digest: SHA-256 of headers and tensors of the marked model.
        source_digest: The same of the model before; None if it is not known.
        library: Version that wrote it.

    Examples:
        >>> claim = Claim.load("marked.safetensors.claim.json")
        >>> claim.fingerprint == key.fingerprint
        True
    """

    fingerprint: str
    commitment: str
    parameters: Parameters
    placement: Placement
    marked_digest: Digest
    source_digest: Digest | None = None
    library: str = __version__

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the claim file."""
        return {
            "format": CLAIM_FORMAT,
            "version": 1,
            "fingerprint": self.fingerprint,
            "commitment": self.commitment,
            "scheme": self.parameters.scheme,
            "parameters": self.parameters.to_dict(),
            "placement": placement_list(self.placement),
            "source_digest": asdict(self.source_digest) if self.source_digest else None,
            "marked_digest": asdict(self.marked_digest),
            "library": self.library,
        }

    def to_json(self) -> str:
        """Readable JSON, ending in a line break."""
        return to_json(self.to_dict())

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the claim file."""
        files.write_text(Path(path), self.to_json(), overwrite=overwrite)

    @classmethod
    def given(cls, claim: Any) -> "Claim | None":
        """A claim as callers give it: itself, its file, or what its file holds, parsed."""
        if claim is None or isinstance(claim, cls):
            return claim
        if isinstance(claim, str | Path) and str(claim).strip():
            return cls.load(claim)
        if isinstance(claim, dict):
            try:
                return cls.loads(to_json(claim), "the claim")
            except (TypeError, ValueError):
                raise RecordError("the claim: holds what no claim file can") from None
        raise ParameterError(
            f"claim must be a Claim, the path of one or a parsed one, not {type(claim).__name__}"
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the claim's file, as `sha256sum` prints it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def load(cls, path: str | Path) -> "Claim":
        """Read a claim file; it is hostile input like any other."""
        return cls._load(Path(path), links=True)

    @classmethod
    def load_beside(cls, path: Path) -> "Claim":
        """Read a claim that happens to lie beside a model: nobody named it, so no links."""
        return cls._load(path, links=False)

    @classmethod
    def _load(cls, path: Path, *, links: bool) -> "Claim":
        try:
            data = files.read_small(path, MAX_CLAIM, links=links)
        except OSError as error:
            raise RecordError(f"{path}: cannot be read ({error.strerror or error})") from None
        if len(data) > MAX_CLAIM:
            raise RecordError(f"{path}: is larger than a claim may be ({MAX_CLAIM:,} bytes)")
        return cls.loads(data, str(path))

    @classmethod
    def loads(cls, text: bytes | str, where: str) -> "Claim":
        """The claim in the text of a claim file; `where` it is from begins every complaint."""
        try:
            data = strict_json(text)
        except ValueError as error:
            raise RecordError(f"{where}: is not valid JSON ({error})") from None
        if not isinstance(data, dict) or data.get("format") != CLAIM_FORMAT:
            raise RecordError(f"{where}: not a NeuralMark claim")
        if type(data.get("version")) is not int or data["version"] != 1:
            raise RecordError(f"{where}: a claim of an unknown version; update neuralmark")
        try:
            return cls.from_dict(data)
        except KeyError as error:
            raise RecordError(f"{where}: the claim is damaged ({error} is missing)") from None
        except (ParameterError, TypeError, ValueError) as error:
            raise RecordError(f"{where}: the claim is damaged ({str(error)[:200]})") from None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Claim":
        """The claim in a parsed file; raises on anything of the wrong form."""
        source = data["source_digest"]
        parameters = Parameters.from_dict(data["parameters"])
        if data["scheme"] != parameters.scheme:
            raise ValueError("its two schemes differ")
        return cls(
            fingerprint=_text(data["fingerprint"]),
            commitment=_text(data["commitment"]),
            parameters=parameters,
            placement=_placement(data["placement"]),
            marked_digest=_digest(data["marked_digest"]),
            source_digest=None if source is None else _digest(source),
            library=_text(data["library"]),
        )


@dataclass(frozen=True)
class TensorRead:
    """A tensor that was read for a verdict."""

    name: str
    stored_name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Gap:
    """A tensor that the key was derived for and that was not read: zeros stand in its place."""

    name: str
    weights: int
    why: str
    stored: bool = False
    """Whether it is in the model, but in a form that cannot be read."""


@dataclass(frozen=True)
class Coverage:
    """How many weights a verdict rests on."""

    in_model: int
    """Weights of the whole model, as far as its headers tell."""
    looked_at: int
    """Those of them that some way of looking read."""
    wanted: int
    """Weights that were to be read: of the tensors named or claimed, or of the whole model."""
    unreadable: int = 0
    """Those of them that are there, but in a form that cannot be read."""
    why: str = ""
    """What that form is."""

    @property
    def share(self) -> float:
        """Share of the model's weights that was looked at."""
        return self.looked_at / self.in_model if self.in_model else 0.0

    @property
    def unreadable_share(self) -> float:
        """Share of what was to be read that could not be."""
        return self.unreadable / self.wanted if self.wanted else 0.0


@dataclass(frozen=True)
class Histogram:
    """Counts of bits by margin, apart for those that match and those that do not."""

    edges: tuple[float, ...]
    matched: tuple[int, ...]
    missed: tuple[int, ...]


@dataclass(frozen=True)
class Verdict:
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
        mapping: How they were found, `names`, `prefix` or `search`.
        orientation: Whether they were read as they are stored, or transposed.
        smallest_margin: The smallest margin of a bit; negative where it does not match.
        median_margin: The median of the margins.
        margin_histogram: Counts of bits by margin.
        certified_radius: No smaller change of the weights can undo the verdict; None if not known.
        certified_radius_relative: The same, as a share of the norm of the weights read.
        model: What was verified, as it was given.
        checkpoint_digest: SHA-256 of headers, of the tensors read, and of files on request.
        coverage: How many weights the verdict rests on.
        missing: Tensors of the mark that were not read.
        scaling: Whether rows were read as stored or at one size.
        version: Version that gave it.
        date: When it was given, in UTC.
        owner: The owner's public label, where he wants it shown; nothing depends on it.
        claim_digest: SHA-256 of the claim that was followed, as `sha256sum` prints it for the file.
        versions: Of what it was computed with.

    Examples:
        >>> verdict = neuralmark.verify("marked.safetensors", key)
        >>> verdict.status, verdict.rate
        ('verified', 1.0)
    """

    status: str
    reason: str
    matched: int
    bits: int
    boundary: int | None
    bound_log2: float
    full_match_bound_log2: float
    trials: int
    parameters: Parameters
    key_kind: str
    fingerprint: str
    placement: Placement
    tensors: tuple[TensorRead, ...]
    mapping: str
    orientation: str
    smallest_margin: float
    median_margin: float
    margin_histogram: Histogram
    certified_radius: float | None
    certified_radius_relative: float | None
    model: str
    checkpoint_digest: Digest
    coverage: Coverage
    missing: tuple[Gap, ...] = ()
    scaling: str = "stored"
    version: str = __version__
    date: str | None = None
    owner: str | None = None
    claim_digest: str | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def sha256(self) -> dict[str, str] | None:
        """SHA-256 of the whole files, as `sha256sum` prints them; asked for by full_digest."""
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
    def margin_unit(self) -> str:
        """What margins are counted in: deviations of unmarked logits, or logits as they are."""
        return "sigma_z" if schemes.get(self.parameters.scheme).linear else "logit"

    def __bool__(self) -> bool:
        """Refuse to be a bare truth value: ask for `.verified`."""
        raise TypeError("a Verdict is more than a bool: use verdict.verified")

    def public_dict(self) -> dict[str, Any]:
        """What may be published: counts, bound and status, of which key and which file.

        Nothing that a stranger who hands in suspects could learn the key's bits from, and not
        which tensors carry the mark.
        """
        whole = self.to_dict()
        return {name: whole[name] for name in PUBLIC} | {
            "view": "public",
            "model": PurePath(self.model).name,
            "files": self.checkpoint_digest.files,
        }

    def __str__(self) -> str:
        """One line; `to_json()` has everything."""
        return presenting.short(self.to_dict())

    def _repr_html_(self) -> str:
        """For notebooks."""
        return presenting.table(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The whole evidence, as `neuralmark verify --json` prints it; for owner and judge."""
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
            "bound_holds": self.key_kind == "native",
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
            "versions": dict(self.versions),
        }

    def to_json(self) -> str:
        """Readable JSON, ending in a line break."""
        return to_json(self.to_dict())


def to_json(value: dict[str, Any]) -> str:
    """Readable JSON, ending in a line break; numbers that JSON lacks are an error."""
    import json

    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def placement_list(placement: Placement) -> list[list[Any]]:
    """A placement as JSON has it."""
    return [[name, list(shape)] for name, shape in placement]


def _placement(value: Any) -> Placement:
    if not isinstance(value, list) or not value:
        raise ValueError("placement is not a list")
    for name, shape in value:
        _text(name)
        if not isinstance(shape, list) or not all(type(x) is int and x >= 0 for x in shape):
            raise ValueError("placement has a bad shape")
    if len({name for name, _ in value}) != len(value):
        raise ValueError("placement names a tensor twice")
    return tuple((name, tuple(shape)) for name, shape in value)


def _digest(value: Any) -> Digest:
    digest = Digest(**value)
    if digest.algorithm != "sha256":
        raise ValueError("a digest of an unknown algorithm")
    for table in (digest.tensors, {} if digest.files is None else digest.files):
        if not isinstance(table, dict) or not all(isinstance(x, str) for x in table.values()):
            raise TypeError("a digest must map names to digests")
    _text(digest.headers)
    return digest


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected text")
    value.encode("utf-8")  # half of a character is refused
    return value
