"""What goes into a ruling and what comes out: frozen, JSON, and nothing of any key."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Literal, Self, get_args

from neuralmark.core.bound import SECURITY_BITS
from neuralmark.core.key import KEY_KINDS, KeyKind
from neuralmark.disputes import presenting
from neuralmark.disputes.relations import RELATED, Relation
from neuralmark.errors import DisputeError
from neuralmark.records import NOT_VERIFIED, VERIFIED, Fields, Record, Verdict
from neuralmark.records.parts import MAPPINGS, TensorMapping
from neuralmark.version import __version__

RULING_FORMAT = "neuralmark-ruling/1"

Presence = Literal["present", "traces", "absent", "unproven"]
"""Whether a mark is in a model, as far as a judge may say."""
PRESENT: Final = "present"
TRACES: Final = "traces"
ABSENT: Final = "absent"
UNPROVEN: Final = "unproven"

ABSENT_ABOVE = -64.0
"""A mark is absent where luck alone matches as well with a chance above 2^-64.

Keys can be tried until one matches a given model a little: 2^20 of them take a minute.
"""

_REMARKABLE = -20.0
"""From here on the match of a key that can prove nothing is called one; it decides nothing."""

DISPUTED = "the disputed model"
LONGEST_NAME = 100


def exhibit_of(name: str) -> str:
    """What the model that a party shows is called."""
    return f"the exhibit of {name}"


@dataclass(frozen=True)
class Shown:
    """A model before the judge.

    Attributes:
        path: Its path, as given.
        files: SHA-256 of each of its files, by name.

    Examples:
        >>> Shown("model.safetensors").files
        {}
    """

    path: str
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed ruling.

        Args:
            given: The table of the model.

        Returns:
            The model.

        Raises:
            TypeError: A part has the wrong form.
            ValueError: A part is missing.

        Examples:
            >>> Shown.read(Fields({"path": "model.safetensors", "files": {}})).path
            'model.safetensors'
        """
        return cls(given.text("path"), given.table("files").all_texts())


@dataclass(frozen=True)
class Party:
    """A claimant, with the public side of its key.

    Attributes:
        name: What it is called.
        fingerprint: Public name of its key.
        commitment: Hiding commitment to its key.
        key_kind: `native` or `raw`.
        exhibit: The model that it shows.
        stated_time: When the commitment was registered, as stated; nothing depends on it.

    Raises:
        DisputeError: The stated time is not a time.

    Examples:
        >>> shown = Shown("model.safetensors")
        >>> Party("Acme", key.fingerprint, key.commitment, key.kind, shown).label
        'the exhibit of Acme'
    """

    name: str
    fingerprint: str
    commitment: str
    key_kind: KeyKind
    exhibit: Shown
    stated_time: str | None = None

    def __post_init__(self) -> None:
        """Refuse a text that is not a time."""
        if self.stated_time is not None:
            stated_time(self.stated_time)

    @property
    def label(self) -> str:
        """What its exhibit is called."""
        return exhibit_of(self.name)

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed ruling.

        Args:
            given: The table of the party.

        Returns:
            The party.

        Raises:
            TypeError: A part has the wrong form.
            ValueError: A part is missing.
            DisputeError: The name or the stated time is not one.

        Examples:
            >>> shown = {"path": "model.safetensors", "files": {}}
            >>> table = {"name": "Acme", "fingerprint": "nm1-", "commitment": "", "exhibit": shown}
            >>> Party.read(Fields(table | {"key_kind": "native", "stated_time": None})).name
            'Acme'
        """
        return cls(
            name=check_name(given.text("name")),
            fingerprint=given.text("fingerprint"),
            commitment=given.text("commitment"),
            key_kind=given.one_of("key_kind", KEY_KINDS),
            exhibit=Shown.read(given.table("exhibit")),
            stated_time=given.text_or_none("stated_time"),
        )


@dataclass(frozen=True)
class Sighting:
    """What one party's key shows in one model."""

    party: str
    model: str
    state: Presence
    reason: str
    matched: int | None = None
    bits: int | None = None
    boundary: int | None = None
    bound_log2: float | None = None
    trials: int | None = None
    mapping: TensorMapping | None = None
    tensors: tuple[str, ...] = ()

    @classmethod
    def of(cls, party: str, model: str, verdict: Verdict | None) -> "Sighting":
        """From a verdict; None where the model has no tensor that could hold the mark."""
        if verdict is None:
            why = "the model has no tensors of the names or shapes that this mark would be in"
            return cls(party, model, ABSENT, why)
        return cls(
            party=party,
            model=model,
            state=state_of(verdict),
            reason=_found(verdict),
            matched=verdict.matched,
            bits=verdict.bits,
            boundary=verdict.boundary,
            bound_log2=verdict.bound_log2,
            trials=verdict.trials,
            mapping=verdict.mapping,
            tensors=tuple(tensor.stored_name for tensor in verdict.tensors),
        )

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed ruling; raises on anything of the wrong form."""
        sighting = cls(
            party=given.text("party"),
            model=given.text("model"),
            state=given.one_of("state", get_args(Presence)),
            reason=given.text("reason"),
            matched=given.count_or_none("matched"),
            bits=given.count_or_none("bits"),
            boundary=given.count_or_none("boundary"),
            bound_log2=given.number_or_none("bound_log2"),
            trials=given.count_or_none("trials"),
            mapping=given.one_of("mapping", MAPPINGS) if given.text_or_none("mapping") else None,
            tensors=given.texts("tensors"),
        )
        counts = (sighting.matched, sighting.bits, sighting.bound_log2, sighting.trials)
        known = [count is not None for count in counts]
        if any(known) is not all(known) or (sighting.matched or 0) > (sighting.bits or 0):
            raise ValueError("the counts of a sighting contradict each other")
        return sighting


def _found(verdict: Verdict) -> str:
    """What was found, without what `verify` advises its user to do."""
    said = f"{verdict.matched} of {verdict.bits} bits match"
    if verdict.boundary is None:
        return f"{said}; so few bits can never go below 2^-{SECURITY_BITS}"
    if verdict.status not in (VERIFIED, NOT_VERIFIED):
        return verdict.reason
    ways = f"{verdict.trials} ways" if verdict.trials > 1 else "one way"
    needed = "would have sufficed" if verdict.verified else "are needed"
    return f"{said}; {verdict.boundary} {needed} in {ways} of looking"


def state_of(verdict: Verdict) -> Presence:
    """Present, traces, absent; or unproven, which is not a mark, for nobody and against nobody.

    A key that can be fitted to a model (a raw matrix) or that is too short to prove anything
    must not leave traces either: they would be as easy to make up as a match.
    """
    if verdict.status == VERIFIED:
        return PRESENT
    if verdict.status == NOT_VERIFIED and verdict.key_kind == "native":
        return ABSENT if verdict.bound_log2 > ABSENT_ABOVE else TRACES
    return ABSENT if verdict.bound_log2 > _REMARKABLE else UNPROVEN


@dataclass(frozen=True)
class Case:
    """How one party stands against the criterion: what holds, and what is missing."""

    party: str
    holds: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether the party satisfies the criterion."""
        return not self.missing

    @classmethod
    def read(cls, given: Fields) -> Self:
        """From a parsed ruling; raises on anything of the wrong form."""
        return cls(given.text("party"), given.texts("holds"), given.texts("missing"))


@dataclass(frozen=True)
class Ruling(Record):
    """Who the owner is by the paper's criterion, or that it cannot be said; and why.

    Attributes:
        owner: Name of the party that is the owner; None if undecided.
        reasons: Why, in sentences.
        cautions: What the judge should keep in mind.
        parties: The claimants, with the public side of their keys.
        disputed: The model in dispute, if it is not one of the exhibits.
        cases: How each party stands against the criterion.
        sightings: What each key shows in each model.
        relations: How the models are related to each other.
        set_aside: Names of the parties whose exhibits are not related to the model in dispute.
        version: Version that ruled.
        related_from: The correlation from which on models counted as related.
        absent_above: The log2 of the chance above which a mark counted as absent.

    Examples:
        >>> other = neuralmark.Key.new(key.parameters)
        >>> acme = neuralmark.Claimant("Acme", key, "marked.safetensors")
        >>> idle = neuralmark.Claimant("Idle", other, "marked.safetensors")
        >>> ruling = neuralmark.arbitrate([acme, idle])
        >>> ruling.decided, ruling.owner
        (True, 'Acme')
    """

    noun: ClassVar[str] = "ruling"
    file_format: ClassVar[str] = RULING_FORMAT

    owner: str | None
    reasons: tuple[str, ...]
    cautions: tuple[str, ...]
    parties: tuple[Party, ...]
    disputed: Shown | None
    cases: tuple[Case, ...]
    sightings: tuple[Sighting, ...]
    relations: tuple[Relation, ...]
    set_aside: tuple[str, ...]
    version: str = __version__
    related_from: float = RELATED
    absent_above: float = ABSENT_ABOVE

    @property
    def decided(self) -> bool:
        """Whether one party is the owner."""
        return self.owner is not None

    def __bool__(self) -> bool:
        """Refuse to be a bare truth value: ask for `.owner` or `.decided`."""
        raise TypeError("a Ruling is more than a bool: use ruling.owner or ruling.decided")

    @property
    def models(self) -> tuple[str, ...]:
        """What the models are called: each party's exhibit, and the disputed model."""
        labels = tuple(party.label for party in self.parties)
        return labels if self.disputed is None else (*labels, DISPUTED)

    def sighting(self, party: str, model: str) -> Sighting:
        """What a party's key showed in a model.

        Args:
            party: Name of the party.
            model: What the model is called: one of `models`.

        Returns:
            Whether the mark is there, and the counts.

        Raises:
            DisputeError: The ruling has no such party or model.

        Examples:
            >>> other = neuralmark.Key.new(key.parameters)
            >>> acme = neuralmark.Claimant("Acme", key, "marked.safetensors")
            >>> idle = neuralmark.Claimant("Idle", other, "marked.safetensors")
            >>> neuralmark.arbitrate([acme, idle]).sighting("Acme", "the exhibit of Idle").state
            'present'
        """
        for each in self.sightings:
            if (each.party, each.model) == (party, model):
                return each
        raise DisputeError(f"the ruling does not tell of {party!r} in {model!r}")

    def commitments(self) -> tuple[Party, ...]:
        """The parties whose commitments have a stated time.

        Returns:
            These parties, the earliest first.

        Examples:
            >>> other = neuralmark.Key.new(key.parameters)
            >>> acme = neuralmark.Claimant("Acme", key, "marked.safetensors", None, "2024-05-01")
            >>> idle = neuralmark.Claimant("Idle", other, "marked.safetensors")
            >>> [party.stated_time for party in neuralmark.arbitrate([acme, idle]).commitments()]
            ['2024-05-01T00:00:00+00:00']
        """
        stated = [
            (datetime.fromisoformat(stated_time(party.stated_time)), party)
            for party in self.parties
            if party.stated_time is not None
        ]
        return tuple(party for _, party in sorted(stated, key=lambda entry: entry[0]))

    def _repr_html_(self) -> str:
        """For notebooks."""
        return presenting.table(self.to_dict(), self.models)

    def to_dict(self) -> dict[str, Any]:
        """As `neuralmark arbitrate --json` prints it.

        Returns:
            Plain values, by name.

        Examples:
            >>> other = neuralmark.Key.new(key.parameters)
            >>> acme = neuralmark.Claimant("Acme", key, "marked.safetensors")
            >>> idle = neuralmark.Claimant("Idle", other, "marked.safetensors")
            >>> neuralmark.arbitrate([acme, idle]).to_dict()["owner"]
            'Acme'
        """
        return {
            "format": RULING_FORMAT,
            "version": self.version,
            "decided": self.decided,
            "owner": self.owner,
            "reasons": list(self.reasons),
            "cautions": list(self.cautions),
            "parties": [_party(party) for party in self.parties],
            "disputed": None if self.disputed is None else _shown(self.disputed),
            "cases": [
                {
                    "party": case.party,
                    "complete": case.complete,
                    "holds": list(case.holds),
                    "missing": list(case.missing),
                }
                for case in self.cases
            ],
            "sightings": [asdict(s) | {"tensors": list(s.tensors)} for s in self.sightings],
            "relations": [relation.to_dict() for relation in self.relations],
            "related_from": self.related_from,
            "absent_above_log2": self.absent_above,
            "set_aside": list(self.set_aside),
            "commitments": [
                {"party": party.name, "commitment": party.commitment, "time": party.stated_time}
                | {"remark": "as stated, not checked"}
                for party in self.commitments()
            ],
        }

    @classmethod
    def _read(cls, given: Fields) -> Self:
        limit = given.number("related_from")
        ruling = cls(
            owner=given.text_or_none("owner"),
            reasons=given.texts("reasons"),
            cautions=given.texts("cautions"),
            parties=tuple(map(Party.read, given.tables("parties"))),
            disputed=None if given.empty("disputed") else Shown.read(given.table("disputed")),
            cases=tuple(map(Case.read, given.tables("cases"))),
            sightings=tuple(map(Sighting.read, given.tables("sightings"))),
            relations=tuple(Relation.read(each, limit) for each in given.tables("relations")),
            set_aside=given.texts("set_aside"),
            version=given.text("version"),
            related_from=limit,
            absent_above=given.number("absent_above_log2"),
        )
        ruling._check_names()
        return ruling

    def _check_names(self) -> None:
        """Refuse names of nobody, and a key that was not looked for in every model once."""
        names, models = [party.name for party in self.parties], self.models
        if len(names) < 2 or len(set(names)) != len(names):
            raise ValueError("it has fewer than two parties, or two of one name")
        named = {*(case.party for case in self.cases), *self.set_aside}
        compared = {label for each in self.relations for label in (each.one, each.two)}
        if not named <= set(names) or not compared <= set(models):
            raise ValueError("it names a party or a model that it does not have")
        complete = [case.party for case in self.cases if case.complete]
        if [case.party for case in self.cases] != names or (
            self.owner is not None and complete != [self.owner]
        ):
            raise ValueError("its owner is not the party whose case is complete")
        looked = sorted((each.party, each.model) for each in self.sightings)
        if looked != sorted((name, model) for name in names for model in models):
            raise ValueError("it does not tell of every key in every model once")


def check_name(name: str) -> str:
    """A party's name: some text of one line, and not too long."""
    if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise DisputeError(
            f"{name[:LONGEST_NAME]!r} is not a name for a party: give one line of at most"
            f" {LONGEST_NAME} characters"
        )
    return name


def stated_time(text: str) -> str:
    """A stated time in one form; without a zone it is taken for UTC.

    >>> stated_time("2024-05-01T02:00+02:00")
    '2024-05-01T00:00:00+00:00'
    """
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        raise DisputeError(
            f"{text[:60]!r} is not a time: write it as 2024-05-01 or 2024-05-01T12:00+02:00"
        ) from None


def _shown(shown: Shown) -> dict[str, Any]:
    return {"path": shown.path, "files": dict(shown.files)}


def _party(party: Party) -> dict[str, Any]:
    return {
        "name": party.name,
        "fingerprint": party.fingerprint,
        "commitment": party.commitment,
        "key_kind": party.key_kind,
        "exhibit": _shown(party.exhibit),
        "stated_time": party.stated_time,
    }
