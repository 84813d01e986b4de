"""Killed at any moment, an in-place embedding leaves the old or the new bytes within reach."""

import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from neuralmark import Claim, Key, verify
from neuralmark.anchors.sealed import load_anchor
from tests.support.checks import content_of
from tests.support.commands import PYTHON, Result, call, clean_environment, command_line
from tests.support.models import gaussian_model, plain_key, sharded_model
from tests.support.processes import PATIENCE

# Copies the folder of a model again and again; each copy is marked by a forked child that kills
# itself before its i-th step that touches the disk (or in the middle of a write), for every i.
DRIVER = """
import os, pathlib, shutil, signal, sys
from neuralmark import Key, embed, recover

action, pristine, work, name, key = sys.argv[1:]
key = Key.load(key)
actions = {
    "embed": lambda path: embed(path, key, in_place=True),
    "recover": lambda path: recover(path),
}
if action == "embed":
    embed(os.path.join(pristine, name), key)

def arm(limit):
    count = 0
    def armed(function, owner, attribute):
        def step(*args, **kwargs):
            nonlocal count
            if count == limit:
                if attribute == "pwrite":
                    function(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return function(*args, **kwargs)
        setattr(owner, attribute, step)
    for owner, attributes in ((os, ("fsync", "pwrite")), (pathlib.Path, ("replace", "unlink"))):
        for attribute in attributes:
            armed(getattr(owner, attribute), owner, attribute)

for limit in range(1000):
    folder = os.path.join(work, f"{limit:03}")
    shutil.copytree(pristine, folder)
    child = os.fork()
    if child == 0:
        arm(limit)
        actions[action](os.path.join(folder, name))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        sys.exit(os.WEXITSTATUS(status))
    assert os.WTERMSIG(status) == signal.SIGKILL
"""

READING = ("inspect", "embed", "copy", "claim")


def killed_at_every_step(action: str, pristine: Path, work: Path, name: str, key: Path) -> int:
    """Make the copies; the last one was not killed. Give their number."""
    work.mkdir()
    subprocess.run(
        [PYTHON, "-c", DRIVER, action, pristine, work, name, key],
        env=clean_environment(OPENBLAS_NUM_THREADS="1"),
        check=True,
    )
    return len(list(work.iterdir()))


class States:
    """The old and the new content of a model's folder, and how to tell what a crash left."""

    def __init__(self, base: Path, sharded: bool) -> None:
        self.key = plain_key(base / "plain.nmkey")
        self.pristine = base / "pristine"
        self.pristine.mkdir()
        self.name = "model" if sharded else "model.safetensors"
        (sharded_model if sharded else gaussian_model)(self.pristine / self.name)
        self.claim = f"{self.name}.claim.json"
        self.anchor = f"{self.name}.anchor"
        self.old = content_of(self.pristine)
        self.new: dict[str, bytes] = {}

    def content_of(self, folder: Path) -> dict[str, bytes]:
        """What a folder holds; of an anchor its digest, for no two are sealed alike."""
        now = content_of(folder)
        if self.anchor in now:
            now[self.anchor] = load_anchor(folder / self.anchor, Key.load(self.key)).digest
        return now

    def check_before(self, folder: Path) -> str:
        """Verification refuses, or all bytes are old or all are new; give which."""
        result = call("verify", folder / self.name, "--key", self.key)
        now = content_of(folder)
        if any(name.endswith((".nmjournal", ".nmjournal.done")) for name in now):
            line = result.failed(3, "InterruptedEmbedError")
            assert f"neuralmark recover {folder / self.name}" in line
            with pytest.raises(Exception, match="cut short"):
                verify(folder / self.name, Key.load(self.key))
            return "interrupted"
        weights = {name: now[name] for name in self.old}
        assert weights in (self.old, {name: self.new[name] for name in self.old})
        assert result.code == (1 if weights == self.old else 0)
        return "old" if weights == self.old else "new"

    def recover(self, folder: Path, way: str) -> Result:
        model = folder / self.name
        out = folder.with_name(folder.name + "-out")
        commands: dict[str, tuple[object, ...]] = {
            "recover": ("recover", model),
            "inspect": ("inspect", model),
            "embed": ("embed", model, "--key", self.key, "--dry-run"),
            "copy": ("embed", model, "--key", self.key, "-o", out),
            "claim": ("claim", model, "--key", self.key, "-o", out.with_suffix(".json")),
        }
        return call(*commands[way])

    def check_after(self, folder: Path) -> str:
        """Exactly the old or exactly the new content, claim and anchor included; give which."""
        now = self.content_of(folder)
        assert now in (self.old, self.new), set(now)
        if now == self.new:
            claim = Claim.load(folder / self.claim)
            verdict = verify(folder / self.name, Key.load(self.key), claim=claim)
            assert verdict.verified
            assert verdict.checkpoint_digest == claim.marked_digest
            assert now[self.anchor] == claim.anchor_digest
        again = call("recover", folder / self.name)
        assert "nothing to recover" in again.out
        return "new" if now == self.new else "old"

    def check_reading(self, folder: Path) -> None:
        """What only reads a model never recovers it, and changes nothing."""
        before = content_of(folder)
        way = READING[sum(map(ord, folder.name)) % len(READING)]
        self.recover(folder, way).failed(3, "InterruptedEmbedError")
        assert content_of(folder) == before

    def check(self, folder: Path, way: str) -> tuple[str, str]:
        before = self.check_before(folder)
        left = any("nmjournal" in name or "nmdraft" in name for name in content_of(folder))
        if before == "interrupted":
            self.check_reading(folder)
        result = self.recover(folder, way)
        said = result.out if way == "recover" else result.err
        assert result.code in (0, 1), result
        done = {"undid": "old", "completed": "new", "removed an unfinished journal": "old"}
        told = [state for words, state in done.items() if words in said]
        after = self.check_after(folder)
        assert told == ([after] if left else []), (said, after)
        return before, after


@pytest.mark.parametrize("sharded", [False, True])
def test_killed_at_every_step(tmp_path: Path, sharded: bool) -> None:
    states = States(tmp_path, sharded)
    work = tmp_path / "work"
    number = killed_at_every_step("embed", states.pristine, work, states.name, states.key)
    folders = sorted(work.iterdir())
    assert number > 10
    states.new = states.content_of(folders[-1])
    assert set(states.new) == {*states.old, states.claim, states.anchor}
    seen = [states.check(folder, "recover") for folder in folders]
    assert seen[0] == ("old", "old")
    assert seen[-1] == ("new", "new")
    assert {("interrupted", "old"), ("interrupted", "new")} <= set(seen)
    # once the new bytes are reached, no later crash leads back
    ends = [after for _, after in seen]
    assert ends == sorted(ends, reverse=True)


@pytest.mark.parametrize("sharded", [False, True])
def test_killed_while_recovering(tmp_path: Path, sharded: bool) -> None:
    states = States(tmp_path, sharded)
    work = tmp_path / "work"
    killed_at_every_step("embed", states.pristine, work, states.name, states.key)
    folders = sorted(work.iterdir())
    states.new = states.content_of(folders[-1])
    undo = next(f for f in reversed(folders) if list(f.rglob("*.nmjournal")))
    redo = next(f for f in reversed(folders) if list(f.rglob("*.nmjournal.done")))
    for crashed, end in ((undo, "old"), (redo, "new")):
        second = tmp_path / end
        assert killed_at_every_step("recover", crashed, second, states.name, states.key) > 3
        for folder in sorted(second.iterdir()):
            assert states.check(folder, "recover")[1] == end


# Runs the command line; kills itself before the n-th line that the journal and its files run,
# and without n says how many lines there are.
LINES = """
import os, signal, sys
limit, count = int(sys.argv.pop(1)), 0

def trace(frame, event, arg):
    return line if "neuralmark/storage/" in frame.f_code.co_filename else None

def line(frame, event, arg):
    global count
    if event == "line":
        if count == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
    return line

from neuralmark.cli import main
sys.settrace(trace)
try:
    main()
finally:
    sys.settrace(None)
    print(count, file=sys.stderr)
"""


def killed_at_line(line: int, model: Path, key: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, "-c", LINES, str(line), "embed", model, "--key", key, "--in-place"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("sharded", [False, True])
def test_killed_between_lines(tmp_path: Path, sharded: bool) -> None:
    """A command, killed from within at moments that are the same in every run."""
    states = States(tmp_path, sharded)
    shutil.copytree(states.pristine, tmp_path / "whole")
    whole = killed_at_line(-1, tmp_path / "whole" / states.name, states.key)
    assert whole.returncode == 0, whole.stderr
    states.new = states.content_of(tmp_path / "whole")
    lines = int(whole.stderr.splitlines()[-1])
    assert lines > 100
    seen = set()
    for line in sorted(random.Random(7).sample(range(lines), 14)):
        folder = tmp_path / f"line-{line}"
        shutil.copytree(states.pristine, folder)
        done = killed_at_line(line, folder / states.name, states.key)
        assert done.returncode == -signal.SIGKILL, (line, done.stderr)
        try:
            seen.add(states.check(folder, "recover"))
        except AssertionError as error:
            error.add_note(f"killed before line {line} of {lines}")
            raise
    assert ("interrupted", "old") in seen


def test_two_at_once(tmp_path: Path) -> None:
    model, key = gaussian_model(tmp_path / "m.safetensors"), plain_key(tmp_path / "k.nmkey")
    started, go = tmp_path / "started", tmp_path / "go"
    wait = (
        f"import pathlib, time\npathlib.Path({str(started)!r}).touch()\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    )
    (tmp_path / "wait.py").write_text(wait)
    options = ("--in-place", "--strength", 1, "--check", f"{PYTHON} {tmp_path / 'wait.py'}")
    first = subprocess.Popen(
        command_line("embed", model, "--key", key, *options),
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    while not started.exists() and first.poll() is None:
        time.sleep(0.01)
    second = call("embed", model, "--key", key, "--in-place")
    assert "another process is marking it" in second.failed(2, "OutputError")
    go.touch()
    assert first.wait(timeout=PATIENCE) == 0
    assert first.stderr is not None
    first.stderr.close()
    assert call("verify", model, "--key", key).code == 0


@pytest.fixture
def crashed(tmp_path: Path) -> States:
    """Folders of a single model, one for each moment of a crash."""
    states = States(tmp_path, sharded=False)
    killed_at_every_step("embed", states.pristine, tmp_path / "work", states.name, states.key)
    return states


def test_damaged_journal(crashed: States, tmp_path: Path) -> None:
    folders = sorted((tmp_path / "work").iterdir())
    for ending in (".nmjournal", ".nmjournal.done"):
        folder = next(f for f in folders if (f / f"model.safetensors{ending}").exists())
        journal, model = folder / f"model.safetensors{ending}", folder / "model.safetensors"
        whole, weights = journal.read_bytes(), model.read_bytes()
        cases = [whole[:n] for n in (0, 1, 8, 16, 40, 1000, len(whole) - 1)]
        cases += [bytes(len(whole)), whole + b"x", whole[:100] + b"?" + whole[101:]]
        for damaged in cases:
            journal.write_bytes(damaged)
            assert "damaged" in call("recover", model).failed(3, "InterruptedEmbedError")
            call("inspect", model).failed(3, "InterruptedEmbedError")
            call("verify", model, "--key", crashed.key).failed(3, "InterruptedEmbedError")
            assert model.read_bytes() == weights
            assert journal.read_bytes() == damaged
        journal.write_bytes(whole)
        assert call("recover", model).code == 0


def test_recover_in_words(crashed: States, tmp_path: Path) -> None:
    folders = sorted((tmp_path / "work").iterdir())
    folder = next(f for f in folders if list(f.glob("*.nmjournal")))
    told = call("recover", folder / crashed.name, "--json").json
    assert told["recovered"] is True
    assert "old weights are back" in told["message"]
    told = call("recover", folder / crashed.name, "--json").json
    assert told == {"recovered": False, "message": None}
    call("recover", folder / "no.safetensors").failed(3, "CheckpointError")


def test_one_file_of_a_folder(crashed: States, tmp_path: Path) -> None:
    # the file's journal speaks for the folder, and the folder's for the file
    folders = sorted((tmp_path / "work").iterdir())
    folder = next(f for f in folders if list(f.glob("*.nmjournal")))
    model = folder / crashed.name
    line = call("verify", folder, "--key", crashed.key).failed(3, "InterruptedEmbedError")
    assert f"neuralmark recover {model}" in line
    Path(f"{model}.nmjournal").rename(folder / ".neuralmark.nmjournal")
    line = call("verify", model, "--key", crashed.key).failed(3, "InterruptedEmbedError")
    assert f"'neuralmark recover {folder}'" in line
