"""`neuralmark attack`: attack a marked model, and see what its mark withstands."""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from neuralmark.cli import _attacked as shown
from neuralmark.cli import _evaluated as evaluated
from neuralmark.cli import _options as options
from neuralmark.cli import _output as output

if TYPE_CHECKING:
    from neuralmark.attacks import Attack
    from neuralmark.keys.key import Key

F = TypeVar("F", bound=Callable[..., Any])

OWN = "own_"
"""Before the names of an attack's settings, so that they meet no other parameter's."""

PLAIN = (bool, int, float, str)
"""Types of settings that an option can hold; others are for Python only."""


class _Attacks(click.Group):
    """`list`, `suite`, and one command for each attack that there is."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from neuralmark.attacks import names

        own = super().list_commands(ctx)
        return own + [name for name in names() if name not in own]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in self.list_commands(ctx):
            return own
        return _command_of(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """In two parts: what runs from here, and what needs data."""
        from neuralmark.attacks import get, names

        python = [name for name in names() if "data" in get(name).needs]
        here = [name for name in self.list_commands(ctx) if name not in python]
        for title, listed in (("Commands", here), ("From Python only, with data", python)):
            found = [(name, self.get_command(ctx, name)) for name in listed]
            rows = [(name, each.get_short_help_str(80)) for name, each in found if each]
            with formatter.section(title):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from neuralmark.attacks import get

            get(args[0])  # raises, with the nearest name
        return super().resolve_command(ctx, args)


def _shared(function: F) -> F:
    """Options of `suite` and of every attack."""
    return _apply(
        function,
        click.option(
            "--claim",
            "claim_file",
            type=options.PATH,
            help="Claim that says which tensors were marked.",
        ),
        click.option(
            "--anchor",
            type=options.PATH,
            help="Anchor of the mark, or the unmarked original; default: sought beside the claim.",
        ),
        click.option(
            "--other",
            "others",
            multiple=True,
            type=options.PATH,
            metavar="FILE",
            help="Another checkpoint of the same shape (may be repeated).",
        ),
        click.option(
            "--seed", type=int, default=0, show_default=True, help="Seed of all that is random."
        ),
    )


def _apply(function: F, *decorators: Callable[[F], F]) -> F:
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


@click.group("attack", cls=_Attacks)
def command() -> None:
    """Attack a marked model, and see what its mark withstands.

    \b
    neuralmark attack list
    neuralmark attack prune marked.safetensors --share 0.9 --key acme.nmkey
    neuralmark attack suite marked.safetensors --key acme.nmkey --report card.html

    MODEL is never changed. Attacks that need data are run from Python, by
    neuralmark.attacks.launch. Exit codes of one attack: 0 the mark survived (or no key was given),
    1 the verdict flipped or a forged key was verified.
    """


@command.command("list", short_help="List the attacks: what they do, need and lead to.")
@options.json_option
def list_(as_json: bool) -> None:
    """List the attacks: what they do, what they need, what to expect."""
    from neuralmark.attacks import get, names

    found = {name: get(name) for name in names()}
    if as_json:
        output.as_json({"attacks": [shown.listed(name, each) for name, each in found.items()]})
        return
    rows = [(name, each.summary, shown.needs(each), each.expects) for name, each in found.items()]
    output.table(("name", "what it does", "needs", "what to expect"), rows, numeric=())


@command.command("suite", short_help="Run the attacks that need no data, and print a card.")
@click.argument("model", type=options.PATH)
@options.key_options
@_shared
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Run this attack (may be repeated); default: all that need no data.",
)
@click.option("--jobs", type=int, help="Number of processes (default: one per core).")
@click.option(
    "--report",
    type=options.PATH,
    metavar="FILE.html",
    help="Write the robustness card (or the report) as a self-contained page.",
)
@click.option(
    "--standard",
    is_flag=True,
    help="Evaluate as MPAI-NNW (IEEE 3304) does: imperceptibility, robustness, cost.",
)
@click.option(
    "--original",
    type=options.PATH,
    metavar="FILE",
    help="The unmarked original, with --standard: change of the weights, false alarms.",
)
@options.code_options
@options.json_option
def suite(
    model: Path,
    key_file: Path,
    passphrase_file: Path | None,
    claim_file: Path | None,
    anchor: Path | None,
    others: tuple[Path, ...],
    seed: int,
    only: tuple[str, ...],
    jobs: int | None,
    report: Path | None,
    standard: bool,
    original: Path | None,
    code: str | None,
    triggers: Path | None,
    as_json: bool,
) -> None:
    """Run every attack that needs no data on MODEL and print its robustness card.

    The card says for each attack at which strength the verdict flips. It is the same for every
    number of processes. Schemes that read activations take --code and --triggers.

    With --standard, print the three parts of MPAI-NNW (IEEE 3304-2023) instead; accuracies and
    fine-tuning need data, from Python (neuralmark.attacks.standard).
    """
    from neuralmark.attacks.engine.options import SuiteOptions
    from neuralmark.attacks.engine.suite import suite as run
    from neuralmark.storage import files

    evaluated.refuse(standard, {"--original": original})
    evaluated.refuse(not standard, {"--other": others})
    if report:
        inputs = (model, key_file, claim_file, anchor, *others, original, triggers)
        options.refuse_inputs(report, inputs)
    key = options.load_key(key_file, passphrase_file)
    if standard:
        wanted = evaluated.Evaluating(original, only, seed, jobs, anchor, claim_file, triggers)
        evaluated.run(options.live(code, model, key), key, wanted, report, as_json=as_json)
        return
    with output.progress_bar(counting=True) as progress:
        card = run(
            options.live(code, model, key),
            key,
            SuiteOptions(list(only) or None, others, seed, jobs, anchor),
            claim=claim_file,
            triggers=triggers,
            progress=progress,
        )
    if report:
        from neuralmark.reports.card import card_page

        files.write_text(report, card_page(card), overwrite=True)
        output.note(f"card written to {report}")
    if as_json:
        output.as_json(card.to_dict())
    else:
        shown.card(card)


def _command_of(name: str) -> click.Command:
    """The command of one attack: its settings become options."""
    from neuralmark.attacks import get

    attack = get(name)
    types = get_type_hints(attack)
    own = [_option(each, types[each.name]) for each in fields(attack)]

    @click.pass_context
    def run(
        ctx: click.Context,
        /,
        model: Path,
        out: Path | None,
        force: bool,
        key_file: Path | None,
        passphrase_file: Path | None,
        claim_file: Path | None,
        anchor: Path | None,
        tensors: tuple[str, ...],
        others: tuple[Path, ...],
        seed: int,
        code: str | None,
        triggers: Path | None,
        as_json: bool,
        **chosen: Any,
    ) -> None:
        settings = {name.removeprefix(OWN): value for name, value in chosen.items()}
        shown.refuse_output(attack, out)
        shown.require(attack, others=bool(others), live=code is not None)
        key = None if key_file is None else options.load_key(key_file, passphrase_file)
        files = (claim_file, anchor, tensors, others)
        request = shown.Request(out, force, *files, seed, code, triggers, as_json)
        ctx.exit(_launch(attack(**settings), model, key, request))

    summary = _sentence(attack.summary + shown.how_to_run(attack))
    run.__doc__ = f"{summary}\n\nExpect of a sound mark: {attack.expects}."
    decorated = _apply(
        run,
        click.argument("model", type=options.PATH),
        *filter(None, own),
        click.option(
            "-o",
            "--output",
            "out",
            type=options.PATH,
            help="Where to write the attacked model (for a forger: the forged key).",
        ),
        click.option("--force", is_flag=True, help="Replace the output if it exists."),
        click.option(
            "--key", "key_file", type=options.PATH, help="Key whose mark is judged (.nmkey)."
        ),
        options.passphrase_file_option,
        click.option(
            "--tensor",
            "tensors",
            multiple=True,
            metavar="NAME",
            help="Attack this tensor (may be repeated); default: every matrix.",
        ),
        _shared,
        options.code_options,
        options.json_option,
    )
    return click.command(name, short_help=_sentence(attack.summary))(decorated)


def _launch(attack: "Attack", model: Path, key: "Key | None", request: "shown.Request") -> int:
    """Run one attack, write what was asked for, print, and give the exit code."""
    from neuralmark.attacks.engine.launch import launch
    from neuralmark.attacks.engine.options import LaunchOptions

    with output.progress_bar(counting=True) as progress:
        result = launch(
            attack,
            options.live(request.code, model, key),
            key,
            options=LaunchOptions(
                tensors=list(request.tensors) or None,
                others=request.others,
                seed=request.seed,
                anchor=request.anchor,
            ),
            claim=request.claim_file,
            triggers=request.triggers,
            progress=progress,
        )
    written = None if request.out is None else shown.write(attack, result, model, request)
    if request.as_json:
        output.as_json(shown.as_json(attack, result, written))
    else:
        shown.result(attack, result, model, written)
    return 0 if result.held or result.survived_aligned else 1


def _option(field: "Field[Any]", kind: Any) -> Callable[[F], F] | None:
    """The command-line option of a setting; None for one that only Python can give."""
    words = get_origin(kind) is Literal
    kinds = [str] if words else [e for e in get_args(kind) or (kind,) if e is not type(None)]
    if len(kinds) != 1 or kinds[0] not in PLAIN:
        return None
    name = field.name.replace("_", "-")
    given = field.default is not MISSING
    choices = field.metadata.get("choices", ())
    help_ = _sentence(field.metadata.get("meaning", name))
    return click.option(
        f"--{name}/--no-{name}" if kinds[0] is bool else f"--{name}",
        OWN + field.name,
        type=click.Choice(choices) if choices else kinds[0],
        default=field.default if given else None,
        required=not given,
        show_default=field.default is not None,
        help=help_,
    )


def _sentence(words: str) -> str:
    first = words[:1].upper() if words[:1].isascii() else words[:1]  # λ stays λ
    return first + words[1:].rstrip(".") + "."
