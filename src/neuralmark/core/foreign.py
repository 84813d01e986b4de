"""Code that is not ours: a network's `forward`, the function that makes it, what it imports.

It may raise whatever it likes, or end the program. Where it is run, what comes out of it is an
error with a name.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from neuralmark.errors import ModelCodeError, NeuralMarkError

LONGEST = 200
"""Letters of somebody else's message that are shown."""


@contextmanager
def guarded(whose: str, named: Callable[[str], NeuralMarkError]) -> Iterator[None]:
    """Around code that is not ours: `named` makes an error of the reason for which it failed.

    Our own errors pass through as they are, and so does a lack of memory. `whose` is what to call
    the code if it ends the program.
    """
    try:
        yield
    except (NeuralMarkError, MemoryError):
        raise
    except SystemExit as ended:
        code = "" if ended.code is None else repr(ended.code)[:LONGEST]
        raise ModelCodeError(
            f"{whose} ended the program (sys.exit({code})): take that out of it, and let it only"
            " compute"
        ) from None
    except Exception as error:
        raise named(reason_of(error)) from None


def reason_of(error: BaseException) -> str:
    """What was raised and what it says, in one line.

    >>> reason_of(KeyError("pixels"))
    "KeyError: 'pixels'"
    >>> reason_of(StopIteration())
    'StopIteration'
    """
    said = next(iter(str(error).splitlines()), "")[:LONGEST]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
