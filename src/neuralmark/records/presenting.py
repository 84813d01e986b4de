"""How a verdict shows itself: a line, or a small table for notebooks; and parts of such tables."""

import html
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from neuralmark.errors import ParameterError
from neuralmark.records.lineage import RELATED_SCORE
from neuralmark.version import __version__

Told = Mapping[str, Any]
"""A verdict as `Verdict.to_dict` gives it."""

LONGEST_OWNER = 200
GOOD, PLAIN = "#1a7f37", "#57606a"


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


def short(told: Told, *, counted: bool = True) -> str:
    """One line: status, bits, chance and key."""
    status = told["status"].replace("-", " ")
    return f"{status}: {_bits(told)}{_chance(told, counted=counted)}; key {told['fingerprint']}"


def table(told: Told, *, counted: bool = True) -> str:
    """A small HTML table, without scripts or anything from elsewhere."""
    rows = [
        ("matched", _bits(told) + _chance(told, counted=counted)),
        ("model", told["model"]),
        ("key", f"{told['fingerprint']} ({told['key_kind']})"),
        ("reason", told["reason"]),
    ]
    if told["readings"]:
        rows.append(("lineage", lineage_in_words(told.get("lineage"))))
    optional = (
        ("owner", told["owner"]),
        ("date", told["date"]),
        ("sha256 of the claim", told["claim_digest"]),
        ("versions", ", ".join(f"{name} {given}" for name, given in told["versions"].items())),
    )
    rows += [(name, value) for name, value in optional if value]
    files = told["checkpoint_digest"]["files"] or {}
    rows += [(f"sha256 of {name}", digest) for name, digest in files.items()]
    rows += [(f"version of {name}", pin) for name, pin in told.get("pins", {}).items()]
    cells = "".join(line(("th", name), ("td", value)) for name, value in rows)
    colour = GOOD if told["verified"] else PLAIN
    return framed(told["status"].replace("-", " "), cells, colour)


def lineage_in_words(score: float | None) -> str:
    """What the score of a verdict's lineage says.

    >>> lineage_in_words(0.9837)
    'score 0.984: related (0.1 or more); a sign of descent, not of ownership'
    """
    if score is None:
        return "not told: too little could be compared with the anchor"
    if score < RELATED_SCORE:
        return f"score {score:.3f}: no sign of a relation ({RELATED_SCORE:g} or more would be one)"
    limit = f"({RELATED_SCORE:g} or more)"
    return f"score {score:.3f}: related {limit}; a sign of descent, not of ownership"


def framed(title: str, lines: str, colour: str = PLAIN) -> str:
    """A table of these lines under a title."""
    head = f"<caption style='color:{colour}'><b>{html.escape(title)}</b></caption>"
    return f"<table>{head}{lines}</table>"


def line(*cells: tuple[str, str]) -> str:
    """One line of a table: cells of this kind (`th` or `td`) with this text.

    >>> line(("td", "a < b"))
    "<tr><td style='text-align:left'>a &lt; b</td></tr>"
    """
    inner = "".join(
        f"<{kind} style='text-align:left'>{html.escape(text)}</{kind}>" for kind, text in cells
    )
    return f"<tr>{inner}</tr>"


def fact(name: str, said: str, columns: int) -> str:
    """One line of a table: a name, and a text over the other columns.

    >>> fact("by", "A & B", columns=2).partition("</th>")[2]
    "<td colspan='2' style='text-align:left'>A &amp; B</td></tr>"
    """
    told = f"<td colspan='{columns}' style='text-align:left'>{html.escape(said)}</td>"
    return f"<tr><th style='text-align:left'>{html.escape(name)}</th>{told}</tr>"


def _bits(told: Told) -> str:
    needed = "no number suffices" if told["boundary"] is None else f"{told['boundary']} needed"
    return f"{told['matched']} of {told['bits']} bits match ({needed})"


def _chance(told: Told, *, counted: bool) -> str:
    if not counted:
        return ", but do not count: too little of the marked weights was found"
    if not told["bound_holds"] or told["bound_log2"] > -0.05:
        return ""
    return f", by luck with a chance of at most 2^{told['bound_log2']:.1f}"
