"""Options that several commands share: keys and passphrases."""

import os
import re
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
    from neuralmark.remote import RemoteOptions
    from neuralmark.sandbox.limits import SandboxLimits
    from neuralmark.storage.places import Place

M = TypeVar("M", bound="Place")
F = TypeVar("F", bound=Callable[..., Any])

PASSPHRASE_VARIABLE = "NEURALMARK_PASSPHRASE"  # noqa: S105 - the name of a variable
GIVEN = f"set {PASSPHRASE_VARIABLE}, or use --passphrase-file"
MAX_PASSPHRASE = 1 << 16
"""As in keyfile, which is not imported here: it would load numpy for every `--help`."""


class _OwnPath(click.Path):
    """A path of this machine; a URL is told from one before it is mistaken for it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from neuralmark.remote.transfer.addresses import is_url, redacted

        if isinstance(value, str) and is_url(value):
            self.fail(
                f"{redacted(value)} is a URL, and only a file or folder of this machine will do"
                " here: download it first",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


class _ModelPath(click.Path):
    """A path, or a URL, which becomes a place that is read like a file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from neuralmark.remote.transfer.addresses import is_url

        if not isinstance(value, str) or not is_url(value):
            return super().convert(value, param, ctx)
        from neuralmark.remote import at_url

        return at_url(value, remote_chosen(ctx))


PATH = _OwnPath(path_type=Path, readable=False)
"""Any path: what cannot be read is found out, and named, by the library."""

MODEL = _ModelPath(path_type=Path, readable=False)
"""A model that is only read: a path or a URL. Its command has `remote_options`."""

_REMOTE = "neuralmark.remote"


def remote_options(function: F) -> F:
    """--allow-private and --no-cache, where a model may be behind a URL."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            told = {"allow_private": {"allow_private": True}, "no_cache": {"cache": False}}
            ctx.meta.setdefault(_REMOTE, {}).update(told[str(param.name)])

    private = click.option(
        "--allow-private",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=remember,
        help="Let URLs lead to this machine and its network, without encryption (http) too.",
    )
    uncached = click.option(
        "--no-cache",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=remember,
        help="Keep nothing of what URLs give, and use nothing that was kept.",
    )
    return private(uncached(function))


def remote_chosen(ctx: click.Context | None) -> "RemoteOptions":
    """How URLs are read, as `remote_options` were given."""
    from neuralmark.remote import RemoteOptions

    return RemoteOptions(**({} if ctx is None else ctx.meta.get(_REMOTE, {})))


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


tensors_option = click.option(
    "--tensor",
    "tensors",
    multiple=True,
    metavar="NAME",
    help="Mark this tensor (may be repeated); default: what auto chooses.",
)


heads_option = click.option(
    "--heads",
    type=int,
    default=0,
    metavar="COUNT",
    help="Attention heads of the model, where no config.json beside it tells.",
)


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


among_option = click.option(
    "--among",
    type=int,
    metavar="N",
    default=1,
    show_default=True,
    help="Of how many looks this is one, at other models or with other keys: the bound is"
    " corrected for all of them, as scan does.",
)


def size(value: str) -> int:
    """A number of bytes, from text such as 4G or 512M.

    >>> size("2G") == 2 << 30
    True
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", value.strip().lower())
    if found is None:
        raise click.BadParameter(f"{value!r} is no size; give one such as 4G or 512M")
    return int(float(found[1]) * 1024.0 ** " kmgt".index(found[2] or " "))


def duration(value: str) -> float:
    """A number of seconds, from text such as 1d, 12h, 30m or 45s.

    >>> duration("12h")
    43200.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", value.strip().lower())
    if found is None:
        raise click.BadParameter(f"{value!r} is no time; give one such as 1d, 12h, 30m or 45s")
    units = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    return float(found[1]) * units[found[2]]


def sandbox_options(*, default: bool) -> Callable[[F], F]:
    """--sandbox, --memory and --time-limit, where suspects are read."""

    def add(function: F) -> F:
        sandbox = click.option(
            "--sandbox/--no-sandbox",
            default=default,
            show_default=True,
            help="Read in a process of its own that has no network, writes nothing and keeps to"
            " its limits.",
        )
        memory = click.option(
            "--memory",
            type=size,
            metavar="SIZE",
            default="4G",
            show_default=True,
            help="Of the sandbox.",
        )
        seconds = click.option(
            "--time-limit",
            type=duration,
            metavar="TIME",
            default="10m",
            show_default=True,
            help="Of the sandbox, for one model.",
        )
        return sandbox(memory(seconds(function)))

    return add


def limits(sandbox: bool, memory: int, time_limit: float) -> "SandboxLimits | None":
    """What the sandbox may use; None without one."""
    from neuralmark.sandbox.limits import SandboxLimits

    return SandboxLimits(memory, time_limit) if sandbox else None


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


def example_option(function: F) -> F:
    """--example, where a live model may be probed."""
    return click.option(
        "--example",
        metavar="SHAPE|FILE",
        help="With --code and the mark's anchor: run the network on an input of this shape"
        " (1x3x32x32; 1x16:int64 for tokens) or on the array of a .npy or .npz file, and read by"
        " probing, from what they compute, layers that its code stores in a way of its own.",
    )(function)


def example(given: str | None, code: str | None) -> Any:
    """The input that was described: a shape, or an array."""
    if given is None:
        return None
    if code is None:
        raise click.UsageError("--example runs the network of --code: give that, too")
    if given.endswith((".npy", ".npz")):
        return _array(given)
    import numpy as np

    shape, _, kind = given.partition(":")
    lengths = shape.split("x")
    if kind not in ("", "int32", "int64") or not all(n.isdecimal() and int(n) for n in lengths):
        raise click.UsageError(
            f"--example {given!r}: give a shape (1x3x32x32, or 1x16:int64) or a .npy or .npz file"
        )
    sizes = tuple(map(int, lengths))
    if not kind:
        return sizes
    return (np.arange(np.prod(sizes)) % 2).astype(kind).reshape(sizes)


def _array(file: str) -> Any:
    """The one array of a file."""
    from zipfile import BadZipFile

    import numpy as np

    try:
        found = np.load(file, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:
            arrays = list(found.values())
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise click.UsageError(f"--example {file}: cannot be read ({error})") from None
    if len(arrays) != 1:
        raise click.UsageError(f"--example {file}: holds {len(arrays)} arrays, not one")
    return arrays[0]


def live(code: str | None, model: M, key: "Key | None" = None) -> "M | torch.nn.Module":
    """The model as it is on disk, or in the network that code makes."""
    if code is None:
        return model
    from neuralmark import schemes
    from neuralmark.training.coded import built_model

    scheme = None if key is None else schemes.get(key.parameters.scheme)
    return built_model(code, model, live_only=isinstance(scheme, schemes.TriggerScheme))


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


def typed_twice(instead: str = GIVEN) -> str:
    """A new passphrase from the terminal."""
    first = prompt("New passphrase", instead)
    if prompt("The same again", instead) != first:
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


def prompt(question: str, instead: str = GIVEN) -> str:
    """Ask on the terminal, without echo."""
    if not sys.stdin.isatty():
        raise PassphraseError(
            f"a passphrase is needed and there is no terminal to ask on: {instead}"
        )
    answer: str = click.prompt(question, hide_input=True, err=True)
    return answer


def refuse_inputs(report: Path, inputs: "Sequence[Place | None]") -> None:
    """A report may replace an older report, never what it is about."""
    from neuralmark.errors import OutputError

    given = [path for path in inputs if isinstance(path, Path) and path.exists()]
    if report.exists() and any(report.samefile(path) for path in given):
        raise OutputError(f"{report} is one of the inputs: choose another name for the report")
