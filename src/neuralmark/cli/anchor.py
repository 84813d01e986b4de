"""`neuralmark anchor`: look into the coarse copy that a mark is bound to."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.anchors.anchor import Anchor

WARNING = (
    "an anchor is as secret as the key: with it, whoever has the marked model sees the mark; it is"
    " for you and a judge only"
)


@click.group("anchor", short_help="Look into the anchor of a mark.")
def command() -> None:
    """Look into anchors: coarse copies of what was marked, sealed under the key.

    An anchor is as secret as the key. It is for the owner and a judge only: never publish it.
    """


@command.command("show", short_help="Check an anchor, and say what it holds.")
@click.argument("file", type=options.PATH)
@options.key_options
@click.option("--all", "whole", is_flag=True, help="List every tensor, not only how many.")
@options.json_option
def show(
    file: Path, key_file: Path, passphrase_file: Path | None, whole: bool, as_json: bool
) -> None:
    """Open the anchor in FILE, check all of it, and say what it holds (no weights are shown)."""
    from neuralmark.anchors.sealed import load_anchor

    key = options.load_key(key_file, passphrase_file)
    anchor = load_anchor(file, key)
    output.note(f"keep this to yourself: {WARNING}")
    told = _told(anchor, file)
    if as_json:
        output.as_json({"file": str(file), "fingerprint": key.fingerprint, **told})
        return
    rows = [
        ("key", key.fingerprint),
        ("digest", anchor.digest.hex()),
        ("size", f"{told['bytes']:,} bytes, {anchor.bits} bits per weight"),
        ("model", _model(anchor)),
        ("aligner", f"version {anchor.skeleton.aligner}"),
    ]
    if not whole:
        rows += [(role, _counted(told["entries"], role)) for role in ("marked", "partner")]
        rows.append(("tensors", "--all lists them, --json has all that is known of them"))
    output.panel(f"Anchor {file}", rows)
    if not whole:
        return
    head = ["tensor", "role", "shape", "kept", "bytes"]
    cells = [
        [e["name"], e["role"], "x".join(map(str, e["shape"])), e["kept"], f"{e['bytes']:,}"]
        for e in told["entries"]
    ]
    output.table(head, cells, numeric=(4,))


def _counted(entries: list[dict[str, Any]], role: str) -> str:
    """How many tensors have a role, which, and how large their copies are."""
    mine = [entry for entry in entries if entry["role"] == role]
    if not mine:
        return "none"
    size = sum(entry["bytes"] for entry in mine)
    span = mine[0]["name"] + (f" to {mine[-1]['name']}" if len(mine) > 1 else "")
    some = sum(entry["rows"] is not None for entry in mine)
    part = f", {some} of them in part" if some else ""
    return f"{len(mine)} tensor{'s' * (len(mine) > 1)} ({span}), {size:,} bytes{part}"


def _model(anchor: "Anchor") -> str:
    skeleton = anchor.skeleton
    family = "no known family" if skeleton.structure is None else skeleton.structure.family
    heads = f"{skeleton.heads} heads" if skeleton.heads else "heads not known"
    return f"{family}, {len(skeleton.shapes)} tensors, {heads}"


def _told(anchor: "Anchor", file: Path) -> dict[str, Any]:
    """What an anchor holds, without its values."""
    from neuralmark.anchors.payload import PayloadLayout

    skeleton = anchor.skeleton
    entries = [
        {
            "name": entry.name,
            "role": entry.role,
            "shape": list(entry.shape),
            "rows": entry.rows,
            "kept": "whole" if entry.rows is None else f"{entry.rows} rows",
            "weights": math.prod(entry.kept_shape),
            "bytes": PayloadLayout(entry, anchor.bits).size,
        }
        for entry in anchor.entries
    ]
    return {
        "digest": anchor.digest.hex(),
        "bits": anchor.bits,
        "bytes": file.stat().st_size,
        "aligner": skeleton.aligner,
        "family": None if skeleton.structure is None else skeleton.structure.family,
        "notes": [] if skeleton.structure is None else list(skeleton.structure.notes),
        "heads": skeleton.heads,
        "tensors": len(skeleton.shapes),
        "tied": [list(pair) for pair in skeleton.tied],
        "entries": entries,
        "secret": WARNING,
    }
