"""The command line: one file per verb, each the twin of one library function.

A verb's file has a click command named `command`; its name is the verb. Heavy imports happen
inside the commands, so that `--help` stays quick.
"""

import os
import pkgutil
import signal
import sys
from importlib import import_module
from typing import Any

import click

from neuralmark.cli import _output as output
from neuralmark.errors import DefectError, NeuralMarkError, StoppedError, UsageError
from neuralmark.version import __version__

REPORT_AT = "the repository that you installed it from"
TRACEBACK = "NEURALMARK_TRACEBACK"

ONE_THREAD = ("OPENBLAS_NUM_THREADS", "1")
"""Our matrices are small: on a busy machine more threads only wait for each other."""


class _Verbs(click.Group):
    """Finds the verbs among the files of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = [module.name for module in pkgutil.iter_modules(__path__)]
        return sorted(name for name in names if not name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(f"{__name__}.{cmd_name}").command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            import difflib

            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; see neuralmark --help"
            raise click.UsageError(f"there is no command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="neuralmark")
def neuralmark() -> None:
    """Prove who owns a neural network: a keyed watermark in its weights.

    \b
    neuralmark key new acme.nmkey
    neuralmark embed model.safetensors --key acme.nmkey -o marked.safetensors
    neuralmark verify suspect.safetensors --key acme.nmkey --claim CLAIM

    Exit codes: 0 verified or done, 1 not verified, 2 wrong usage, 3 unreadable or unsafe input,
    70 a fault of NeuralMark's own.
    """


def main() -> None:
    """Run the command line; every failure is one line on stderr and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    os.environ.setdefault(*ONE_THREAD)
    try:
        try:
            with output.warnings_as_notes():
                code = neuralmark.main(standalone_mode=False, prog_name="neuralmark")
        except SystemExit:  # click's way with a closed pipe; 1 would say "not verified"
            code = UsageError.exit_code
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        sys.exit(UsageError.exit_code)
    except click.ClickException as error:
        output.fail(type(error).__name__, error.format_message(), UsageError.exit_code)
    except (KeyboardInterrupt, click.Abort):
        output.fail(StoppedError.__name__, "stopped; nothing half-done was left behind", 2)
    except NeuralMarkError as error:
        output.fail(type(error).__name__, str(error), error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(UsageError.exit_code)
    except OSError as error:
        output.fail("InputError", f"{error.filename or ''}: {error.strerror or error}", 3)
    except MemoryError:
        output.fail("InputError", "out of memory: the input is too large for this machine", 3)
    except Exception as error:  # 1 would say "not verified": what we did not foresee is our fault
        output.fail(DefectError.__name__, _defect(error), DefectError.exit_code)


def _defect(error: Exception) -> str:
    """What went wrong and where, and what to do about it."""
    if TRACEBACK in os.environ:
        import traceback

        traceback.print_exception(error)
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = ""
    if frame is not None:
        where = f" in {os.path.split(frame.tb_frame.f_code.co_filename)[1]}:{frame.tb_lineno}"
    return (
        f"{type(error).__name__}{where}: {str(error)[:300]} - this is a fault of NeuralMark"
        f" {__version__}, not of your input: please report it at {REPORT_AT} ({TRACEBACK}=1 shows"
        " the traceback)"
    )


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
