"""Which system calls a sandboxed process may make, as a program for the kernel (seccomp).

Everything that is not listed is refused (EPERM). Numbers are those of the kernel's tables for
x86_64 and aarch64; a test holds them against libseccomp.
"""

import os
import struct
from dataclasses import dataclass

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column of a machine in the tables below, and its name in seccomp's terms."""

FREE: dict[str, tuple[int | None, int | None]] = {
    # files and folders, to read; what was open before may be written: the channel
    **{"read": (0, 63), "readv": (19, 65), "pread64": (17, 67), "preadv": (295, 69)},
    **{"preadv2": (327, 286), "write": (1, 64), "writev": (20, 66), "close": (3, 57)},
    **{"close_range": (436, 436), "lseek": (8, 62), "fstat": (5, 80), "stat": (4, None)},
    **{"lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291), "statfs": (137, 43)},
    **{"fstatfs": (138, 44), "access": (21, None), "faccessat": (269, 48)},
    **{"faccessat2": (439, 439), "readlink": (89, None), "readlinkat": (267, 78)},
    **{"getdents": (78, None), "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49)},
    **{"fchdir": (81, 50), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24)},
    **{"pipe": (22, None), "pipe2": (293, 59), "fadvise64": (221, 223), "readahead": (187, 213)},
    # memory
    **{"mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226)},
    **{"madvise": (28, 233), "mincore": (27, 232), "msync": (26, 227), "brk": (12, 214)},
    **{"mlock": (149, 228), "munlock": (150, 229), "get_mempolicy": (239, 236)},
    **{"membarrier": (324, 283)},
    # waiting
    **{"poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72)},
    **{"epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None)},
    **{"epoll_pwait": (281, 22), "eventfd2": (290, 19), "futex": (202, 98)},
    **{"futex_waitv": (449, 449), "nanosleep": (35, 101), "clock_nanosleep": (230, 115)},
    **{"restart_syscall": (219, 128)},
    # threads and signals of its own
    **{"exit": (60, 93), "exit_group": (231, 94), "set_tid_address": (218, 96)},
    **{"set_robust_list": (273, 99), "get_robust_list": (274, 100), "rseq": (334, 293)},
    **{"arch_prctl": (158, None), "sched_yield": (24, 124), "sched_getaffinity": (204, 123)},
    **{"sched_getparam": (143, 121), "sched_getscheduler": (145, 120)},
    **{"sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126)},
    **{"getcpu": (309, 168), "getpriority": (140, 141), "rt_sigaction": (13, 134)},
    **{"rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136)},
    **{"rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132), "alarm": (37, None)},
    **{"setitimer": (38, 103), "getitimer": (36, 102)},
    # questions
    **{"gettid": (186, 178), "getpid": (39, 172), "getppid": (110, 173), "getpgrp": (111, None)},
    **{"getsid": (124, 156), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176)},
    **{"getegid": (108, 177), "getgroups": (115, 158), "getresuid": (118, 148)},
    **{"getresgid": (120, 150), "clock_gettime": (228, 113), "clock_getres": (229, 114)},
    **{"gettimeofday": (96, 169), "time": (201, None), "times": (100, 153)},
    **{"getrlimit": (97, 163), "getrusage": (98, 165), "sysinfo": (99, 179)},
    **{"uname": (63, 160), "getrandom": (318, 278)},
}
"""What is always allowed."""

CHECKED: dict[str, tuple[int | None, int | None]] = {
    **{"open": (2, None), "openat": (257, 56), "clone": (56, 220), "tgkill": (234, 131)},
    **{"prlimit64": (302, 261), "ioctl": (16, 29), "fcntl": (72, 25), "prctl": (157, 167)},
}
"""What is allowed with some arguments only (`_checks`)."""

ABSENT: dict[str, tuple[int | None, int | None]] = {
    **{"clone3": (435, 435), "openat2": (437, 437)},
}
"""What is said not to exist (ENOSYS): their arguments cannot be seen, and older calls do."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0o20000000
_THREAD = 0x00000100 | 0x00010000  # CLONE_VM, CLONE_THREAD
_IOCTLS = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)  # is it a terminal, bytes waiting, blocking
_FCNTLS = (0, 1, 2, 3, 4, 5, 1030)  # copies, flags, a lock that is asked about
_PRCTLS = (15, 16, 0x53564D41)  # names of threads and of memory

_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ALLOW, _REFUSE, _NO_SUCH = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38
_NUMBER, _ARCHITECTURE, _FIRST = 0, 4, 16
_INSTRUCTION = struct.Struct("=HBBI")


@dataclass(frozen=True)
class _Check:
    """The low half of an argument, under a mask, must be one of these."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


def _checks(pid: int) -> dict[str, _Check]:
    return {
        "open": _Check(1, (0,), _WRITES),
        "openat": _Check(2, (0,), _WRITES),
        "clone": _Check(0, (_THREAD,), _THREAD),
        "tgkill": _Check(0, (pid,)),
        "prlimit64": _Check(0, (0,)),
        "ioctl": _Check(1, _IOCTLS),
        "fcntl": _Check(1, _FCNTLS),
        "prctl": _Check(0, _PRCTLS),
    }


def program(machine: str, pid: int) -> bytes | None:
    """The instructions for a process of this number; None for a machine that is not known.

    >>> len(program("x86_64", 1)) % 8, program("abacus", 1)
    (0, None)
    """
    if machine not in MACHINES:
        return None
    column, architecture = MACHINES[machine]
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for numbers in FREE.values():
        steps += _answer(numbers[column], _ALLOW)
    for numbers in ABSENT.values():
        steps += _answer(numbers[column], _NO_SUCH)
    for name, check in _checks(pid).items():
        steps += _asked(CHECKED[name][column], check)
    steps.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(_INSTRUCTION.pack(*step) for step in steps)


_Steps = list[tuple[int, int, int, int]]


def _answer(number: int | None, answer: int) -> _Steps:
    return [] if number is None else [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, answer)]


def _asked(number: int | None, check: _Check) -> _Steps:
    """Allowed where the argument is right; refused where it is not."""
    if number is None:
        return []
    steps: _Steps = [(_LOAD, 0, 0, _FIRST + 8 * check.argument), (_AND, 0, 0, check.mask)]
    for left, value in zip(range(len(check.values), 0, -1), check.values, strict=True):
        steps.append((_EQUAL, left, 0, value))  # on to the allowing one
    steps += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUAL, 0, len(steps), number), *steps]
