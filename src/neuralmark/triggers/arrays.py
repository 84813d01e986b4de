"""Arrays of any library, and of files, as what triggers hold: float32 or int64, labels in int64.

Nothing is changed in silence: what would lose a part (complex numbers), overflow, or be guessed at
is refused, in a file as in Python.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from neuralmark.core.triggers import Inputs, Labels
from neuralmark.errors import TriggerError

Plain = npt.NDArray[Any]


def inputs_of(given: Any, where: str = "") -> Inputs:
    """Inputs in float32, or int64 where they are whole numbers; `where` begins what is raised.

    >>> inputs_of([[0.5, 0.25]]).dtype, inputs_of([[3, 1]]).dtype
    (dtype('float32'), dtype('int64'))
    """
    array = _plain(given, f"{where}triggers must be arrays of numbers")
    if array.dtype.kind == "f":
        return _single(array, where)
    # A byte is a pixel as a rule, which no network takes as it is stored: whether it is to be
    # scaled, and how, or is a token after all, only the owner knows. So nobody guesses.
    if array.dtype.itemsize == 1 and array.dtype.kind in "iu":
        raise TriggerError(
            f"{where}triggers must be numbers as the model takes them, not {array.dtype}: give"
            " pixels in float32, scaled as for the model, and tokens in int64"
        )
    if array.dtype.kind in "iu":
        return _long(array, f"{where}triggers")
    raise TriggerError(
        f"{where}triggers must be floating-point numbers or int64, as the model takes them, not"
        f" {array.dtype}"
    )


def labels_of(given: Any, where: str = "") -> Labels:
    """Labels in int64: whole numbers of any width.

    >>> labels_of([2, 0]).tolist()
    [2, 0]
    """
    wrong = f"{where}labels must be whole numbers, one for each input"
    array = _plain(given, wrong)
    if array.size and array.dtype.kind not in "iu":
        raise TriggerError(f"{wrong}, not {array.dtype}")
    return _long(array, f"{where}labels")


def _plain(given: Any, wrong: str) -> Plain:
    """As numpy has it: tensors of torch without their graph, short floats widened."""
    try:
        if isinstance(given, list | tuple):
            given = [_detached(each) for each in given]
        array = np.asarray(_detached(given))
    except (TypeError, ValueError, RuntimeError) as error:
        said = (str(error).splitlines() or [""])[0][:120]
        raise TriggerError(f"{wrong} ({said})") from None
    widened: Plain = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    return widened


def _detached(given: Any) -> Any:
    """A tensor of torch as one that numpy takes; whatever else it is as it is."""
    if not hasattr(given, "detach"):
        return given
    tensor = given.detach().cpu()
    short = tensor.is_floating_point() and tensor.element_size() < 4
    return (tensor.float() if short else tensor).numpy()


def _single(array: Plain, where: str) -> npt.NDArray[np.float32]:
    """In float32, all of it finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        made = array.astype(np.float32)
        ends = [made.min(), made.max()] if made.size else []
    if np.isfinite(ends).all():
        return made
    sound = np.isfinite(np.atleast_1d(made)).reshape(made.shape[0] if made.ndim else 1, -1)
    row = int(np.flatnonzero(~sound.all(1))[0])
    there = np.atleast_1d(array)[row]
    if np.isfinite(there).all():
        raise TriggerError(
            f"{where}input {row} holds numbers too large for float32 (up to"
            f" {float(np.abs(there).max()):.3g}): scale the inputs as the model takes them"
        )
    raise TriggerError(f"{where}input {row} holds NaN or infinity: leave it out, or mend it")


def _long(array: Plain, what: str) -> npt.NDArray[np.int64]:
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise TriggerError(f"{what} hold {int(array.max())}, too large for int64")
    made: npt.NDArray[np.int64] = array.astype(np.int64)
    return made
