"""The page of a record that was kept as JSON: the one that was to be had when it was made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralmark.attacks.engine.card import Card
from neuralmark.attacks.engine.standard_report import StandardReport
from neuralmark.disputes.records import Ruling
from neuralmark.errors import RecordError
from neuralmark.records import Lineage, PublicVerdict, Record, Trace, Verdict, load_json
from neuralmark.reports.card import card_page
from neuralmark.reports.lineage import lineage_page
from neuralmark.reports.ruling import ruling_page
from neuralmark.reports.standard import standard_page
from neuralmark.reports.trace import trace_page
from neuralmark.reports.verdict import verdict_page

_KINDS: tuple[type[Record], ...] = (Verdict, Card, StandardReport, Ruling, Lineage, Trace)


@dataclass(frozen=True)
class Drawn:
    """A record read back, what it is called, and its page."""

    record: Record
    page: str

    @property
    def noun(self) -> str:
        """What kind of record it is, in words."""
        return self.record.noun


def draw(path: str | Path) -> Drawn:
    """The page of the verdict, card, standard report, ruling, lineage or trace in a file."""
    data = load_json(Path(path), "record")
    try:
        return drawn(data)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None


def drawn(data: Mapping[str, Any]) -> Drawn:
    """The page of a record as its file holds it, parsed."""
    record = _kind(data).from_dict(dict(data))
    pages: tuple[tuple[type[Record], Callable[[Any], str]], ...] = (
        (Verdict, verdict_page),
        (PublicVerdict, verdict_page),
        (Card, card_page),
        (StandardReport, standard_page),
        (Ruling, ruling_page),
        (Lineage, lineage_page),
        (Trace, trace_page),
    )
    page = next(page for kind, page in pages if isinstance(record, kind))
    return Drawn(record, page(record))


def _kind(data: Any) -> type[Record]:
    """What a parsed file says that it is; of an unknown version, its reader complains."""
    found = data.get("format") if isinstance(data, dict) else None
    name = found.rpartition("/")[0] if isinstance(found, str) else ""
    for kind in _KINDS:
        if kind.file_format.rpartition("/")[0] == name:
            public = kind is Verdict and data.get("view") == PublicVerdict.view
            return PublicVerdict if public else kind
    if found == "neuralmark-claim":
        raise RecordError("a claim, which has no page; verify the model to get a verdict")
    raise RecordError("none of NeuralMark's records: no verdict, card, ruling, lineage or trace")
