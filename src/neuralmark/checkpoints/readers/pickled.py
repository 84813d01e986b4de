"""Reading pickle streams without running them.

A pickle is a program; Python's own reader imports modules and calls functions for it. Here the
opcodes are walked by a small stack machine that only builds inert records: a name stays a name
(`Global`), a call stays a note of the call (`Call`). Nothing is imported, nothing is called.

Shared parts make a small pickle stand for an exponentially large structure, so nothing here
compares, hashes, prints or walks a container; whoever walks the result must keep a budget.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neuralmark.checkpoints.readers.inert import Call, Global, Opaque, Persistent, Reader
from neuralmark.errors import MalformedError, UnsafeError

MAX_OPCODES = 2_000_000
_MAX_INT_BITS = 256
_MAX_KEY_BITS = 60
_ORDERED = ("collections", "OrderedDict")


@dataclass(frozen=True, eq=False, slots=True)
class Pickle:
    """What a stream describes, and every persistent reference in it."""

    value: Any
    persistents: list[Persistent]


def load(reader: Reader, most: int | None = None) -> Pickle:
    """Read one pickle, of at most so many opcodes; the reader then stands behind it."""
    machine = _Machine()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in text opcodes
            machine.run(reader, MAX_OPCODES if most is None else most)
        return Pickle(machine.result(), machine.persistents)
    except UnsafeError as error:
        raise UnsafeError(f"{reader.name}: {error}") from None
    except _Fault as fault:
        raise MalformedError(f"{reader.name}: its pickle is damaged ({fault})") from None
    except IndexError:
        raise MalformedError(f"{reader.name}: its pickle takes more than it puts") from None
    except (ValueError, OverflowError, EOFError) as error:
        why = str(error)[:120]
        raise MalformedError(f"{reader.name}: its pickle is damaged ({why})") from None


class _Fault(Exception):
    """The stream asks for something that makes no sense."""


_LITERALS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_SET": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
}
_SCALARS = re.compile(
    r"(BIN)?INT[12]?|LONG[14]?|(BIN)?FLOAT|(SHORT_)?(BIN)?(STRING|UNICODE8?|BYTES8?)"
)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_ALIASES = {
    **{"BINPUT": "PUT", "LONG_BINPUT": "PUT", "BINGET": "GET", "LONG_BINGET": "GET"},
    **{"FRAME": "PROTO", "STOP": "PROTO", "ADDITEMS": "APPENDS", "FROZENSET": "LIST"},
    **{"NEWOBJ": "REDUCE", "BYTEARRAY8": "BINBYTES"},
}


class _Machine:
    """The pickle machine: a stack, marks in it, and a memo. Sets are kept as lists."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._copied = 0
        self.persistents: list[Persistent] = []

    def run(self, reader: Reader, most: int) -> None:
        """Carry out the opcodes up to the end of the pickle."""
        import pickletools

        for count, (opcode, argument, _) in enumerate(pickletools.genops(reader)):  # type: ignore[arg-type]
            if count >= most:
                raise UnsafeError(f"its pickle has over {most:,} opcodes")
            self._step(opcode.name, argument)

    def _step(self, opcode: str, argument: Any) -> None:
        opcode = _ALIASES.get(opcode, opcode)
        if opcode in _LITERALS:
            self._stack.append(_LITERALS[opcode]())
        elif opcode in _TUPLES:
            self._shut(_TUPLES[opcode])
        elif opcode in _PLAIN:
            _PLAIN[opcode](self)
        elif opcode in _WITH_ARGUMENT:
            _WITH_ARGUMENT[opcode](self, argument)
        elif _SCALARS.fullmatch(opcode):
            self._stack.append(_scalar(argument))
        else:
            raise _Fault(f"the opcode {opcode} has no place in a checkpoint")

    def result(self) -> Any:
        """Take what is left at the end: exactly one value."""
        if self._below or len(self._stack) != 1:
            raise _Fault("it does not end with one value")
        return self._stack[0]

    def _pop_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._below.pop()
        return items

    def _mark(self) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _pop(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._pop_mark()

    def _dup(self) -> None:
        self._stack.append(self._stack[-1])

    def _put(self, index: int) -> None:
        if not 0 <= index < 1 << 32:
            raise _Fault("a memo index is out of range")
        self._memo[index] = self._stack[-1]

    def _memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _get(self, index: int) -> None:
        if index not in self._memo:
            raise _Fault("it refers to something it never stored")
        self._stack.append(self._memo[index])

    def _list(self) -> None:
        items = self._pop_mark()
        self._stack.append(items)

    def _tuple(self) -> None:
        items = self._pop_mark()
        self._stack.append(tuple(items))

    def _shut(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def _dict(self) -> None:
        items = self._pop_mark()
        self._stack.append(_put_items({}, items))

    def _setitem(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        _put_items(_table(self._stack[-1]), [key, value])

    def _setitems(self) -> None:
        items = self._pop_mark()
        _put_items(_table(self._stack[-1]), items)

    def _append(self) -> None:
        item = self._stack.pop()
        _extend(self._stack[-1], [item])

    def _appends(self) -> None:
        items = self._pop_mark()
        _extend(self._stack[-1], items)

    def _global(self, argument: str) -> None:
        self._stack.append(_named(argument))

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise _Fault("a name to import is not text")
        self._stack.append(Global(module, name))

    def _reduce(self) -> None:
        args, function = self._stack.pop(), self._stack.pop()
        self._stack.append(self._call(function, args))

    def _newobj_ex(self) -> None:
        self._stack.pop()
        self._reduce()

    def _inst(self, argument: str) -> None:
        args = self._pop_mark()
        self._stack.append(self._call(_named(argument), tuple(args)))

    def _obj(self) -> None:
        function, *args = self._pop_mark() or [None]
        self._stack.append(self._call(function, tuple(args)))

    def _call(self, function: Any, args: Any) -> Any:
        """Note the call, or make the dictionary where an ordered one is asked for."""
        if not isinstance(function, Global | Call | Persistent) or not isinstance(args, tuple):
            raise _Fault("it calls something that is not a function")
        if not isinstance(function, Global) or not function.is_named(*_ORDERED):
            return Call(function, args)
        pairs = args[0] if args and isinstance(args[0], list | tuple) else ()
        self._copied += len(pairs)
        if self._copied > MAX_OPCODES:
            raise UnsafeError("its pickle copies the same entries again and again")
        flat = [part for pair in pairs if isinstance(pair, list | tuple) for part in pair[:2]]
        return _put_items({}, flat)

    def _build(self) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if isinstance(target, Call):
            target.state = state
        elif not isinstance(target, dict | list):
            raise _Fault("it gives a state to something that has none")

    def _binpersid(self) -> None:
        self._persid(self._stack.pop())

    def _persid(self, value: Any) -> None:
        self.persistents.append(Persistent(value))
        self._stack.append(self.persistents[-1])


def _skip(machine: _Machine, argument: Any) -> None:
    """Pass over what only matters to a program that runs the stream."""


_OPCODES = (
    "POP_MARK MARK POP DUP MEMOIZE LIST TUPLE DICT SETITEM SETITEMS APPEND APPENDS STACK_GLOBAL"
    " REDUCE NEWOBJ_EX OBJ BUILD BINPERSID"
)
_PLAIN: dict[str, Callable[[_Machine], Any]] = {
    opcode: getattr(_Machine, "_" + opcode.lower()) for opcode in _OPCODES.split()
}
_WITH_ARGUMENT: dict[str, Callable[[_Machine, Any], None]] = {
    **{opcode: getattr(_Machine, "_" + opcode.lower()) for opcode in ("PUT", "GET", "GLOBAL")},
    **{"INST": _Machine._inst, "PERSID": _Machine._persid, "PROTO": _skip},
}


def _scalar(value: Any) -> Any:
    """Keep the value, unless it is a number so long that arithmetic on it would be a burden."""
    if isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
        return Opaque()
    return bytes(value) if isinstance(value, bytearray) else value


def _named(argument: str) -> Global:
    parts = argument.split(" ")
    if len(parts) != 2:
        raise _Fault("a name to import is not one module and one name")
    return Global(*parts)


def _table(target: Any) -> dict[Any, Any]:
    if isinstance(target, Call):
        return target.items
    if not isinstance(target, dict):
        raise _Fault("it puts an entry into something that is not a dictionary")
    return target


def _put_items(table: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise _Fault("a dictionary has a key without a value")
    for index in range(0, len(items), 2):
        table[_key(items[index])] = items[index + 1]
    return table


def _key(key: Any) -> Any:
    """Keep a scalar; anything else is not hashed (it may be exponentially large)."""
    if isinstance(key, int):
        return key if key.bit_length() <= _MAX_KEY_BITS else Opaque()
    return key if key is None or isinstance(key, str | bytes | float) else Opaque(key)


def _extend(target: Any, items: list[Any]) -> None:
    """Let a list grow; what is put into an object made by a call is dropped."""
    if isinstance(target, list):
        target.extend(items)
    elif not isinstance(target, Call):
        raise _Fault("it appends to something that is not a list")
