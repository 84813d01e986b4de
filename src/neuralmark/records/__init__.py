"""Claim and Verdict: frozen, versioned, JSON (docs/formats.md)."""

from neuralmark.records import presenting
from neuralmark.records.alignment import LEAST_FOUND, Alignment, BitsRead, TensorFate
from neuralmark.records.claim import CLAIM_FORMAT, MAX_CLAIM, Claim
from neuralmark.records.fields import MAX_RECORD, Fields, Record, load_json, to_json
from neuralmark.records.issued import COPIES_FORMAT, CopyRegister, IssuedCopy
from neuralmark.records.lineage import (
    LINEAGE_FORMAT,
    NOT_LOOKED_FOR,
    RELATED_SCORE,
    Kinship,
    Lineage,
)
from neuralmark.records.parts import (
    ClaimedAnchor,
    Coverage,
    Digest,
    Gap,
    Histogram,
    TensorRead,
    placement_list,
)
from neuralmark.records.trace import TRACE_FORMAT, MarkRead, Trace
from neuralmark.records.verdict import (
    NOT_VERIFIED,
    PUBLIC,
    STATUSES,
    UNPROVABLE,
    UNPROVEN,
    UNREADABLE,
    VERDICT_FORMAT,
    VERIFIED,
    PublicVerdict,
    Status,
    Verdict,
)

__all__ = [
    "CLAIM_FORMAT",
    "COPIES_FORMAT",
    "LEAST_FOUND",
    "LINEAGE_FORMAT",
    "MAX_CLAIM",
    "MAX_RECORD",
    "NOT_LOOKED_FOR",
    "NOT_VERIFIED",
    "PUBLIC",
    "RELATED_SCORE",
    "STATUSES",
    "TRACE_FORMAT",
    "UNPROVABLE",
    "UNPROVEN",
    "UNREADABLE",
    "VERDICT_FORMAT",
    "VERIFIED",
    "Alignment",
    "BitsRead",
    "Claim",
    "ClaimedAnchor",
    "CopyRegister",
    "Coverage",
    "Digest",
    "Fields",
    "Gap",
    "Histogram",
    "IssuedCopy",
    "Kinship",
    "Lineage",
    "MarkRead",
    "PublicVerdict",
    "Record",
    "Status",
    "TensorFate",
    "TensorRead",
    "Trace",
    "Verdict",
    "load_json",
    "placement_list",
    "presenting",
    "to_json",
]
