"""`neuralmark trigger`: draw the inputs at which a live model is read; suspect a model by them."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.keys.key import Key
    from neuralmark.storage.places import Place
    from neuralmark.training.suspecting import Suspicion
    from neuralmark.triggers.triggers import Triggers

WARNING = "triggers are as secret as the key: whoever has them can train the mark away"
NO_VERDICT = (
    "a suspicion, no verdict: labels prove nothing of where weights came from; ask for the weights,"
    " and verify reads the mark in them"
)


@click.group("trigger", short_help="Draw triggers for a key, and look at them.")
def command() -> None:
    """Triggers: the inputs at which schemes that read activations look at a live model.

    Their digest goes into everything that the mark is derived from. They are sealed under the key,
    and are for the owner and a judge only. Keys of DeepIPR's third version draw labels for them,
    which any network can be asked for (suspect).
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

    _refuse_inputs(out, data, (key_file, passphrase_file))
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


@command.command("suspect", short_help="Ask MODEL for the labels that the key drew for triggers.")
@click.argument("model", type=options.MODEL)
@options.key_options
@click.option("--triggers", required=True, type=options.PATH, help="The triggers, sealed.")
@click.option(
    "--code",
    required=True,
    metavar="FILE.py:NAME",
    help="Load MODEL into the network that this class or function makes, and run it. The code is"
    " run: give only your own.",
)
@click.option(
    "--classes", required=True, type=int, metavar="N", help="How many classes MODEL tells apart."
)
@click.option(
    "--claim",
    "claim_file",
    type=options.PATH,
    help="Claim that says which layers take the key's passports; default: sought beside MODEL.",
)
@click.option(
    "--tensor",
    "tensors",
    multiple=True,
    metavar="NAME",
    help="Instead of a claim: such a layer in MODEL (may be repeated).",
)
@options.remote_options
@options.json_option
def suspect(
    model: "Place",
    key_file: Path,
    passphrase_file: Path | None,
    triggers: Path,
    code: str,
    classes: int,
    claim_file: Path | None,
    tensors: tuple[str, ...],
    as_json: bool,
) -> None:
    """Ask MODEL, from outside, for the labels that the key drew for the triggers.

    For keys of DeepIPR's third version, whose owner trained the network on these labels
    (docs/schemes.md). Of MODEL only its answers are looked at; the labels are bound to the layers
    that take the key's passports, which the claim of the marked network names.

    It prints how many labels match and the chance of as many by luck. That is a suspicion, no
    verdict: verify reads the mark in the weights. Exit code 0 whatever matches.
    """
    from neuralmark.training.coded import built_model
    from neuralmark.training.suspecting import suspicion_of

    if claim_file and tensors:
        raise click.UsageError("--claim names the tensors already: give --claim or --tensor")
    key = options.load_key(key_file, passphrase_file)
    network = built_model(code, model, live_only=True)
    named = list(tensors) or None
    found = suspicion_of(network, key, triggers, classes, claim=claim_file, tensors=named)
    _show_suspicion(found, str(model), key, as_json=as_json)


def _show_suspicion(found: "Suspicion", model: str, key: "Key", *, as_json: bool) -> None:
    if as_json:
        told = {"model": model, "fingerprint": key.fingerprint, "matched": found.matched}
        told |= {"triggers": found.triggers, "classes": found.classes, "rate": found.rate}
        output.as_json(told | {"luck_log2": found.luck_log2, "note": NO_VERDICT})
        return
    chance = output.power_of_two(found.luck_log2)
    share = output.percent(found.rate)
    rows = [
        ("model", model),
        ("key", key.fingerprint),
        ("matched", f"{found.matched} of {found.triggers} triggers ({share})"),
        ("chance", f"{chance} for as many by luck, among {found.classes} classes"),
        ("worth", NO_VERDICT),
    ]
    output.panel("Suspicion", rows)


def _refuse_inputs(out: Path, data: Path, secrets: "tuple[Path | None, ...]") -> None:
    """Triggers never replace what they are made of, and do not lie among it."""
    from neuralmark.errors import OutputError
    from neuralmark.storage import files

    with files.writing(out):
        for given in (data, *secrets):
            if given is not None and out.exists() and given.exists() and out.samefile(given):
                raise OutputError(f"{out} is an input itself: choose another name")
        if data.is_dir() and out.resolve().is_relative_to(data.resolve()):
            raise OutputError(f"{out} lies inside the input folder: choose a place outside of it")


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
