"""`neuralmark trigger`: draw the inputs at which a live model is read, and look at them."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.triggers.triggers import Triggers

WARNING = "triggers are as secret as the key: whoever has them can train the mark away"


@click.group("trigger", short_help="Draw triggers for a key, and look at them.")
def command() -> None:
    """Triggers: the inputs at which schemes that read activations look at a live model.

    Their digest goes into everything that the mark is derived from. They are sealed under the key,
    and are for the owner and a judge only.
    """


@command.command("new", short_help="Draw triggers from DATA, and seal them under the key.")
@click.argument("data", type=options.PATH)
@click.option("-o", "--out", required=True, type=options.PATH, help="Where to write them.")
@options.key_options
@click.option(
    "--count",
    type=int,
    metavar="N",
    help="How many: of each class where the scheme marks classes, else in all; default: as many as"
    " is usual for the scheme.",
)
@click.option("--classes", metavar="LIST", help="Labels to draw from, as in 0,3,7; default: all.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@options.json_option
def new(
    data: Path,
    out: Path,
    key_file: Path,
    passphrase_file: Path | None,
    count: int | None,
    classes: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Draw triggers from DATA for the key, and write them sealed.

    The key is one of a scheme that reads activations (16 of each class for deepsigns, 32 in all for
    lim, up to 15 for featuremap), or of DeepIPR's third version (40).

    DATA is a .npz or safetensors file with an array inputs (what the model takes) and, for schemes
    that mark classes, an array labels; or a folder of images, with a folder for each class. The
    same key draws the same triggers of the same data.
    """
    from neuralmark.triggers.triggers import Triggers

    wanted = None if classes is None else _labels(classes)
    key = options.load_key(key_file, passphrase_file)
    drawn = Triggers.draw(data, key, count=count, classes=wanted)
    drawn.save(out, key, overwrite=force)
    output.note(f"keep {out} to yourself: {WARNING}")
    _show(drawn, out, key.fingerprint, as_json=as_json)


@command.command("show", short_help="Open a file of triggers, and say what it holds.")
@click.argument("file", type=options.PATH)
@options.key_options
@options.json_option
def show(file: Path, key_file: Path, passphrase_file: Path | None, as_json: bool) -> None:
    """Open the triggers in FILE, check all of it, and say what it holds (no input is shown)."""
    from neuralmark.triggers.triggers import Triggers

    key = options.load_key(key_file, passphrase_file)
    _show(Triggers.load(file, key), file, key.fingerprint, as_json=as_json)


def _labels(text: str) -> list[int]:
    try:
        return sorted({int(label) for label in text.split(",")})
    except ValueError:
        raise click.BadParameter("give labels as whole numbers, as in 0,3,7") from None


def _show(drawn: "Triggers", file: Path, fingerprint: str, *, as_json: bool) -> None:
    counts = Counter(int(label) for label in drawn.labels)
    told: dict[str, Any] = {
        "file": str(file),
        "fingerprint": fingerprint,
        "digest": drawn.digest.hex(),
        "count": len(drawn),
        "shape": list(drawn.inputs.shape[1:]),
        "dtype": str(drawn.inputs.dtype),
        "classes": {str(label): counts[label] for label in sorted(counts) if label >= 0},
    }
    if as_json:
        output.as_json(told)
        return
    classes = ", ".join(f"{label} ({count})" for label, count in told["classes"].items())
    rows = [
        ("key", fingerprint),
        ("digest", told["digest"]),
        ("triggers", f"{len(drawn)} of shape {tuple(told['shape'])}, {told['dtype']}"),
        ("classes", classes or "no labels"),
    ]
    output.panel(f"Triggers {file}", rows)
