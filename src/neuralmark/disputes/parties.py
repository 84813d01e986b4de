"""Who claims a model, and what they show: names, the public side of keys, stated times."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from neuralmark.core.key import KEY_KINDS, KeyKind
from neuralmark.errors import DisputeError
from neuralmark.records import Fields

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
