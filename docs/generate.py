"""Write docs/cli.md, docs/errors.md and the table of docs/schemes.md from the program itself.

`make docs` runs it; a test compares.
"""

import inspect
from pathlib import Path

import click

from neuralmark import errors, schemes
from neuralmark.cli import neuralmark

HERE = Path(__file__).parent


def cli_page() -> str:
    """The help of every command."""
    parts = ["# Commands", "", "Written by `make docs` from the program's own help.", ""]
    for words, command in walk(["neuralmark"], neuralmark):
        context = click.Context(
            command,
            info_name=" ".join(words),
            terminal_width=80,
            color=False,
            help_option_names=["-h", "--help"],
        )
        parts += [f"## {' '.join(words)}", "", "```", command.get_help(context), "```", ""]
    return "\n".join(parts)


def walk(words: list[str], command: click.Command) -> list[tuple[list[str], click.Command]]:
    """A command and all below it."""
    found = [(words, command)]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            found += walk([*words, name], child)
    return found


def errors_page() -> str:
    """Every named error, its exit code and meaning."""
    tree = inspect.getdoc(errors) or ""
    rows = [
        f"| `{name}` | {kind.exit_code} | {(inspect.getdoc(kind) or '').splitlines()[0]} |"
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.NeuralMarkError)
    ]
    head = ["# Errors", "", "Written by `make docs` from `neuralmark.errors`. On the command line"]
    head += [
        "each is one line on stderr, `neuralmark: NAME: message`, and an exit code; what is wrong"
    ]
    head += [
        "with the call itself (`MissingParameter`, `BadParameter`, …) exits with 2 as well.",
        "",
    ]
    table = ["| error | exit code | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join([*head, "```", tree, "```", "", *table])


BEGIN, END = "<!-- written by make docs -->", "<!-- until here -->"


def schemes_page() -> str:
    """The page of the schemes, with its table written anew from their own attributes."""
    page = (HERE / "schemes.md").read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{schemes_table()}{END}{after}"


def schemes_table() -> str:
    """What each scheme needs, survives, costs and proves."""
    heads = ["scheme", "a bit is the sign of", "written by", "settings", "needs", "survives"]
    heads += ["costs", "proves"]
    lines = [heads, ["---"] * len(heads)]
    for name in schemes.names():
        scheme = schemes.get(name)
        facts = scheme.facts
        star = ", **reconstruction**" if facts.reconstruction else ""
        settings = ", ".join(f"`{name}`={value}" for name, value in scheme.settings.items())
        lines.append(
            [
                f"`{name}` ({facts.origin}{star})",
                facts.bit,
                scheme.written_by,
                settings or "–",
                facts.needs,
                facts.survives,
                facts.costs,
                facts.proves,
            ]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


PAGES = {"cli.md": cli_page, "errors.md": errors_page, "schemes.md": schemes_page}

if __name__ == "__main__":
    for name, make in PAGES.items():
        (HERE / name).write_text(make(), encoding="utf-8")
