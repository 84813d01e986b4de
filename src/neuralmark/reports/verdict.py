"""The page of a verdict: what was found, how sure it is, and all that influenced it."""

import math
from pathlib import PurePath

from neuralmark import schemes
from neuralmark.core.bound import SECURITY_BITS
from neuralmark.core.key import Parameters
from neuralmark.errors import RecordError
from neuralmark.records import (
    LEAST_FOUND,
    NOT_VERIFIED,
    UNPROVABLE,
    UNPROVEN,
    UNREADABLE,
    VERIFIED,
    PublicVerdict,
    TensorRead,
    Verdict,
)
from neuralmark.reports.alignment import alignment_section
from neuralmark.reports.render import svg
from neuralmark.reports.render.page import (
    chance_in_words,
    code,
    facts,
    figure,
    histogram_table,
    legend,
    number,
    page,
    paragraphs,
    power_of_two,
    section,
    table,
    text,
    tiles,
    with_powers,
)

_LEAST = power_of_two(-SECURITY_BITS)

_HEADLINES = {
    VERIFIED: ("Verified", 0, "M19 33l9 9 18-20"),
    NOT_VERIFIED: ("Not verified", 1, "M22 22l20 20M42 22l-20 20"),
    UNPROVEN: ("Matches, but unproven", 4, "M20 26h24M20 38h24"),
    UNPROVABLE: ("Cannot be proven with so few bits", 4, "M20 32h24"),
    UNREADABLE: ("Could not be read", 4, "M20 32h24"),
}
_NO_OPPOSITE = (
    "That does not prove the opposite: it does not say who made the model, only that this key"
    " proves nothing here."
)
_TOO_LITTLE = (
    "So little of the marked weights was found that the bits are not counted, whatever their"
    f" number: at least {100 * LEAST_FOUND:g}\u00a0% of these weights is asked for."
)
_NO_CHANCE = (
    "No <strong>chance of error</strong> is claimed: the bits are not counted, as too little of the"
    " marked weights was found."
)
_UNCOUNTED = {NOT_VERIFIED: f"{_TOO_LITTLE} {_NO_OPPOSITE}"}
"""Instead of the usual meaning, where bits were read of too few weights to count."""
_MEANINGS = {
    VERIFIED: "The mark of this key is in this model. The chance that a model made without"
    f" the key would match so well is below {_LEAST}.",
    NOT_VERIFIED: f"The match falls short of what a proof needs. {_NO_OPPOSITE}",
    UNPROVEN: "Agreement with a key of this kind proves nothing: this page records that the bits"
    " agree, and says nothing about who owns the model.",
    UNPROVABLE: "A key with so few bits agrees with foreign models by luck more easily than a proof"
    " allows. No result with it, not even a full match, can count as one.",
    UNREADABLE: "Weights in which the mark would be could not be read. This page says nothing for"
    " or against the mark being there: have the model brought into a form that can be read.",
}
_WORDS = {
    "names": ("by name", "each tensor stands in the model under the name the key was derived for"),
    "prefix": (
        "by name, under a common prefix",
        "all names have one prefix more, or one less, than those the key was derived for",
    ),
    "anchor": (
        "by likeness to the anchor",
        "wherever they went; names, order and layout were not relied on",
    ),
    "search": ("by search", "no place was named, so the places where keys are put were looked at"),
    "stored": ("as stored", ""),
    "rows": ("row by row", "every output row was divided by its size, which undoes folded norms"),
    "transposed": ("transposed", "rows and columns were exchanged before reading"),
    "unanchored": (
        "none",
        "this mark is read by position only: where channels were moved about, it is not found",
    ),
    "native": ("native", "derived from a 256-bit secret, so nothing in it could be chosen to fit"),
    "raw": ("raw", "a matrix made elsewhere: it can agree with a model, but it proves nothing"),
}
_ABSENT = (
    "The watermark, the bits read from the model, the readings (logits) themselves, the key matrix"
    " and the positions of the weights that carry the mark are not on this page, and cannot be"
    " worked out from it. The key remains secret; whoever holds it can repeat this verification"
    " on the model with the digests above and must arrive at the same numbers."
)


_LEFT_OUT = (
    "This is the public view: counts, bound and status. How clearly each bit was read, the tensors"
    " and their digests belong to the owner and the judge. Nothing of the key is on"
    " this page."
)


def verdict_page(verdict: Verdict | PublicVerdict, *, public: bool = False) -> str:
    """One self-contained HTML page, fit to be printed and signed.

    The public page has counts, bound and status only.
    """
    if verdict.status not in _HEADLINES:
        raise RecordError(f"no such verdict: {verdict.status!r}")
    evidence: tuple[str, ...] = ()
    if isinstance(verdict, Verdict):
        _check_counts(verdict)
        evidence = () if public else _evidence(verdict)
    public = not evidence
    counted = _counted(verdict, public=public)
    headline = _HEADLINES[verdict.status][0]
    name = PurePath(verdict.model).name or verdict.model
    parts = (
        '<p class="kicker"><span>Verdict on the ownership of a neural network</span>'
        f"<span>NeuralMark {text(verdict.version)}</span></p>",
        _banner(verdict, _reason(verdict, public=public), counted=counted),
        _finding(verdict, name if public else verdict.model, counted=counted),
        *(evidence or _files(verdict)),
        section("What this page does not contain", paragraphs(_LEFT_OUT if public else _ABSENT)),
        _signature(),
    )
    return page(f"{headline}: {name} (NeuralMark verdict)", "\n".join(parts))


def _reason(verdict: Verdict | PublicVerdict, *, public: bool) -> str | None:
    return None if public or isinstance(verdict, PublicVerdict) else verdict.reason


def _counted(verdict: Verdict | PublicVerdict, *, public: bool) -> bool:
    """Whether the bits count; in the public view only status and counts tell."""
    if isinstance(verdict, Verdict) and not public:
        return verdict.bits_counted
    reached = verdict.boundary is not None and verdict.matched >= verdict.boundary
    return not reached or verdict.status not in (NOT_VERIFIED, UNREADABLE)


def _evidence(verdict: Verdict) -> tuple[str, ...]:
    """What belongs to the owner's and the judge's view only."""
    went = alignment_section(verdict)
    if not verdict.tensors:
        return went, _read(verdict), _key(verdict)
    read = _map(verdict), _margins(verdict), _radius(verdict), _read(verdict), _key(verdict)
    return went, *read


def _files(verdict: Verdict | PublicVerdict) -> tuple[str, ...]:
    """For the public page: which files, where they were digested whole, and when."""
    known = verdict.sha256 if isinstance(verdict, Verdict) else verdict.files
    rows = [(code(name), code(digest)) for name, digest in (known or {}).items()]
    if not rows:
        return ()
    inner = table(("File", "Digest (sha256), as sha256sum prints it"), rows, name="Files")
    if verdict.date:
        inner += paragraphs(f"Read on {text(verdict.date)}, by the clock of the machine.")
    return (section("What was read", inner),)


def _check_counts(verdict: Verdict) -> None:
    """Refuse a verdict whose histogram is not of its count."""
    bars = verdict.margin_histogram
    counts = sum(bars.matched), sum(bars.missed)
    if verdict.tensors and counts != (verdict.matched, verdict.bits - verdict.matched):
        raise RecordError("the verdict contradicts itself: its margins are not of its count")


def _banner(verdict: Verdict | PublicVerdict, reason: str | None, *, counted: bool) -> str:
    headline, colour, glyph = _HEADLINES[verdict.status]
    icon = (
        '<svg viewBox="0 0 64 64" aria-hidden="true"><circle class="stroke" cx="32" cy="32" r="28"'
        f' stroke-width="5"/><path class="stroke" stroke-width="6" d="{glyph}"/></svg>'
    )
    lead = ""
    if reason is not None:
        sentence = with_powers(reason[:1].upper() + reason[1:])
        lead = f'<p class="lead">{sentence.rstrip(".")}.</p>\n'
    meanings = _MEANINGS if counted else _MEANINGS | _UNCOUNTED
    said = f"{lead}<p>{meanings[verdict.status]}</p>"
    return f'<header class="banner c{colour}">{icon}<div><h1>{headline}</h1>\n{said}</div></header>'


def _finding(verdict: Verdict | PublicVerdict, label: str, *, counted: bool) -> str:
    bits, boundary, log2 = verdict.bits, verdict.boundary, verdict.bound_log2
    percent = math.floor(1000 * verdict.rate + 1e-9) / 10
    needed = f"{boundary:,}" if boundary is not None else "none"
    chance = power_of_two(log2), chance_in_words(log2)
    if not verdict.bound_holds:
        chance = "unknown", "with a key of this kind"
    if not counted:
        chance = "none", "is claimed: the bits are not counted"
    figures = (
        ("Matched bits", f"{verdict.matched:,}", f"of {bits:,} (rate {percent:g}\u00a0%)"),
        ("Boundary", needed, "bits needed" if boundary is not None else "no number would do"),
        ("Chance of error", *chance),
        ("Trials", f"{verdict.trials:,}", "one look" if verdict.trials == 1 else "ways of looking"),
    )
    marks = [svg.PlotMark(bits / 2, f"by luck: about {number(bits / 2)}")]
    if boundary is not None:
        marks.append(svg.PlotMark(boundary, f"needed: {boundary:,}"))
    not_counted = "" if counted else ", not counted"
    found = svg.PlotMark(verdict.matched, f"found: {verdict.matched:,}{not_counted}")
    said = f"{verdict.matched} of {bits} bits match{not_counted}; needed: {needed}"
    said += f"; luck gives {bits / 2:g}"
    drawn = svg.meter(found, bits, marks, _HEADLINES[verdict.status][1], said)
    words = paragraphs(_NO_CHANCE, _boundary(verdict))
    if counted:
        words = paragraphs(_chance(verdict), _boundary(verdict), _trials(verdict))
    model = paragraphs(f"Model: {code(label)}<br>Key: {code(verdict.fingerprint)}")
    return section("The finding", model + tiles(figures) + f"<figure>{drawn}</figure>" + words)


def _chance(verdict: Verdict | PublicVerdict) -> str:
    log2 = verdict.bound_log2
    coins = math.floor(-log2)
    luck = f", no likelier than calling {coins:,} coin tosses in a row" if coins > 7 else ""
    said = (
        "The <strong>chance of error</strong> is the chance that a model made without this key"
        f" matches at least this well by luck: at most {power_of_two(log2)},"
        f" {chance_in_words(log2)}{luck}."
    )
    if not verdict.bound_holds:
        said += (
            " That is the number for a key derived from a secret. For this key, a matrix made"
            " elsewhere, <strong>it does not hold</strong> and must not be quoted."
        )
    return said


def _boundary(verdict: Verdict | PublicVerdict) -> str:
    if verdict.boundary is None:
        return (
            f"There is no <strong>boundary</strong>: a full match of {verdict.bits:,} bits would"
            f" still have a chance of {power_of_two(verdict.full_match_bound_log2)}, and {_LEAST}"
            " is required."
        )
    return (
        "The <strong>boundary</strong> is the smallest number of matching bits for which the chance"
        f" of error is below {_LEAST}. It follows from the number of bits and of trials alone;"
        " nobody can set it."
    )


def _trials(verdict: Verdict | PublicVerdict) -> str:
    again = " Ways tried in other runs are not known here: multiply the chance by their number."
    if not verdict.trials:
        return "<strong>Trials</strong>: none; there was nothing to look at."
    if verdict.trials == 1:
        return f"<strong>Trials</strong>: the model was looked at in one way only.{again}"
    return (
        f"<strong>Trials</strong>: there were {verdict.trials:,} ways of looking (lists of tensors,"
        " ways of mapping and turning them, keys). The chance above is already multiplied by that"
        f" number and the boundary raised for it, so that searching gains nothing.{again}"
    )


def _map(verdict: Verdict) -> str:
    missed = verdict.bits - verdict.matched
    hits = svg.swatch(0), f"{verdict.matched:,} matching"
    misses = svg.swatch(1, small=True), f"{missed:,} not matching"
    said = f"Map of {verdict.bits} bits: {verdict.matched} match, {missed} do not"
    caption = (
        "One cell for each bit of the watermark: first those that match, then those that do not."
        " Which bits of the key these are is not said."
    )
    drawn = svg.grid([i < verdict.matched for i in range(verdict.bits)], said)
    return section("Matches", figure(legend((hits, misses)) + drawn, caption))


def _margins(verdict: Verdict) -> str:
    bars = verdict.margin_histogram
    stacks = (("matching", bars.matched), ("not matching", bars.missed))
    smallest, median = (_rounded(m) for m in (verdict.smallest_margin, verdict.median_margin))
    said = (
        f"Histogram of the margins of {verdict.bits} bits: smallest {smallest}, median {median};"
        " bits left of zero do not match"
    )
    linear = verdict.margin_unit == "sigma_z"
    unit = "σz" if linear else "units of the read-out"
    labels = (f"margin, in {unit}", "bits")
    drawn = svg.histogram(bars.edges, stacks, labels, said, "match: right of this line")
    scatter = (
        " The unit σz is the standard deviation of such readings in weights like these without a"
        " mark: there, half the bits lie left of zero and nearly all within ±3."
    )
    caption = (
        "The margin of a bit is how far its reading lies on the right side of zero."
        f"{scatter if linear else ''} Smallest margin {smallest} {unit}, median {median} {unit}."
    )
    keys = legend(((svg.swatch(0), "matching"), (svg.swatch(1), "not matching")))
    counts = histogram_table(bars.edges, stacks, f"margin ({unit})")
    inner = figure(keys + drawn, caption, wide=True) + counts
    return section("How clearly each bit was read", inner)


def _radius(verdict: Verdict) -> str:
    radius, relative = verdict.certified_radius, verdict.certified_radius_relative
    words = ["A radius is certified only where a mark is verified."]
    if verdict.verified and verdict.mapping == "anchor":
        words = [
            "It is not computed for weights that were put back in order: a change of the model may"
            " also change how it is put in order, and the margins say nothing of that."
        ]
    elif verdict.verified:
        words = ["It is not computed for weights that are read in this way."]
    if radius is not None:
        share = f", that is {_down(100 * relative)} % of their norm," if relative else ""
        words = [
            "It is proven that no change of the weights read with a norm smaller than"
            f" <strong>{_down(radius)}</strong>{share} can undo this verdict.",
            "This holds even against someone who knows the key, and is therefore far smaller than"
            " what strangers, who do not know it, would need.",
        ]
    return section("Certified radius", paragraphs(*words))


def _read(verdict: Verdict) -> str:
    digest = verdict.checkpoint_digest
    tensors = [(code(t.name), _stored(t), text(t.dtype), _shape(t.shape)) for t in verdict.tensors]
    digests = [("tensor", code(name), code(value)) for name, value in digest.tensors.items()]
    digests += [("file", code(name), code(value)) for name, value in (digest.files or {}).items()]
    weights = sum(math.prod(tensor.shape) for tensor in verdict.tensors)
    described = f"{digest.algorithm} of the names, types and shapes of all tensors"
    inner = facts(
        (
            ("Tensors found", *_explained(verdict.mapping)),
            ("Orientation", *_explained(verdict.orientation)),
            ("Scaling", *_explained(verdict.scaling)),
            *([("Anchor", *_explained("unanchored"))] if verdict.unanchored else []),
            (
                "Weights read",
                f"{weights:,}",
                "which of them carry the mark is known to the key alone",
            ),
            ("Looked at", *_looked_at(verdict)),
            ("Digest of the headers", code(digest.headers), text(described)),
            *_given(verdict),
        )
    )
    inner += table(
        ("Name the key was derived for", "Name in the model", "Type", "Shape"),
        tensors,
        name="Tensors read",
    )
    if verdict.missing:
        gaps = [(code(gap.name), f"{gap.weights:,}", text(gap.why)) for gap in verdict.missing]
        stands = "the anchor stands" if verdict.mapping == "anchor" else "zeros stand"
        inner += paragraphs(f"Nothing was read for these tensors; {stands} for them.")
        inner += table(("Name the key was derived for", "Weights", "Why"), gaps, name="Not read")
    inner += table(("Of", "Name", f"Digest ({digest.algorithm})"), digests, name="Digests")
    return section("What was read", inner)


def _looked_at(verdict: Verdict) -> tuple[str, str]:
    seen = verdict.coverage
    if verdict.trigger_digest:
        return "activations", text("what one layer of the live model makes of the triggers")
    said = f"{seen.looked_at:,} of the model's {seen.in_model:,} weights, in all ways of looking"
    if seen.unreadable:
        said += f"; {seen.unreadable:,} could not be read: {seen.why}"
    return f"{math.floor(1000 * seen.share) / 10:g}\u00a0%", text(said)


def _given(verdict: Verdict) -> list[tuple[str, str, str]]:
    """When, for whom, by which claim and with what it was given, where that is known."""
    used = ", ".join(f"{name} {version}" for name, version in verdict.versions.items())
    pins = "; ".join(f"{name}: {pin}" for name, pin in verdict.pins.items())
    rows = (
        ("Owner", text(verdict.owner or ""), "as stated by who asked for this page, not checked"),
        ("Date", text(verdict.date or ""), "by the clock of the machine that verified"),
        ("Digest of the claim", code(verdict.claim_digest or ""), "sha256 of its file"),
        ("Read at", text(pins), "the versions behind the URL that all reading was held to"),
        ("Computed with", text(used), ""),
    )
    known = (verdict.owner, verdict.date, verdict.claim_digest, pins, used)
    return [row for row, value in zip(rows, known, strict=True) if value]


def _key(verdict: Verdict) -> str:
    p = verdict.parameters
    rows = (
        ("Fingerprint", code(verdict.fingerprint), "the public name; it tells nothing of the key"),
        ("Kind", *_explained(verdict.key_kind)),
        ("Scheme", text(p.scheme), ""),
        ("Bits", f"{p.bits:,}", "length of the watermark"),
        *_pools(p),
        *((text(name), text(value), "a setting of this scheme") for name, value in p.own),
        ("Theory", text(schemes.get(p.scheme).theory), "what a match by chance amounts to"),
        ("Library", f"NeuralMark {text(verdict.version)}", "the version that judged"),
    )
    return section("Key and parameters", facts(rows))


def _pools(p: Parameters) -> tuple[tuple[str, str, str], ...]:
    if not p.pools:
        return ()
    return (
        ("Pools", f"{p.pools:,}", "averages of weights from which the bits are read"),
        ("Rounds", f"{p.rounds:,}", "each halves, by the key, the weights that may carry the mark"),
        ("Pooling", text(p.pooling), "how the carrying weights are dealt out to the pools"),
    )


def _signature() -> str:
    lines = (
        '<div class="sign"><div>Name</div><div>Place and date</div>'
        '<div class="whole">Signature</div></div>'
    )
    said = "I have read this page and confirm that it is the result of the verification described."
    return section("Signature", paragraphs(said) + lines, name="closing")


def _explained(word: str) -> tuple[str, str]:
    label, why = _WORDS.get(word, (word, ""))
    return text(label), text(why)


def _rounded(value: float) -> str:
    return number(float(f"{value:.3g}"))


def _down(value: float) -> str:
    """Three digits of a positive number, never more than it."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2) if value > 0 else 1.0
    return number(float(f"{math.floor(value / unit) * unit:.3g}"))


def _stored(tensor: TensorRead) -> str:
    return "the same" if tensor.stored_name == tensor.name else code(tensor.stored_name)


def _shape(shape: tuple[int, ...]) -> str:
    return text(" × ".join(map(str, shape))) or "a single number"
