"""The program for the kernel: numbers of system calls, and what it answers."""

import ctypes
import ctypes.util
import os
import struct

import pytest

from neuralmark.sandbox.calls import ABSENT, CHECKED, FREE, MACHINES, program

ALLOW, REFUSE, NO_SUCH = 0x7FFF0000, 0x00050001, 0x00050026


def answer(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the program says of a call: an interpreter of the few instructions that it has."""
    code = program(machine, 77)
    assert code is not None
    steps = list(struct.iter_unpack("=HBBI", code))
    chip = MACHINES[machine][1] if architecture is None else architecture
    filled = (*arguments, *(0,) * 6)[:6]
    data = struct.pack("=IIQ6Q", number, chip, 0, *filled)
    at = held = 0
    while True:
        kind, yes, no, value = steps[at]
        at += 1
        if kind == 0x20:
            (held,) = struct.unpack_from("=I", data, value)
        elif kind == 0x54:
            held &= value
        elif kind == 0x15:
            at += yes if held == value else no
        else:
            assert kind == 0x06
            return int(value)


@pytest.mark.skipif(ctypes.util.find_library("seccomp") is None, reason="needs libseccomp")
def test_numbers_are_those_of_the_kernel() -> None:
    library = ctypes.CDLL(ctypes.util.find_library("seccomp"))
    for name, numbers in {**FREE, **CHECKED, **ABSENT}.items():
        for column, chip in MACHINES.values():
            found = library.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(chip), name.encode())
            assert (found if found >= 0 else None) == numbers[column], name


@pytest.mark.parametrize("machine", list(MACHINES))
def test_what_is_listed_is_allowed_and_nothing_else(machine: str) -> None:
    column = MACHINES[machine][0]
    listed = {numbers[column]: ALLOW for numbers in FREE.values()}
    listed |= {numbers[column]: NO_SUCH for numbers in ABSENT.values()}
    asked = {numbers[column] for numbers in CHECKED.values()}
    for number in (*range(600), *(0x40000000 + n for n in range(600))):
        if number not in asked:
            assert answer(machine, number) == listed.get(number, REFUSE), number


def test_another_architecture_is_refused() -> None:
    assert answer("x86_64", 0) == ALLOW
    assert answer("x86_64", 0, architecture=0x40000003) == REFUSE


@pytest.mark.parametrize("machine", list(MACHINES))
def test_arguments_are_looked_at(machine: str) -> None:
    column = MACHINES[machine][0]
    number = {name: numbers[column] or 0 for name, numbers in CHECKED.items()}
    assert answer(machine, number["openat"], 0, 0, os.O_RDONLY | os.O_CLOEXEC) == ALLOW
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND, os.O_TMPFILE):
        assert answer(machine, number["openat"], 0, 0, flags) == REFUSE
    assert answer(machine, number["clone"], 0x003D0F00) == ALLOW  # a thread of glibc's
    assert answer(machine, number["clone"], 0x01200011) == REFUSE  # a fork
    assert answer(machine, number["tgkill"], 77) == ALLOW
    assert answer(machine, number["tgkill"], 78) == REFUSE
    assert answer(machine, number["prlimit64"], 0) == ALLOW
    assert answer(machine, number["prlimit64"], 78) == REFUSE
    assert answer(machine, number["ioctl"], 0, 0x5401) == ALLOW
    assert answer(machine, number["ioctl"], 0, 0x5412) == REFUSE  # typing into a terminal
    assert answer(machine, number["fcntl"], 0, 1030) == ALLOW
    assert answer(machine, number["fcntl"], 0, 8) == REFUSE  # whom to send signals
    assert answer(machine, number["prctl"], 15) == ALLOW
    assert answer(machine, number["prctl"], 4) == REFUSE


def test_an_unknown_machine_has_no_program() -> None:
    assert program("abacus", 1) is None
