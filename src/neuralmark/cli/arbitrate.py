"""`neuralmark arbitrate`: rule between parties that claim the same model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from neuralmark.cli import _options as options
from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.disputes import Claimant, Relation, Ruling
    from neuralmark.disputes.sightings import Sighting
    from neuralmark.storage.places import Place

T = TypeVar("T")


@click.command("arbitrate")
@click.option(
    "--claimant",
    "claimants",
    type=(str, options.PATH, options.MODEL),
    multiple=True,
    required=True,
    metavar="NAME KEY MODEL",
    help="A party, its key file and the model it shows (twice or more).",
)
@click.option(
    "--disputed",
    type=options.MODEL,
    metavar="MODEL",
    help="The model that the dispute is about.",
)
@click.option(
    "--claim",
    "claims",
    type=(str, options.PATH),
    multiple=True,
    metavar="NAME CLAIM",
    help="Claim that says where a party's mark sits (else it is searched).",
)
@click.option(
    "--anchor",
    "anchors",
    type=(str, options.PATH),
    multiple=True,
    metavar="NAME ANCHOR",
    help="Anchor of a party's mark (else it is sought beside the claim).",
)
@click.option(
    "--commitment",
    "commitments",
    type=(str, str),
    multiple=True,
    metavar="NAME TIME",
    help="When a party's key was registered, to be reported; nothing depends on it.",
)
@click.option(
    "--passphrase-file",
    "passphrase_files",
    type=(str, options.PATH),
    multiple=True,
    metavar="NAME FILE",
    help="File whose first line is the passphrase of a party's key"
    f" (else ${options.PASSPHRASE_VARIABLE} or a prompt).",
)
@click.option(
    "--report",
    type=options.PATH,
    metavar="FILE.html",
    help="Write a self-contained page with the ruling.",
)
@options.remote_options
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    claimants: "tuple[tuple[str, Path, Place], ...]",
    disputed: "Place | None",
    claims: tuple[tuple[str, Path], ...],
    anchors: tuple[tuple[str, Path], ...],
    commitments: tuple[tuple[str, str], ...],
    passphrase_files: tuple[tuple[str, Path], ...],
    report: Path | None,
    as_json: bool,
) -> None:
    """Rule on who owns a model that several parties claim.

    Every party's key is verified in every model. The owner is the party that shows a model with
    only its own mark, while its mark is also in what the others show and in the disputed model.
    Exit code 0: decided; 1: undecided.
    """
    from neuralmark.disputes import arbitrate

    names = [name for name, _, _ in claimants]
    places = _by_name("--claim", claims, names)
    copies = _by_name("--anchor", anchors, names)
    if report:
        inputs: list[Place] = [path for _, key, model in claimants for path in (key, model)]
        inputs += [*places.values(), *copies.values(), *([disputed] if disputed else [])]
        inputs += [path for _, path in passphrase_files]
        options.refuse_inputs(report, inputs)
    parties = _load(
        claimants,
        (places, copies),
        _by_name("--commitment", commitments, names),
        _by_name("--passphrase-file", passphrase_files, names),
    )
    with output.progress_bar() as progress:
        ruling = arbitrate(parties, disputed=disputed, progress=progress)
    if report:
        from neuralmark.reports.ruling import ruling_page
        from neuralmark.storage import files

        files.write_text(report, ruling_page(ruling), overwrite=True)
        output.note(f"report written to {report}")
    if as_json:
        output.as_json(ruling.to_dict())
    else:
        _show(ruling)
    ctx.exit(0 if ruling.decided else 1)


def _by_name(option: str, given: Sequence[tuple[str, T]], names: Sequence[str]) -> dict[str, T]:
    """What was given for each party; refuses a name that is no party's, and one given twice."""
    from neuralmark.errors import DisputeError

    table: dict[str, T] = {}
    for name, value in given:
        if name not in names:
            known = ", ".join(map(repr, names))
            raise DisputeError(f"{option}: there is no party {name!r}; the parties are {known}")
        if name in table:
            raise DisputeError(f"{option}: {name!r} is named twice; give it once for each party")
        table[name] = value
    return table


def _load(
    claimants: "Sequence[tuple[str, Path, Place]]",
    brought: tuple[dict[str, Path], dict[str, Path]],
    times: dict[str, str],
    passphrases: dict[str, Path],
) -> "list[Claimant]":
    from neuralmark.disputes import Claimant

    claims, anchors = brought
    return [
        Claimant(
            name,
            options.load_key(key_file, passphrases.get(name)),
            model,
            claims.get(name),
            times.get(name),
            anchors.get(name),
        )
        for name, key_file, model in claimants
    ]


def _show(ruling: "Ruling") -> None:
    heads = ["mark of", *(label.removeprefix("the ") for label in ruling.models)]
    output.table(
        heads,
        [
            [party.name, *(_cell(ruling.sighting(party.name, label)) for label in ruling.models)]
            for party in ruling.parties
        ],
        numeric=(),
    )
    title = f"OWNER: {ruling.owner}" if ruling.decided else "UNDECIDED"
    rows = [("relation", _relation(relation)) for relation in ruling.relations]
    rows += [("set aside", f"the exhibit of {name}") for name in ruling.set_aside]
    rows += [
        ("commitment", f"{party.name}: {party.stated_time} (as stated, not checked)")
        for party in ruling.commitments()
    ]
    rows += [("because", reason) for reason in ruling.reasons]
    rows += [("caution", caution) for caution in ruling.cautions]
    output.panel(title, rows, good=ruling.decided)


def _cell(sighting: "Sighting") -> str:
    if sighting.matched is None or sighting.bound_log2 is None:
        return f"{sighting.state} (no place for it)"
    bits = f"{sighting.matched} of {sighting.bits} bits"
    if sighting.state == "unproven":  # no chance holds for such a key
        return f"{sighting.state} ({bits})"
    return f"{sighting.state} ({bits}, {output.power_of_two(sighting.bound_log2)})"


def _relation(relation: "Relation") -> str:
    said = "related" if relation.related else "unrelated"
    figure = "nothing to compare"
    if relation.overall is not None:
        clean = "too few" if relation.unmarked is None else f"{relation.unmarked:.3f}"
        figure = f"correlation {relation.overall:.3f}, in unmarked tensors {clean}"
        figure += f"; {relation.weights:,} weights compared"
    if relation.aligned is not None:
        figure += f"; put in order, score {relation.aligned:.3f}"
    return f"{relation.one} and {relation.two}: {said} ({figure})"
