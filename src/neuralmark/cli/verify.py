"""`neuralmark verify`: look for a key's mark and say what it proves."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.records import Alignment, BitsRead, Verdict
    from neuralmark.storage.places import Place

TITLES = {
    "verified": "VERIFIED",
    "not-verified": "NOT VERIFIED",
    "matches-unproven": "MATCHES, BUT UNPROVEN",
    "unprovable": "CANNOT BE PROVEN",
    "unreadable": "COULD NOT BE READ",
}

EXIT_CODES = {"verified": 0, "unreadable": 3}
"""By status; 1 for every other."""

MOST_CHANGES, MOST_NOTES = 8, 6
"""Kinds of changes that are printed; the rest is counted."""


@click.command("verify", short_help="Look for the key's mark in MODEL, and give a verdict.")
@click.argument("model", type=options.MODEL)
@options.key_options
@click.option(
    "--claim",
    "claim_file",
    type=options.PATH,
    help="Claim that says which tensors were marked.",
)
@click.option(
    "--tensor",
    "tensors",
    multiple=True,
    metavar="NAME",
    help="Look in this tensor (may be repeated).",
)
@click.option(
    "--anchor",
    type=options.PATH,
    help="Anchor of the mark, or the unmarked original; default: sought beside the claim.",
)
@click.option(
    "--effort",
    type=float,
    default=1.0,
    show_default=True,
    help="Share of the marked weights to look for where they were rearranged, above 0 up to 1; the"
    " rest is filled from the anchor.",
)
@options.align_limit_option
@options.base_option
@click.option(
    "--full-digest/--no-full-digest",
    default=None,
    help="Take the SHA-256 of the whole files, as sha256sum prints it. By default with --report,"
    " and for files of up to 64 MiB in all; never by default of what is behind a URL.",
)
@options.among_option
@options.sandbox_options(default=False)
@options.code_options
@options.example_option
@click.option("--owner", metavar="TEXT", help="Public label of the owner to show on the verdict.")
@click.option(
    "--report",
    type=options.PATH,
    metavar="FILE.html",
    help="Write a self-contained page with the evidence.",
)
@click.option(
    "--public",
    is_flag=True,
    help="Print (and report) only what may be published: counts, bound and status.",
)
@options.remote_options
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    model: "Place",
    key_file: Path,
    passphrase_file: Path | None,
    claim_file: Path | None,
    tensors: tuple[str, ...],
    anchor: Path | None,
    effort: float,
    align_limit: int,
    base: Path | None,
    full_digest: bool | None,
    among: int,
    sandbox: bool,
    memory: int,
    time_limit: float,
    code: str | None,
    triggers: Path | None,
    example: str | None,
    owner: str | None,
    report: Path | None,
    public: bool,
    as_json: bool,
) -> None:
    """Look for the key's mark in MODEL and give a verdict with its bound.

    With a claim or tensor names, verify reads only those tensors. Without, it follows a claim of
    this key that lies beside MODEL under its name (MODEL.claim.json); where there is none, it tries
    the tensors that auto would choose and every tensor large enough, and corrects the bound for all
    of them. With the mark's anchor, it finds the weights wherever they went: renamed, fused,
    permuted, rescaled, rotated.
    MODEL may be a URL (hf://owner/name, https, s3, gs, az): only what is needed is fetched.
    Exit code 0: verified; 1: not; 3: the weights could not be read.
    """
    from neuralmark.api import verify
    from neuralmark.marking.options import VerifyOptions

    if claim_file and tensors:
        raise click.UsageError("--claim names the tensors already: give --claim or --tensor")
    key = options.load_key(key_file, passphrase_file)
    near = isinstance(model, Path)  # of what is far only what is needed is fetched
    whole = True if report and near and full_digest is None else full_digest
    limits = options.limits(sandbox, memory, time_limit)
    shown = options.example(example, code)
    wanted = VerifyOptions(anchor, effort, align_limit, whole, base, among, limits, shown)
    with output.progress_bar() as progress:
        verdict = verify(
            options.live(code, model, key),
            key,
            claim=claim_file,
            tensors=list(tensors) or None,
            options=wanted,
            triggers=triggers,
            progress=progress,
        ).with_owner(owner)
    if report:
        from neuralmark.reports.verdict import verdict_page
        from neuralmark.storage import files

        options.refuse_inputs(report, (model, key_file, claim_file, anchor, base))
        files.write_text(report, verdict_page(verdict, public=public), overwrite=True)
        output.note(f"report written to {report}")
    if as_json:
        output.as_json(verdict.public_dict() if public else verdict.to_dict())
    else:
        _show(verdict, public=public)
    ctx.exit(EXIT_CODES.get(verdict.status, 1))


def _chance(verdict: "Verdict") -> str:
    if verdict.key_kind != "native":
        return "no bound: this key was chosen freely, and may have been chosen to fit"
    if not verdict.bits_counted:
        return "none is claimed, as the bits are not counted"
    chance = output.power_of_two(verdict.bound_log2)
    if chance == "1":
        return "no bound: " + ("luck gives as many bits" if verdict.trials else "nothing was read")
    return f"at most {chance} for this many bits"


def _how(verdict: "Verdict") -> str:
    """In which way they were read, where it was not the plain one."""
    turned = " (transposed)" if verdict.orientation == "transposed" else ""
    rows = " (rows divided by their size)" if verdict.scaling == "rows" else ""
    stand_in = "the anchor" if verdict.mapping == "anchor" else "zeros"
    gaps = f" (and {stand_in} for {len(verdict.missing)} not read)" if verdict.missing else ""
    return turned + rows + gaps


def _readings(verdict: "Verdict") -> list[tuple[str, str]]:
    """Both ways of reading an anchored mark, and what had been done to the weights."""
    from neuralmark.records.presenting import lineage_in_words

    rows = []
    for reading in verdict.readings:
        name = {"position": "by position", "aligned": "aligned"}[reading.kind]
        bits = f"{reading.matched} of {verdict.bits} bits{_aligner(reading, verdict.alignment)}"
        rows.append((name, reading.why if reading.matched is None else bits))
    told = verdict.alignment
    if told is not None:
        rows.append(("found", f"{output.percent(told.found)} of the marked weights{_least(told)}"))
        rows.append(("what was done", _done(told)))
        rows += _aside(told)
    if verdict.readings:
        rows.append(("lineage", lineage_in_words(verdict.lineage)))
    return rows


def _aligner(reading: "BitsRead", told: "Alignment | None") -> str:
    """Whether aligned bits count, and what put them in order, in which time."""
    if told is None or reading.kind != "aligned":
        return ""
    counted = "" if told.enough else ", not counted"
    return f"{counted} (aligner version {told.aligner}, {told.seconds:,.1f} s)"


def _least(told: "Alignment") -> str:
    """How much has to be found, where less was."""
    from neuralmark.records import LEAST_FOUND

    return "" if told.enough else f"; at least {output.percent(LEAST_FOUND, 0)} is asked for"


def _done(told: "Alignment") -> str:
    """What had been done to how many tensors; counts of channels are left to the report."""
    from neuralmark.records.gathering import gathered_changes

    ranked = gathered_changes(told.tensors)
    more = f"; and {len(ranked) - MOST_CHANGES} more kinds" if len(ranked) > MOST_CHANGES else ""
    shown = (f"{change} ({count})" for change, count in ranked[:MOST_CHANGES])
    unmoved = "changed in place: see what was set aside" if told.notes else "nothing"
    return "; ".join(shown) + more or unmoved


def _aside(told: "Alignment") -> list[tuple[str, str]]:
    """What was set aside, a line for each kind of change."""
    from neuralmark.records.gathering import gathered_notes

    lines = gathered_notes(told)
    rows = [("set aside", line) for line in lines[:MOST_NOTES]]
    if len(lines) > MOST_NOTES:
        rows.append(("", f"and {len(lines) - MOST_NOTES} more kinds of change (--json has all)"))
    return rows


def _show(verdict: "Verdict", *, public: bool) -> None:
    needed = (
        "no number of bits suffices" if verdict.boundary is None else f"{verdict.boundary} bits"
    )
    rows = [
        ("model", verdict.model),
        ("key", f"{verdict.fingerprint} ({verdict.key_kind})"),
        ("matched", _matched(verdict, public=public)),
        ("boundary", needed),
        ("chance of error", _chance(verdict)),
        ("trials", f"{verdict.trials}"),
    ]
    rows += [("owner", verdict.owner)] if verdict.owner else []
    rows += [] if public else _details(verdict)
    output.panel(TITLES[verdict.status], rows, good=verdict.verified)


def _matched(verdict: "Verdict", *, public: bool) -> str:
    bits, told = f"{verdict.matched} of {verdict.bits} bits", verdict.alignment
    if told is None or told.enough:
        return f"{bits} ({output.percent(verdict.rate)})"
    if verdict.bits_counted:
        return f"{bits} ({output.percent(verdict.rate)}), read by position"
    share = f"only {output.percent(told.found)} of the marked weights were"
    share = "too little of the marked weights was" if public else share
    return f"{bits}, not counted: {share} found{_least(told)}"


def _looked_at(verdict: "Verdict") -> str:
    if verdict.trigger_digest:
        return "what this layer makes of the triggers"
    return f"{output.percent(verdict.coverage.share)} of the model's weights"


def _details(verdict: "Verdict") -> list[tuple[str, str]]:
    """What belongs to the owner's and the judge's view only."""
    names = [tensor.stored_name for tensor in verdict.tensors]
    comma = "; " if any(", " in name for name in names) else ", "  # such as "x.weight, transposed"
    shown = comma.join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    rows = [
        ("tensors", (shown or "none") + _how(verdict)),
        ("looked at", _looked_at(verdict)),
        (
            "margins",
            f"smallest {verdict.smallest_margin:.3g}, median {verdict.median_margin:.3g}"
            + (" (in units of unmarked logits)" if verdict.margin_unit == "sigma_z" else ""),
        ),
    ]
    rows[:0] = _readings(verdict)
    if verdict.unanchored:
        rows.insert(0, ("anchor", "none: this mark is read by position only"))
    if verdict.parameters.scheme != "neuralmark":
        rows.insert(0, ("scheme", verdict.parameters.scheme))
    if verdict.certified_radius is not None:
        relative, radius = verdict.certified_radius_relative, f"{verdict.certified_radius:.3g}"
        if relative is not None:
            radius = f"{output.percent_at_least(relative)} of the weights' norm"
        said = "no smaller change undoes this verdict, even by someone who knows the key"
        rows.append(("certified radius", f"{radius}: {said}"))
    rows += [(f"sha256 {name}", digest) for name, digest in (verdict.sha256 or {}).items()]
    rows += [(f"version of {name}", pin) for name, pin in list(verdict.pins.items())[:MOST_NOTES]]
    rows.append(("reason", verdict.reason))
    return rows
