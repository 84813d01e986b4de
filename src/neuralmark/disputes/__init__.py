"""Ruling on disputes: who owns a model that several parties claim (docs/disputes.md).

`arbitrate` opens keys and models; `rule` is the pure criterion on verdicts.
"""

from neuralmark.disputes.arbitration import Claimant, arbitrate
from neuralmark.disputes.parties import Party, Shown
from neuralmark.disputes.records import Ruling
from neuralmark.disputes.relations import Relation
from neuralmark.disputes.ruling import rule

__all__ = ["Claimant", "Party", "Relation", "Ruling", "Shown", "arbitrate", "rule"]
