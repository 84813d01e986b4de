"""The command line as a whole: help, version, completion, terminals, pipes, signals."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import neuralmark
from neuralmark.cli import neuralmark as neuralmark_command
from tests.support.checks import content_of
from tests.support.commands import PYTHON, call, clean_environment, command_line, on_terminal, run
from tests.support.models import gaussian_model, plain_key
from tests.support.processes import PATIENCE

COMMANDS = ("claim", "completion", "embed", "inspect", "key", "recover", "verify")
SCRIPT = Path(PYTHON).with_name("neuralmark")


def test_version() -> None:
    expected = f"neuralmark, version {neuralmark.__version__}\n"
    assert call("--version").out == expected
    assert run("--version").out == expected
    done = subprocess.run([SCRIPT, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == expected


def test_help_names_every_command() -> None:
    for option in ("--help", "-h"):
        text = call(option).out
        for name in COMMANDS:
            assert f"  {name} " in text
    for name in COMMANDS:
        result = call(name, "--help")
        assert result.code == 0
        assert result.out.startswith(f"Usage: neuralmark {name}")
        if name not in ("completion", "key"):
            assert "--json" in result.out


def groups(words: tuple[str, ...], command: click.Command) -> Iterator[tuple[str, ...]]:
    """The words of every command that has others below it."""
    if isinstance(command, click.Group):
        yield words
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from groups((*words, name), below)


@pytest.mark.parametrize("words", list(groups((), neuralmark_command)), ids=" ".join)
def test_every_summary_is_whole_and_on_one_line(words: tuple[str, ...]) -> None:
    text = call(*words, "--help", env={"COLUMNS": "80"}).out
    listed = text.partition("Commands:\n")[2]
    lines = [line for line in listed.splitlines() if line and not line.endswith(":")]
    assert lines
    for line in lines:
        assert re.match(r"  \S", line), f"the summary before wraps: {line}"
        assert line.endswith("."), line
        assert not line.endswith("..."), line
        assert len(line) < 80


def test_no_command_at_all() -> None:
    result = call()
    assert result.code == 2
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("typed", "meant"), [("verfy", "verify"), ("embd", "embed"), ("keys", "key")]
)
def test_unknown_command(typed: str, meant: str) -> None:
    assert f"did you mean {meant!r}" in call(typed).failed(2, "UsageError")


def test_wrong_words(model: Path, key: Path) -> None:
    call("zzzz").failed(2, "UsageError")
    assert "new" in call("key", "nwe", "x").failed(2, "NoSuchCommand")
    call("verify", model, "--key", key, "--kex").failed(2, "NoSuchOption")
    call("embed", model, "--key", key, "--strength", "much").failed(2, "BadParameter")
    call("verify").failed(2, "MissingParameter")
    call("verify", model, model, "--key", key).failed(2, "UsageError")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, tmp_path: Path) -> None:
    text = call("completion", shell).out
    assert "_NEURALMARK_COMPLETE" in text
    if shell == "bash":
        file = tmp_path / "script"
        file.write_text(text)
        subprocess.run(["bash", "-n", file], check=True)
    call("completion", "tcsh").failed(2, "BadParameter")


def test_completion_completes() -> None:
    words = {"COMP_WORDS": "neuralmark ver", "COMP_CWORD": "1"}
    result = run(env={"_NEURALMARK_COMPLETE": "bash_complete", **words})
    assert result.out.split() == ["plain,verify"]


def test_progress_on_a_terminal_only(marked: Path, key: Path) -> None:
    code, screen = on_terminal("verify", marked, "--key", key)
    assert code == 0
    assert "reading" in screen
    assert "━" in screen
    assert "VERIFIED" in screen
    assert "╭" in screen
    for command in (("verify", marked), ("embed", marked, "--dry-run")):
        result = run(*command, "--key", key)
        assert result.code == 0
        assert "\x1b" not in result.out + result.err
        assert "reading" not in result.err


def test_nobody_reads_the_output(model: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command_line("inspect", model),
        env=clean_environment(),
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=PATIENCE,
        check=False,
    )
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode != 0


def heed_sigint() -> None:
    """Undo what a shell does to jobs in the background: there Ctrl-C is ignored from the start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


STOPPED_WRITING = """
import os, signal, sys
number, step, count = int(sys.argv.pop(1)), sys.argv.pop(1), int(sys.argv.pop(1))
real = getattr(os, step)
def stopped(*args):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), number)
    return real(*args)
setattr(os, step, stopped)
from neuralmark.cli import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("target", "step", "count"),
    [
        ("copy", "copy_file_range", 1),  # a temporary file is there
        ("copy", "pwrite", 1),
        ("copy", "pwrite", 2),
        ("in place", "fsync", 1),  # a draft of the journal is there
        ("in place", "fsync", 2),  # the journal is there
        ("in place", "pwrite", 1),  # the weights are still old
        ("in place", "pwrite", 2),  # they are partly new
    ],
)
def test_stopped(
    tmp_path: Path, number: signal.Signals, target: str, step: str, count: int
) -> None:
    model, key = gaussian_model(tmp_path / "m.safetensors"), plain_key(tmp_path / "k.nmkey")
    options = ("-o", tmp_path / "out.safetensors") if target == "copy" else ("--in-place",)
    before = content_of(tmp_path)
    point = [str(number.value), step, str(count)]
    done = subprocess.run(
        [PYTHON, "-c", STOPPED_WRITING, *point, "embed", model, "--key", key, *options],
        env=clean_environment(),
        preexec_fn=heed_sigint,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    words = "stopped; nothing half-done was left behind"
    assert done.stderr.strip() == f"neuralmark: StoppedError: {words}"
    assert done.returncode == 2, done
    assert content_of(tmp_path) == before


STOPPED_READING = """
import os, signal, sys
from neuralmark.checkpoints import contract
def pieces(stored):
    os.kill(os.getpid(), signal.SIGINT)
    yield
contract._pieces = pieces
from neuralmark.cli import main
main()
"""


def test_stopped_while_reading(model: Path, key: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_READING, "verify", str(model), "--key", str(key)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        preexec_fn=heed_sigint,
    )
    assert done.returncode == 2
    assert done.stderr.strip().startswith("neuralmark: StoppedError")


def test_stopped_during_the_check(model: Path, key: Path, tmp_path: Path) -> None:
    before = content_of(tmp_path)
    flag = tmp_path / "running"
    waits = f"import pathlib, time; pathlib.Path('{flag}').touch(); time.sleep({PATIENCE})"
    line = f'{PYTHON} -c "{waits}"'
    process = subprocess.Popen(
        command_line("embed", model, "--key", key, "--in-place", "--check", line),
        env=clean_environment(),
        preexec_fn=heed_sigint,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + PATIENCE
    while not flag.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C on a terminal does
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert err.splitlines()[-1].startswith("neuralmark: StoppedError")
    flag.unlink()
    assert content_of(tmp_path) == before
