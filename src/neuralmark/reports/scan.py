"""The page of a scan: what was found in which model, and all that was looked at."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from neuralmark.core.bound import SECURITY_BITS
from neuralmark.reports.render.page import (
    MOST_ROWS,
    code,
    facts,
    page,
    paragraphs,
    power_of_two,
    section,
    table,
    text,
    tiles,
    with_powers,
)
from neuralmark.scanning.contract import Aligning, ScanRow, ScanStatus
from neuralmark.scanning.rounds import ScanResult
from neuralmark.version import __version__

_GLYPHS = {True: (2, "M19 33l9 9 18-20"), False: (5, "M20 32h24")}
_TITLES: dict[ScanStatus, str] = {
    "verified": "Verified",
    "matches-unproven": "Match, unproven",
    "nothing": "Nothing found",
    "unreadable": "Not readable",
    "error": "Errors",
}
_MEANS = (
    "Every mark was looked for in every model. The chance that anything at all on this page is"
    " verified by luck is below {least}: each verdict is corrected for {correction}. A finding's"
    " verdict is the one that <code>neuralmark verify</code> gives, but for this correction"
    " (<code>--among</code> asks for it there)."
)
_NOT = (
    "Nothing found is not proof of absence: a mark is found only where its claim, its anchor or a"
    " search leads to it{more}."
)
_ORDER: dict[Aligning, str] = {
    "alike": ", and models that are not like an anchor were not put back in order",
    "never": ", and no model was put back in order",
    "all": "",
}
_ADDED = (
    "{models} added after this scan was begun, and not looked at: begin anew"
    " (<code>--force</code>), or watch (<code>--every</code>)."
)


def scan_page(
    result: ScanResult, rows: Iterable[ScanRow], pages: Mapping[int, str] | None = None
) -> str:
    """One self-contained HTML page whose tables can be sorted.

    Args:
        result: What the scan found, in numbers.
        rows: Its rows, in order; not more are held than the page shows.
        pages: The pages of single verdicts, by the number of the finding.

    Returns:
        The page.
    """
    found: list[ScanRow] = []
    others: list[ScanRow] = []
    for row in rows:
        kept = found if row.found else others
        if len(kept) <= MOST_ROWS:
            kept.append(row)
    verified = result.counts.get("verified", 0)
    title = f"{_many(verified, 'finding')} verified" if verified else "Nothing verified"
    parts = (
        '<p class="kicker"><span>Scan for marks in neural networks</span>'
        f"<span>NeuralMark {text(__version__)}</span></p>",
        _banner(title, result),
        _numbers(result),
        _findings(found, pages or {}),
        _others(others, sum(result.counts.values()) - len(found)),
    )
    return page(f"{title} (NeuralMark scan)", "\n".join(parts), sortable=True)


def _banner(title: str, result: ScanResult) -> str:
    colour, path = _GLYPHS[result.verified]
    glyph = (
        '<svg viewBox="0 0 64 64" role="img" aria-hidden="true"><circle cx="32" cy="32" r="29"'
        f' class="stroke" stroke-width="3"/><path d="{path}" class="stroke" stroke-width="5"'
        ' stroke-linecap="round" stroke-linejoin="round"/></svg>'
    )
    said = f"{_many(result.marks, 'mark')} looked for in {_many(result.targets, 'model')}"
    more = f", round {result.round}" if result.round > 1 else ""
    return (
        f'<section><div class="banner c{colour}">{glyph}<div><h1>{text(title)}</h1>'
        f'<p class="lead">{text(said + more)}.</p></div></div></section>'
    )


def _numbers(result: ScanResult) -> str:
    figures = [
        (title, f"{result.counts.get(status, 0):,}", _new(result, status))
        for status, title in _TITLES.items()
    ]
    least = power_of_two(-SECURITY_BITS)
    told = [("Bound", _MEANS.format(least=least, correction=text(result.correction)), "")]
    if result.protection is not None:
        told.append(("Sandbox", text(result.protection), ""))
    told += [("Passed over", text(each), "") for each in islice(result.passed_over, 20)]
    inner = tiles(figures) + facts(told)
    if result.added:
        many = f"{_many(result.added, 'model')} {'was' if result.added == 1 else 'were'}"
        inner += paragraphs(_ADDED.format(models=many))
    inner += paragraphs(_NOT.format(more=_ORDER[result.align]))
    return section("What was looked at", inner)


def _many(count: int, what: str) -> str:
    """A count and what it counts.

    >>> _many(1, "mark"), _many(2000, "mark")
    ('1 mark', '2,000 marks')
    """
    return f"{count:,} {what}{'s' * (count != 1)}"


def _new(result: ScanResult, status: ScanStatus) -> str:
    return f"{result.new.get(status, 0):,} new" if result.round > 1 else ""


def _findings(found: Sequence[ScanRow], pages: Mapping[int, str]) -> str:
    if not found:
        return section("Findings", paragraphs("None of the marks was found in any of the models."))
    rows = [
        (
            code(row.target),
            text(_TITLES[row.status]),
            code(row.key_name or ""),
            f"{row.matched} of {row.bits}",
            power_of_two(row.bound_log2 or 0.0) if row.status == "verified" else "no bound",
            str(row.round),
            _linked(pages.get(number), row),
        )
        for number, row in enumerate(found)
    ]
    head = ("Model", "Status", "Key", "Bits", "Chance of error", "Round", "Verdict")
    return section("Findings", table(head, rows))


def _linked(path: str | None, row: ScanRow) -> str:
    if path is None:
        return with_powers(row.why)
    return f'<a href="{text(path)}">verdict</a>'


def _others(others: Sequence[ScanRow], total: int) -> str:
    if not total:
        return ""
    rows = [
        (
            code(row.target),
            text(row.error or _TITLES[row.status]),
            text(row.format or ""),
            "" if row.weights is None else f"{row.weights:,}",
            with_powers(row.why),
        )
        for row in others[:MOST_ROWS]
    ]
    head = ("Model", "Status", "Format", "Weights", "Why")
    inner = table(head, rows)
    if total > len(rows):
        rest = f"and {total - len(rows):,} more, all of them in the file of rows"
        inner += paragraphs(text(rest))
    return section("What was not found, or went wrong", inner)
