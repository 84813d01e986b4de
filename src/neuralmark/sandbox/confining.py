"""What a process does to itself before it reads anything: afterwards it cannot go back."""

import ctypes
import os
import platform
import resource
import struct
import sys
import time
from typing import Any

from neuralmark.sandbox.calls import program

_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER, _DEATH_SIGNAL = 38, 22, 2, 1
_KILL = 9
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446
_WRITING = 0x1FFE & ~0b1100
"""Every right of Landlock's first version but to execute, to read files and folders."""
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_TCP = 0b11
_ALL_SCOPES = 0b11
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000


def confine(memory: int, files: int) -> dict[str, str]:
    """Give up all that a reader does not need; tells by what each thing is prevented.

    Args:
        memory: Bytes of address space.
        files: Files that are open at a time.

    Returns:
        What prevents `network`, `writing` and `processes`; nothing where nothing does.
    """
    sys.dont_write_bytecode = True
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NOFILE, files)
    _limit(resource.RLIMIT_AS, memory)
    found: dict[str, list[str]] = {"network": [], "writing": [], "processes": []}
    if sys.platform == "linux":
        library = ctypes.CDLL(None, use_errno=True)
        library.prctl(_DEATH_SIGNAL, _KILL, 0, 0, 0)
        library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        version = _landlocked(library)
        if version:
            found["writing"].append("Landlock")
        if _filtered(library):
            for each in found.values():
                each.insert(0, "seccomp")
        elif _alone(library):
            found["network"].append("a namespace")
        elif version >= 4:
            found["network"].append("Landlock, TCP only")
    return {name: " and ".join(by) for name, by in found.items()}


def allow_seconds(seconds: float) -> None:
    """Give the process this much more time of the processor; what takes longer is killed."""
    used = time.process_time()
    soft = int(used + seconds) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    most = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (most, hard))


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


def _filtered(library: Any) -> bool:
    """Whether the kernel took the filter of system calls."""
    code = program(platform.machine(), os.getpid())
    if code is None:
        return False
    held = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held))
    asked = ctypes.create_string_buffer(head, len(head))
    return bool(library.prctl(_SECCOMP, _FILTER, asked, 0, 0) == 0)


def _landlocked(library: Any) -> int:
    """The version of Landlock that now forbids all writing, TCP and signals to others; 0: none."""
    version = library.syscall(_LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return 0
    rights = _WRITING | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    rules = struct.pack(
        "=QQQ", rights, _TCP if version >= 4 else 0, _ALL_SCOPES if version >= 6 else 0
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    handle = library.syscall(_LANDLOCK_CREATE, ctypes.create_string_buffer(rules, 24), size, 0)
    if handle < 0:
        return 0
    done = library.syscall(_LANDLOCK_RESTRICT, handle, 0) == 0
    os.close(handle)
    return int(version) if done else 0


def _alone(library: Any) -> bool:
    """Whether the process got a network of its own, with nothing in it."""
    return bool(library.unshare(_NEW_USER | _NEW_NETWORK) == 0)
