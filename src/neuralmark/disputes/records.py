"""What goes into a ruling and what comes out: frozen, JSON, and nothing of any key."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, ClassVar, Self

from neuralmark.disputes import presenting
from neuralmark.disputes.parties import DISPUTED, Party, Shown, stated_time
from neuralmark.disputes.relations import RELATED, Relation
from neuralmark.disputes.sightings import ABSENT_ABOVE, Sighting
from neuralmark.errors import DisputeError
from neuralmark.records import Fields, Record
from neuralmark.version import __version__

RULING_FORMAT = "neuralmark-ruling/1"


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
