"""Readers that do harm: functions for a sandboxed process, and a format that a model file can ask.

The format is a real plug-in: a distribution with an entry point, on the path of whoever is tested
and of the processes that it starts. A file of the format begins with `HOSTILE` and says what its
reader does.
"""

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import NoReturn

import pytest

FORMAT = '''
import os, signal, socket, subprocess, time
from pathlib import Path


def matches(path, head):
    return head.startswith(b"HOSTILE ")


def open(path):
    what, _, more = path.read_text().removeprefix("HOSTILE ").partition(" ")
    return globals()[what](path, more)


def allocate(path, more):
    return bytearray(1 << 40)


def loop(path, more):
    while True:
        pass


def connect(path, more):
    socket.create_connection(("127.0.0.1", int(more)))
    raise AssertionError("connected")


def write(path, more):
    Path(more).write_text("written")
    raise AssertionError("written")


def remove(path, more):
    Path(more).unlink()
    raise AssertionError("removed")


def start(path, more):
    subprocess.run(["/bin/true"])
    raise AssertionError("started")


def crash(path, more):
    __import__("ctypes").string_at(0)


def fault(path, more):
    return {}["no such thing"]


def kill_once(path, more):
    """Kill the process that started this one; the second time be a model."""
    marker, _, model = more.partition(" ")
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
    from neuralmark.checkpoints import open_checkpoint
    return open_checkpoint(model)
'''

ENTRY = "[neuralmark.checkpoints]\nhostile = hostile_format\n"


def install(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Put the format where Python finds it."""
    folder.mkdir()
    (folder / "hostile_format.py").write_text(FORMAT)
    told = folder / "hostile_format-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile-format\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(ENTRY)
    patch.syspath_prepend(str(folder))


def model(path: Path, what: str, more: object = "") -> Path:
    """A file whose reader does this."""
    path.write_text(f"HOSTILE {what} {more}")
    return path


# For a sandboxed process, without a file.


def fine(value: int) -> list[int]:
    return [value, os.getpid()]


def allocate() -> NoReturn:
    held = []
    while True:
        held.append(bytearray(32 << 20))


def allocate_array() -> float:
    import numpy as np

    return float(np.ones(1 << 30).sum())


def loop() -> NoReturn:
    while True:
        pass


def sleep() -> None:
    time.sleep(600)


def connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port)).close()


def datagram() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()


def write(path: str) -> None:
    Path(path).write_text("written")


def open_to(path: str, flags: int) -> None:
    os.close(os.open(path, flags))


def remove(path: str) -> None:
    Path(path).unlink()


def rename(path: str) -> None:
    Path(path).rename(f"{path}.away")


def make_folder(path: str) -> None:
    Path(path).mkdir()


def change_mode(path: str) -> None:
    Path(path).chmod(0)


def link(path: str) -> None:
    Path(f"{path}.link").symlink_to(path)


def fork() -> None:
    os.fork()


def execute() -> None:
    os.execv("/bin/true", ["true"])


def signal_parent() -> None:
    os.kill(os.getppid(), 9)


def crash() -> None:
    import ctypes

    ctypes.string_at(0)


def leave() -> None:
    os._exit(3)


def fault() -> None:
    raise LookupError("no such thing")


def named() -> None:
    from neuralmark.errors import MalformedError

    raise MalformedError("a truncated file")


def shout() -> None:
    """Something that is no message."""
    from neuralmark.sandbox import child

    os.write(child._channel, b"\xff" * 64)
    time.sleep(600)


def whisper() -> None:
    """A message that never ends."""
    from neuralmark.sandbox import child

    os.write(child._channel, (1000).to_bytes(5, "little") + b"D")
    time.sleep(600)


def not_json() -> object:
    return {1, 2}


def limits_raised() -> list[int]:
    """What is left of the limits after an attempt to raise them."""
    import resource

    found = []
    for what in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        found.append(resource.getrlimit(what)[1])
    return found


def environment() -> dict[str, str]:
    return dict(os.environ)


def asked(question: str, argument: int) -> str:
    from neuralmark.sandbox import child

    return child.ask(question, argument).decode()


def working() -> list[float]:
    """What honest readers need: arrays, threads, folders, lazy imports."""
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np
    import scipy.linalg

    with ThreadPoolExecutor(2) as pool:
        doubled = list(pool.map(lambda value: 2.0 * value, [1.0, 2.0]))
    listed = any(Path("/").iterdir())
    return [*doubled, float(scipy.linalg.svdvals(np.eye(40)).sum()), float(listed)]


def told() -> int:
    from neuralmark.sandbox import child

    for step in range(3):
        child.tell("counting", step, 3)
    return 3
