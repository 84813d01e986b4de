"""`neuralmark claim`: rebuild a lost claim."""

from pathlib import Path

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output


@click.command("claim")
@click.argument("model", type=options.PATH)
@options.key_options
@click.option(
    "--tensor",
    "tensors",
    multiple=True,
    metavar="NAME",
    help="The tensors that were marked, if they were named then.",
)
@click.option(
    "-o",
    "--output",
    "out",
    type=options.PATH,
    help="Where to write the claim (default: beside the model).",
)
@click.option(
    "--anchor",
    "anchor_file",
    type=options.PATH,
    help="The anchor that the mark is bound to (default: the one beside the model).",
)
@click.option("--force", is_flag=True, help="Replace the claim if it exists.")
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    model: Path,
    key_file: Path,
    passphrase_file: Path | None,
    tensors: tuple[str, ...],
    out: Path | None,
    anchor_file: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Rebuild the lost claim of a marked MODEL."""
    from neuralmark.marking import beside, claiming

    key = options.load_key(key_file, passphrase_file)
    verdict, claim = claiming.rebuild_claim(
        model, key, tensors=list(tensors) or None, anchor=anchor_file
    )
    if claim is None:
        if as_json:
            output.as_json({"claim_file": None, "verdict": verdict.to_dict()})
        else:
            output.note(f"no claim: {verdict.reason}")
        ctx.exit(3 if verdict.status == "unreadable" else 1)
    path = out or beside.claim_path(model)
    claim.save(path, overwrite=force)
    if as_json:
        output.as_json({"claim_file": str(path), "claim": claim.to_dict()})
    else:
        output.panel(
            f"Claim {path}",
            [
                ("fingerprint", claim.fingerprint),
                ("tensors", ", ".join(name for name, _ in claim.placement)),
                ("read back", f"{verdict.matched} of {verdict.bits} bits"),
            ],
            good=True,
        )
