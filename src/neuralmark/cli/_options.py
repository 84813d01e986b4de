"""Options that several commands share: keys and passphrases."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from neuralmark.anchors.effort import ALIGN_LIMIT
from neuralmark.errors import PassphraseError

if TYPE_CHECKING:
    import torch

    from neuralmark.keys.key import Key

F = TypeVar("F", bound=Callable[..., Any])

PASSPHRASE_VARIABLE = "NEURALMARK_PASSPHRASE"  # noqa: S105 - the name of a variable
MAX_PASSPHRASE = 1 << 16
"""As in keyfile, which is not imported here: it would load numpy for every `--help`."""

PATH = click.Path(path_type=Path, readable=False)
"""Any path: what cannot be read is found out, and named, by the library."""


def passphrase_file_option(function: F) -> F:
    """--passphrase-file, on every command that opens a key."""
    return click.option(
        "--passphrase-file",
        type=PATH,
        help=f"File whose first line is the passphrase (else ${PASSPHRASE_VARIABLE} or a prompt).",
    )(function)


def key_options(function: F) -> F:
    """--key and --passphrase-file."""
    key = click.option(
        "--key",
        "key_file",
        required=True,
        type=PATH,
        help="Key file (.nmkey).",
    )
    return key(passphrase_file_option(function))


spread_option = click.option(
    "--spread",
    type=click.Choice(["wide", "quick", "all"]),
    default="wide",
    show_default=True,
    help="Tensors to take: many of all depths, the few largest, or everything.",
)


align_limit_option = click.option(
    "--align-limit",
    type=int,
    metavar="N",
    default=ALIGN_LIMIT,
    show_default=True,
    help="Most entries of a table of likenesses, which has an entry for each channel of the one"
    " model with each channel of the other; larger axes are not put back in order.",
)


base_option = click.option(
    "--base",
    type=PATH,
    help="Where MODEL is a PEFT adapter: the model that it was trained on; default: a folder beside"
    " it that has the base's name.",
)


def code_options(function: F) -> F:
    """--code and --triggers, where a live model may be read."""
    code = click.option(
        "--code",
        metavar="FILE.py:NAME",
        help="Load MODEL into the network that this class or function makes, and read it live. For"
        " schemes that read activations; aligns networks of unknown families better. The code is"
        " run: give only your own.",
    )
    triggers = click.option(
        "--triggers", type=PATH, help="Triggers, for schemes that read activations."
    )
    return code(triggers(function))


def live(code: str | None, model: Path) -> "Path | torch.nn.Module":
    """The model as it is on disk, or in the network that code makes."""
    if code is None:
        return model
    from neuralmark.training.coded import built_model

    return built_model(code, model)


def json_option(function: F) -> F:
    """--json, on every command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def load_key(path: Path, passphrase_file: Path | None) -> "Key":
    """Open a key file, asking for the passphrase only when it needs one."""
    from neuralmark.keys.key import Key
    from neuralmark.keys.sealing import is_encrypted

    if not is_encrypted(path):
        return Key.load(path)
    return Key.load(path, given_passphrase(passphrase_file) or prompt(f"Passphrase of {path}"))


def new_passphrase(passphrase_file: Path | None) -> str:
    """A passphrase for a new key file: given, or typed twice."""
    return given_passphrase(passphrase_file) or typed_twice()


def typed_twice() -> str:
    """A new passphrase from the terminal."""
    first = prompt("New passphrase")
    if prompt("The same again") != first:
        raise PassphraseError("the two passphrases differ; nothing was written")
    return first


def given_passphrase(passphrase_file: Path | None) -> str | None:
    """The passphrase from a file or from the environment, or None."""
    if passphrase_file is not None:
        try:
            with passphrase_file.open("rb") as file:  # a pipe is welcome, an endless one is not
                lines = file.read(MAX_PASSPHRASE).decode("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise PassphraseError(f"{passphrase_file}: cannot be read ({error})") from None
        if not lines or not lines[0]:
            raise PassphraseError(f"{passphrase_file}: its first line is empty")
        return lines[0]
    return os.environ.get(PASSPHRASE_VARIABLE) or None


def prompt(question: str) -> str:
    """Ask on the terminal, without echo."""
    if not sys.stdin.isatty():
        raise PassphraseError(
            f"a passphrase is needed and there is no terminal to ask on: set"
            f" {PASSPHRASE_VARIABLE}, or use --passphrase-file"
        )
    answer: str = click.prompt(question, hide_input=True, err=True)
    return answer


def refuse_inputs(report: Path, inputs: Sequence[Path | None]) -> None:
    """A report may replace an older report, never what it is about."""
    from neuralmark.errors import OutputError

    given = [path for path in inputs if path is not None and path.exists()]
    if report.exists() and any(report.samefile(path) for path in given):
        raise OutputError(f"{report} is one of the inputs: choose another name for the report")
