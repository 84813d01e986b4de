"""How a verdict shows itself: one line, and a small table for notebooks."""

import html
import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from neuralmark._version import __version__
from neuralmark.errors import ParameterError

if TYPE_CHECKING:
    from neuralmark.records import Verdict

LONGEST_OWNER = 200
_GOOD, _PLAIN = "#1a7f37", "#57606a"


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Of what a verdict was computed with."""
    return {
        "neuralmark": __version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def check_owner(owner: str | None) -> str | None:
    """A public label: one line, not too long."""
    if owner is None:
        return None
    if not isinstance(owner, str) or not owner.strip() or not owner.isprintable():
        raise ParameterError(f"owner must be a line of text to show, not {owner!r:.60}")
    if len(owner) > LONGEST_OWNER:
        raise ParameterError(f"owner is limited to {LONGEST_OWNER} characters")
    return owner


def short(verdict: "Verdict") -> str:
    """One line: status, bits, chance, model and key."""
    status = verdict.status.replace("-", " ")
    return f"{status}: {_bits(verdict)}{_chance(verdict)}; key {verdict.fingerprint}"


def table(verdict: "Verdict") -> str:
    """A small HTML table, without scripts or anything from elsewhere."""
    rows = [
        ("matched", _bits(verdict) + _chance(verdict)),
        ("model", verdict.model),
        ("key", f"{verdict.fingerprint} ({verdict.key_kind})"),
        ("so", verdict.reason),
    ]
    optional = (
        ("owner", verdict.owner),
        ("date", verdict.date),
        ("sha256 of the claim", verdict.claim_digest),
        ("versions", ", ".join(f"{name} {given}" for name, given in verdict.versions.items())),
    )
    rows += [(name, value) for name, value in optional if value]
    rows += [(f"sha256 of {name}", digest) for name, digest in (verdict.sha256 or {}).items()]
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
        for name, value in rows
    )
    colour = _GOOD if verdict.verified else _PLAIN
    title = html.escape(verdict.status.replace("-", " "))
    return f"<table><caption style='color:{colour}'><b>{title}</b></caption>{cells}</table>"


def _bits(verdict: "Verdict") -> str:
    needed = "no number suffices" if verdict.boundary is None else f"{verdict.boundary} needed"
    return f"{verdict.matched} of {verdict.bits} bits match ({needed})"


def _chance(verdict: "Verdict") -> str:
    if verdict.key_kind != "native":
        return ""
    return f", by luck with a chance of at most 2^{verdict.bound_log2:.1f}"
