"""What may be chosen for a scan, what a row of its results says, and what travels to workers."""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple, get_args

from neuralmark.anchors.effort import ALIGN_LIMIT, AlignOptions
from neuralmark.errors import ParameterError
from neuralmark.records import Verdict
from neuralmark.records.verdict import UNPROVEN, UNREADABLE, VERIFIED
from neuralmark.remote import RemoteOptions
from neuralmark.sandbox.limits import SandboxLimits

ScanStatus = Literal["verified", "matches-unproven", "nothing", "unreadable", "error"]
NOTHING: Final = "nothing"
ERROR: Final = "error"
SCAN_STATUSES: tuple[ScanStatus, ...] = get_args(ScanStatus)
FINDINGS = (VERIFIED, UNPROVEN)
"""A row of one of these has a verdict."""

ScanEngineName = Literal["local", "ray"]
LOCAL: Final = "local"
RAY: Final = "ray"
ScanForm = Literal["jsonl", "parquet"]
JSONL: Final = "jsonl"
PARQUET: Final = "parquet"
Aligning = Literal["alike", "all", "never"]
ALIKE: Final = "alike"
ALWAYS: Final = "all"
NEVER: Final = "never"

__all__ = ["UNREADABLE", "VERIFIED", "Errand", "ScanOptions", "ScanRow", "ScanTerms", "Todo"]


TargetName = str
"""A model, as it was named or found: a path or an address."""

_HALVES = re.compile("[\ud800-\udfff]")
"""What stands for bytes of a name that are no UTF-8, and can be written nowhere."""


def readable(value: Any) -> Any:
    r"""The same with every text as UTF-8 can hold it: bytes of names that are none as `\xfc`.

    >>> readable(["a\udcfc.npz", 1])
    ['a\\xfc.npz', 1]
    """
    if isinstance(value, str):
        return value if value.isascii() else _HALVES.sub(_escaped, value)
    if isinstance(value, Mapping):
        return {readable(name): readable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [readable(each) for each in value]
    return value


def _escaped(half: re.Match[str]) -> str:
    code = ord(half[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def kept_name(name: TargetName) -> str:
    r"""A name as UTF-8 can hold it, from which it can be restored; most stay as they are.

    >>> kept_name("a.npz"), restored_name(kept_name("\udcfc")) == "\udcfc"
    ('a.npz', True)
    """
    if not name.startswith("\0") and not _HALVES.search(name):
        return name
    return "\0" + name.encode("utf-8", "surrogatepass").hex()


def restored_name(kept: str) -> TargetName:
    """The name that `kept_name` kept."""
    if not kept.startswith("\0"):
        return kept
    return bytes.fromhex(kept[1:]).decode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class ScanOptions:
    """How a scan is carried out; the defaults suit most.

    Attributes:
        jobs: How many workers read at a time; None: one for each core.
        engine: Where they are, `local` or `ray` (the cluster that RAY_ADDRESS names, or one that is
            started here).
        sandbox: What each worker may use; None: workers are not confined.
        align: Where weights that are not in place are put back in order, for marks with an anchor:
            in models that are `alike`, in `all`, or `never`.
        effort: Share of the marked weights that is looked for then; see `VerifyOptions`.
        align_limit: The most entries of a table of likenesses; see `VerifyOptions`.
        form: How rows are written, `jsonl` or `parquet`.
        every: Seconds between the beginnings of two rounds: watch, and report only what is new.
        rounds: How many rounds this call makes at most; None: one, or without end if it watches.
        since: Leave out models that were last changed before this time (seconds since 1970).
        overwrite: Whether a folder that holds results, of this scan or of another, is begun anew.
        remote: How URLs are read; see `RemoteOptions`.

    Raises:
        ParameterError: A value is out of range.

    Examples:
        >>> neuralmark.ScanOptions(jobs=2).engine
        'local'
    """

    jobs: int | None = None
    engine: ScanEngineName = LOCAL
    sandbox: SandboxLimits | None = field(default_factory=SandboxLimits)
    align: Aligning = ALIKE
    effort: float = 1.0
    align_limit: int = ALIGN_LIMIT
    form: ScanForm = JSONL
    every: float | None = None
    rounds: int | None = None
    since: float | None = None
    overwrite: bool = False
    remote: RemoteOptions = field(default_factory=RemoteOptions)

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        AlignOptions(self.effort, self.align_limit)
        _one_of("engine", self.engine, get_args(ScanEngineName))
        _one_of("align", self.align, get_args(Aligning))
        _one_of("form", self.form, get_args(ScanForm))
        for name in ("jobs", "rounds"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= 1 << 20):
                raise ParameterError(f"{name} must be a count from 1 on, not {value!r:.40}")
        if self.every is not None and not 0 < self.every < 1e10:
            raise ParameterError(f"every must be a number of seconds, not {self.every!r:.40}")
        if self.sandbox is not None and not isinstance(self.sandbox, SandboxLimits):
            raise ParameterError(f"sandbox must be SandboxLimits, not {self.sandbox!r:.40}")
        if not isinstance(self.remote, RemoteOptions):
            raise ParameterError(f"remote must be RemoteOptions, not {self.remote!r:.40}")

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self.jobs or len(os.sched_getaffinity(0))


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ParameterError(f"{name} must be one of {', '.join(known)}, not {value!r:.40}")


@dataclass(frozen=True)
class ScanRow:
    """One finding, or one model in which nothing was found.

    Attributes:
        target: The model, as it was named or found.
        status: `verified`, `matches-unproven`, `nothing`, `unreadable` or `error`.
        why: In a sentence.
        key: Fingerprint of the key, for findings, and for errors of one mark alone.
        key_name: The name of the key's file, for the same.
        claim: SHA-256 of the claim that was followed, for findings that followed one.
        matched: How many bits match, for findings.
        bits: How many there are.
        boundary: How many must match, corrected for the whole scan.
        bound_log2: Logarithm of the chance that luck alone matches as well anywhere in the scan.
        trials: Marks x targets x ways that the bound is corrected for.
        format: The format of the file; None where it was not found out.
        weights: How many weights the model has.
        stamp: What changes with the file: size and time, or an ETag.
        error: Name of the error, for rows of the status `error`.
        round: In which round of watching it was found.
        verdict: The whole verdict, as `Verdict.to_dict` gives it, for findings.

    Examples:
        >>> from neuralmark.scanning.contract import ScanRow
        >>> ScanRow("a.npz", "nothing", "no mark").found
        False
    """

    target: TargetName
    status: ScanStatus
    why: str
    key: str | None = None
    key_name: str | None = None
    claim: str | None = None
    matched: int | None = None
    bits: int | None = None
    boundary: int | None = None
    bound_log2: float | None = None
    trials: int | None = None
    format: str | None = None
    weights: int | None = None
    stamp: str | None = None
    error: str | None = None
    round: int = 1
    verdict: dict[str, Any] | None = None

    @classmethod
    def of_verdict(cls, target: TargetName, key_name: str, verdict: Verdict) -> "ScanRow":
        """A finding.

        Args:
            target: The model.
            key_name: The name of the key's file.
            verdict: What was found.

        Returns:
            The row.

        Examples:
            >>> from neuralmark.scanning.contract import ScanRow
            >>> verdict = neuralmark.verify("marked.safetensors", key)
            >>> ScanRow.of_verdict("marked.safetensors", "acme.nmkey", verdict).found
            True
        """
        assert verdict.status in FINDINGS
        return cls(
            target,
            verdict.status,  # type: ignore[arg-type]
            verdict.reason,
            verdict.fingerprint,
            key_name,
            verdict.claim_digest,
            verdict.matched,
            verdict.bits,
            verdict.boundary,
            verdict.bound_log2,
            verdict.trials,
            verdict=verdict.to_dict(),
        )

    @property
    def found(self) -> bool:
        """Whether a key matches."""
        return self.status in FINDINGS

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the results.

        Returns:
            Plain values, by name.

        Examples:
            >>> from neuralmark.scanning.contract import ScanRow
            >>> ScanRow("a.npz", "nothing", "no mark").to_dict()["status"]
            'nothing'
        """
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ScanRow":
        """Read back what `to_dict` gave.

        Args:
            data: Plain values, by name.

        Returns:
            The row.

        Examples:
            >>> from neuralmark.scanning.contract import ScanRow
            >>> ScanRow.from_dict(ScanRow("a.npz", "nothing", "no mark").to_dict()).target
            'a.npz'
        """
        return cls(**{each.name: data[each.name] for each in fields(cls)})


class ScanFailure(NamedTuple):
    """What went wrong: an error without all that it holds on to."""

    error: str
    """Its name."""
    why: str

    @classmethod
    def of(cls, error: Exception) -> "ScanFailure":
        """Of an error."""
        name = "InputError" if isinstance(error, OSError) else type(error).__name__
        return cls(name, str(error)[:2000])

    def row(self, target: TargetName) -> ScanRow:
        """The row of a model that cannot be read."""
        return ScanRow(target, ERROR, self.why, error=self.error)

    def row_of(self, target: TargetName, key: str, key_name: str) -> ScanRow:
        """The row of one mark that cannot be looked for in a model."""
        why = f"{key_name}: {self.why}"
        return ScanRow(target, ERROR, why, key, key_name, error=self.error)


class Todo(NamedTuple):
    """A model to be looked at."""

    number: int
    """Its place in the list of the round."""
    target: TargetName


@dataclass(frozen=True)
class ScanTerms:
    """What all workers of a round must know beside the keys."""

    among: int
    """How many looks each look is one of: the bound is corrected for all."""
    align: Aligning = ALIKE
    effort: float = 1.0
    align_limit: int = ALIGN_LIMIT
    date: str = ""
    """When the round began: the date of its verdicts."""
    remote: RemoteOptions = field(default_factory=RemoteOptions)
    """How whoever reads for a worker reads URLs."""


Stage = Literal["headers", "weights"]
HEADERS: Final = "headers"
WEIGHTS: Final = "weights"


class Errand(NamedTuple):
    """What a worker is given: models to look at, whose headers are alike in the second stage."""

    stage: Stage
    todo: tuple[Todo, ...]
