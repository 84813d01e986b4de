"""`neuralmark key`: make, show, import and protect keys."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.core.key import Filter, Parameters, Pooling
    from neuralmark.keys.key import Key

PLAIN_WARNING = "stored without a passphrase: whoever reads this file can claim with it"

_new_passphrase_option = click.option(
    "--new-passphrase-file",
    type=options.PATH,
    help="File whose first line is the new passphrase.",
)


@click.group("key")
def command() -> None:
    """Make, show, import and protect keys."""


@command.command("new")
@click.argument("file", type=options.PATH)
@click.option("--owner", default="", help="Owner's name, bound into every mark of this key.")
@click.option("--content", default="", help="Free text, bound into every mark of this key.")
@click.option("--bits", type=int, help="Length of the watermark (default 256).")
@click.option("--pools", type=int, help="Number of pools (default: 512, or twice the bits).")
@click.option("--rounds", type=int, help="Rounds of the filter (default 1; tiled: 4).")
@click.option(
    "--filter",
    "chosen",
    type=click.Choice(["stream", "tiled", "private", "none"]),
    help="How weights are chosen: stream (default), or as published: tiled, which shows itself.",
)
@click.option(
    "--for",
    "model",
    type=options.PATH,
    help="Choose the parameters so that this model has enough carriers.",
)
@click.option(
    "--scheme",
    default="neuralmark",
    show_default=True,
    help="Watermarking scheme; 'neuralmark schemes' names them.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting that only this scheme has (may be repeated), e.g. votes=11.",
)
@click.option("--no-passphrase", is_flag=True, help="Store the secret plainly.")
@options.passphrase_file_option
@options.json_option
def new(
    file: Path,
    owner: str,
    content: str,
    bits: int | None,
    pools: int | None,
    rounds: int | None,
    chosen: "Filter | None",
    model: Path | None,
    scheme: str,
    settings: tuple[str, ...],
    no_passphrase: bool,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Draw a new 256-bit secret and write it to FILE."""
    from neuralmark.core.imprint import doubts
    from neuralmark.keys.key import Key

    _refuse_existing(file)
    if scheme == "neuralmark" and not settings:
        parameters, why = _parameters((bits, pools, rounds), chosen or "stream", model)
    else:
        parameters = _of_scheme(scheme, (bits, pools, rounds), chosen, settings, model)
        why = ""
    for warning in doubts(parameters):
        output.note(f"warning: {warning}")
    key = Key.new(parameters, owner=owner, content=content)
    _save(key, file, passphrase_file, no_passphrase)
    if why and not as_json:
        output.note(f"parameters chosen for {model}: {why}")
    _report(key, file, as_json, {"why": why} if why else {})


@command.command("show", short_help="Show the public facts of a key.")
@click.argument("file", type=options.PATH)
@options.passphrase_file_option
@options.json_option
def show(file: Path, passphrase_file: Path | None, as_json: bool) -> None:
    """Show the public facts of a key: parameters, content, fingerprint, commitment."""
    _report(options.load_key(file, passphrase_file), file, as_json, {})


@command.command("fingerprint")
@click.argument("file", type=options.PATH)
@options.json_option
def fingerprint(file: Path, as_json: bool) -> None:
    """Print the public name of a key; needs no passphrase."""
    from neuralmark.keys.sealing import read_container

    container = read_container(file)
    if as_json:
        output.as_json({name: container[name] for name in ("fingerprint", "commitment")})
    else:
        click.echo(output.printable(container["fingerprint"]))


@command.command("import", short_help="Wrap a key matrix made elsewhere as a raw key.")
@click.argument("matrix", type=options.PATH)
@click.option("--rounds", type=int, help="Rounds of the filter it was used with.")
@click.option(
    "--pooling",
    type=click.Choice(["strided", "contiguous"]),
    default="strided",
    show_default=True,
    help="How its carriers were pooled.",
)
@click.option(
    "--filter",
    "chosen",
    type=click.Choice(["tiled", "stream", "private", "none"]),
    help="How its carriers were chosen (default: tiled, or as is usual for the scheme).",
)
@click.option(
    "--scheme",
    default="neuralmark",
    show_default=True,
    help="Whose matrix it is; 'neuralmark schemes' names them.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting that only this scheme has (may be repeated), e.g. beta=10.",
)
@click.option(
    "-o",
    "--output",
    "file",
    type=options.PATH,
    required=True,
    help="Key file to write.",
)
@click.option("--no-passphrase", is_flag=True, help="Store the matrix plainly.")
@options.passphrase_file_option
@options.json_option
def import_(
    matrix: Path,
    rounds: int | None,
    pooling: "Pooling",
    chosen: "Filter | None",
    scheme: str,
    settings: tuple[str, ...],
    file: Path,
    no_passphrase: bool,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Wrap a key matrix made elsewhere (arrays K, optional content and bits) as a raw key.

    Keys of schemes that select single weights need the array positions too. What a raw key matches
    is never called verified: a matrix can be fitted to a model.
    """
    from neuralmark.marking.matrices import import_key

    _refuse_existing(file)
    if scheme == "neuralmark" and rounds is None:
        raise click.MissingParameter(param_hint="'--rounds'", param_type="option")
    own = _own(settings)
    key = import_key(matrix, rounds=rounds, pooling=pooling, filter=chosen, scheme=scheme, own=own)
    _save(key, file, passphrase_file, no_passphrase)
    _report(key, file, as_json, {})


@command.command("passphrase")
@click.argument("file", type=options.PATH)
@_new_passphrase_option
@click.option("--no-passphrase", is_flag=True, help="Store the key plainly from now on.")
@options.passphrase_file_option
@options.json_option
def passphrase(
    file: Path,
    new_passphrase_file: Path | None,
    no_passphrase: bool,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Change the passphrase of a key file."""
    key = options.load_key(file, passphrase_file)
    if no_passphrase:
        key.save(file, None, overwrite=True)
        output.note(PLAIN_WARNING)
    else:
        key.save(file, _own_passphrase(new_passphrase_file), overwrite=True)
    output.note("the passphrase was changed")
    _report(key, file, as_json, {})


@command.command("sub", short_help="Write the key of one buyer or dispute, for a judge.")
@click.argument("file", type=options.PATH)
@click.option("--buyer", metavar="LABEL", help="The buyer whose mark is to be shown (--copies).")
@click.option("--dispute", metavar="LABEL", help="A name of your own, for a further mark.")
@click.option(
    "--copies",
    type=options.PATH,
    metavar="DIR",
    help="Folder of the copies, or its register: the claim of the buyer's mark is written, too.",
)
@click.option(
    "--with-anchor",
    is_flag=True,
    help="Write the anchor for the holder of this key as well. It shows all marks: for a judge,"
    " never for a buyer.",
)
@click.option("-o", "--output", "out", type=options.PATH, required=True, help="Key file to write.")
@_new_passphrase_option
@click.option("--no-passphrase", is_flag=True, help="Store the secret plainly.")
@options.passphrase_file_option
@options.json_option
def sub(
    file: Path,
    buyer: str | None,
    dispute: str | None,
    copies: Path | None,
    with_anchor: bool,
    out: Path,
    new_passphrase_file: Path | None,
    no_passphrase: bool,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Write the sub-key of one buyer or of one dispute, derived from the key in FILE.

    It verifies, and can remove, that one mark; it tells nothing of the key in FILE or of the other
    sub-keys. With --buyer, its claim goes beside it (OUT.claim.json). A dispute's key is a key like
    any other: embed a mark with it now, and show it to a judge one day. It gets a passphrase of its
    own, never that of FILE, which the judge is not to know: --new-passphrase-file, or a prompt.
    """
    from neuralmark.marking.showing import buyer_key, show_anchor

    if (buyer is None) == (dispute is None):
        raise click.UsageError("give either --buyer or --dispute")
    if (buyer is None) != (copies is None):
        raise click.UsageError("--buyer and --copies belong together")
    if with_anchor and copies is None:
        raise click.UsageError("--with-anchor writes the anchor of --copies: give both")
    _refuse_existing(out)
    key = options.load_key(file, passphrase_file)
    secret = None if no_passphrase else _own_passphrase(new_passphrase_file)
    if dispute is not None:
        made, claim = key.sub(dispute, "dispute"), None
    else:
        assert buyer is not None
        assert copies is not None
        made, claim = buyer_key(key, buyer, copies)
    beside: dict[str, Any] = {}
    if claim is not None:
        beside["claim_file"] = f"{out}.claim.json"
        claim.save(beside["claim_file"])
    if with_anchor:
        assert copies is not None
        beside["anchor_file"] = f"{out}.anchor"
        show_anchor(key, made, copies, Path(beside["anchor_file"]))
    made.save(out, secret)
    if secret is None:
        output.note(PLAIN_WARNING)
    _report(made, out, as_json, beside)
    if not as_json:
        for name in beside.values():
            output.note(f"{name} was written beside it")


def _refuse_existing(file: Path) -> None:
    from neuralmark.errors import OutputError

    if file.exists():
        raise OutputError(f"{file} exists already; a key file is never overwritten")


Sizes = tuple[int | None, int | None, int | None]
"""Bits, pools and rounds, where they are given."""


def _parameters(sizes: Sizes, chosen: "Filter", model: Path | None) -> "tuple[Parameters, str]":
    from neuralmark.core.key import Parameters
    from neuralmark.marking.placement import fitting_parameters

    if model is None:
        return Parameters.of(*sizes, chosen), ""
    return fitting_parameters(model, *sizes, chosen)


def _in_words(parameters: "Parameters") -> str:
    words = [f"{parameters.bits} bits"]
    if parameters.rounds:
        plural = "s" * (parameters.rounds != 1)
        pooled = parameters.pools > 0  # passports read every weight by itself
        words += [f"{parameters.pools} pools"] * pooled
        words += [f"{parameters.rounds} round{plural}", f"{parameters.filter} filter"]
        words += [f"{parameters.pooling} pooling"] * pooled
    return ", ".join(words + [f"{name} {value}" for name, value in parameters.own])


def _of_scheme(
    scheme: str,
    sizes: Sizes,
    chosen: "Filter | None",
    settings: tuple[str, ...],
    model: Path | None,
) -> "Parameters":
    from neuralmark import schemes

    if model is not None:
        raise click.UsageError("--for chooses parameters of the scheme neuralmark only")
    bits, pools, rounds = sizes
    own = _own(settings)
    return schemes.parameters(scheme, bits=bits, pools=pools, rounds=rounds, filter=chosen, own=own)


def _own(settings: tuple[str, ...]) -> dict[str, Any]:
    """The scheme's own settings, from NAME=VALUE."""
    own: dict[str, Any] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not sign:
            raise click.UsageError(f"--set takes NAME=VALUE, not {setting!r}")
        if name in own:
            raise click.UsageError(f"--set gives {name} twice: choose one value")
        own[name] = _number(value)
    return own


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _own_passphrase(new_passphrase_file: Path | None) -> str | None:
    """Another passphrase than the one that opens the key: from its file, or typed twice."""
    if new_passphrase_file is not None:
        return options.given_passphrase(new_passphrase_file)
    return options.typed_twice("use --new-passphrase-file")


def _save(key: "Key", file: Path, passphrase_file: Path | None, plain: bool) -> None:
    key.save(file, None if plain else options.new_passphrase(passphrase_file))
    if plain:
        output.note(PLAIN_WARNING)


def _report(key: "Key", file: Path, as_json: bool, more: dict[str, Any]) -> None:
    parameters = key.parameters
    if as_json:
        output.as_json(
            {
                "file": str(file),
                "kind": key.kind,
                "fingerprint": key.fingerprint,
                "commitment": key.commitment,
                "parameters": parameters.to_dict(),
                "content": key.content.decode("utf-8", "backslashreplace"),
                **more,
            }
        )
        return
    output.panel(
        f"Key {file}",
        [
            ("fingerprint", key.fingerprint),
            ("commitment", key.commitment),
            ("kind", key.kind),
            ("scheme", parameters.scheme),
            ("parameters", _in_words(parameters)),
            (
                "content",
                key.content.decode("utf-8", "backslashreplace").replace("\n", " | ") or "(none)",
            ),
        ],
    )
