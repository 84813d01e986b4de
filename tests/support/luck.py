"""The same luck in every run: what a test draws follows from its name, not from the clock.

`random`, numpy's and torch's global generators and the secrets of new keys begin anew for each test
and for each fixture. To try other luck, set NEURALMARK_TEST_SEED to any other text: every name then
begins elsewhere, and hypothesis looks for new examples (it prints the one that fails).
"""

import os
import random
import sys
import zlib

import numpy as np
from hypothesis import settings

SEED = os.environ.get("NEURALMARK_TEST_SEED", "")


class Dice:
    """In the place of the module `secrets` where keys are made."""

    def __init__(self) -> None:
        self._random = random.Random(SEED)

    def begin(self, seed: int) -> None:
        """Go to the beginning of what follows from the seed."""
        self._random.seed(seed)

    def token_bytes(self, count: int) -> bytes:
        """As `secrets.token_bytes`, for tests only."""
        return self._random.randbytes(count)


DICE = Dice()


def begin(name: str) -> None:
    """Begin the luck that belongs to this name."""
    seed = zlib.crc32(f"{SEED}/{name}".encode())
    DICE.begin(seed)
    random.seed(seed)
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


def load() -> None:
    """Give new keys our dice, and hypothesis the same examples in every run."""
    from neuralmark.keys import key

    vars(key)["secrets"] = DICE
    settings.register_profile("same", derandomize=True, database=None)
    settings.register_profile("explore", print_blob=True)
    settings.load_profile("explore" if SEED else "same")
