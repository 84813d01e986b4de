"""The life of a sandboxed process: give everything up, then read what it is told to read.

Started by `confined` as `python -m neuralmark.sandbox.child CHANNEL MEMORY FILES`. What it is told
comes from its parent, which it trusts; what it answers is JSON, since its parent does not.
"""

import json
import pickle
import signal
import sys
from collections.abc import Callable
from typing import Any

from neuralmark.sandbox.channel import receive, send
from neuralmark.sandbox.confining import allow_seconds, confine

READY, DONE, FAILED, PROGRESS, ASK = b"C", b"D", b"F", b"P", b"A"
"""What the process says: confined, done, failed, how far it is, a question."""
TASK, BYTES, REFUSED = b"T", b"B", b"X"
"""What its parent says: a function and its arguments; the answer to a question, or a refusal."""

LONGEST_REASON = 2000

_channel = -1


def sandboxed() -> bool:
    """Whether this process is a sandboxed one."""
    return _channel >= 0


def ask(question: str, *arguments: Any) -> bytes:
    """Ask the parent for what this process cannot reach; errors come back under their names."""
    send(_channel, ASK, json.dumps([question, *arguments]).encode())
    kind, body = receive(_channel)
    if kind == BYTES:
        return body
    from neuralmark.sandbox.confined import error_of

    raise error_of(json.loads(body))


def tell(what: str, done: int, total: int) -> None:
    """Tell the parent how far the work is."""
    send(_channel, PROGRESS, json.dumps([what, done, total]).encode())


def told(error: BaseException) -> dict[str, str]:
    """An error as it travels: its name, and what it says."""
    return {"error": type(error).__name__, "message": str(error)[:LONGEST_REASON]}


def main(channel: int, memory: int, files: int) -> None:
    """Serve until the parent is gone; without memory to keep to, unconfined."""
    global _channel
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    by = confine(memory, files) if memory else {}
    _channel = channel
    send(channel, READY, json.dumps(by).encode())
    while True:
        try:
            _, body = receive(channel)
        except EOFError:
            return
        send(channel, *_carried_out(body))


def _carried_out(body: bytes) -> tuple[bytes, bytes]:
    try:
        seconds, function, arguments = pickle.loads(body)  # noqa: S301 - from the parent
        allow_seconds(seconds)
        return DONE, json.dumps(function(*arguments), allow_nan=False).encode()
    except MemoryError:
        return FAILED, json.dumps({"error": "MemoryError", "message": ""}).encode()
    except BaseException as error:
        return FAILED, json.dumps(told(error)).encode()


Work = Callable[..., Any]
"""What can be carried out: a function that is found by its name, whose result is JSON."""

if __name__ == "__main__":
    # the module that others import is another one than this, and it must know the channel
    from neuralmark.sandbox import child

    child.main(*map(int, sys.argv[1:4]))
