"""Letting the owner's own evaluation decide how strong a mark may be."""

import math
from pathlib import Path

from neuralmark.errors import CheckFailedError
from neuralmark.marking.drafting import Draft
from neuralmark.marking.options import Check
from neuralmark.storage import files


def strongest(drafted: Draft, check: Check, target: Path, *, fixed: bool) -> Draft:
    """The strongest mark whose candidate passes the owner's check, within about 10 %.

    A strength the owner named is the most that is tried; otherwise stronger ones are tried too.
    """

    def passes(candidate: Draft) -> bool:
        path = files.beside(target, "nmcheck")
        try:
            with files.writing(path):
                candidate.checkpoint.write(path, candidate.edits())
            return check(path)
        finally:
            with files.uninterrupted():
                files.remove(path)

    good, bad = (drafted, None) if passes(drafted) else (None, drafted.strength)
    factor = 0.5 if good is None else 2.0
    for _ in range(0 if fixed and good else 4):
        candidate = drafted.at((good.strength if good else bad or 1.0) * factor)
        if passes(candidate):
            good = candidate
            if factor < 1:
                break
        else:
            bad = candidate.strength
            if factor > 1:
                break
    if good is None:
        raise CheckFailedError(
            f"no mark passed the check, not even strength {bad:.3g}; nothing was written"
        )
    for _ in range(3 if bad is not None else 0):
        candidate = drafted.at(math.sqrt(good.strength * (bad or 1.0)))
        if passes(candidate):
            good = candidate
        else:
            bad = candidate.strength
    return good
