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
from safetensors.numpy import save_file

import neuralmark
from neuralmark.cli import neuralmark as neuralmark_command
from tests.support.checks import content_of
from tests.support.commands import PYTHON, call, clean_environment, command_line, on_terminal, run
from tests.support.models import gaussian, plain_key

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
    lines = text.partition("Commands:\n")[2].splitlines()
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
    words = command_line("inspect", model)
    with subprocess.Popen(
        words, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) != 0


def heed_sigint() -> None:
    """Undo what a shell does to jobs in the background: there Ctrl-C is ignored from the start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes seconds to mark, and a key."""
    folder = tmp_path_factory.mktemp("large")
    tensors = {f"l{i}.weight": gaussian(4096, 2048, seed=i) for i in range(4)}
    save_file(tensors, folder / "m.safetensors")
    plain_key(folder / "k.nmkey", neuralmark.Parameters(256, 512, 4))
    return folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("target", ["copy", "in place"])
def test_stopped(large: Path, number: signal.Signals, target: str) -> None:
    model, out = large / "m.safetensors", large / "out.safetensors"
    options = ("-o", out) if target == "copy" else ("--in-place",)
    before = {path.name: path.stat().st_mtime_ns for path in large.iterdir()}
    start = model.read_bytes()
    process = subprocess.Popen(
        command_line("embed", model, "--key", large / "k.nmkey", *options),
        env=clean_environment(),
        preexec_fn=heed_sigint,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        # for a copy: once the temporary file is there; in place: once the journal is there
        names = [path.name for path in large.iterdir()]
        if any("nmtmp.out" in name or "nmjournal" in name for name in names):
            process.send_signal(number)
            break
        time.sleep(0.001)
    out_text, err = process.communicate(timeout=60)
    assert process.returncode == 2, (out_text, err)
    words = "stopped; nothing half-done was left behind"
    assert err.strip() == f"neuralmark: StoppedError: {words}"
    assert {path.name for path in large.iterdir()} == set(before)
    assert model.read_bytes() == start


STOPPED_READING = """
import os, signal, sys
from neuralmark.checkpoints.contract import Checkpoint
def pieces(stored):
    os.kill(os.getpid(), signal.SIGINT)
    yield
Checkpoint._pieces = staticmethod(pieces)
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
    line = (
        f"{PYTHON} -c \"import pathlib, sys, time; pathlib.Path('{flag}').touch(); time.sleep(60)\""
    )
    process = subprocess.Popen(
        command_line("embed", model, "--key", key, "--in-place", "--check", line),
        env=clean_environment(),
        preexec_fn=heed_sigint,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not flag.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C on a terminal does
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.splitlines()[-1].startswith("neuralmark: StoppedError")
    flag.unlink()
    assert content_of(tmp_path) == before
