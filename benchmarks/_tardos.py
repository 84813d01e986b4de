"""Tardos' fingerprinting code in its symmetric form, from the mathematics (nothing else was read).

G. Tardos, Optimal probabilistic fingerprint codes (STOC 2003); B. Skoric, S. Katzenbeisser,
M. Celik, Symmetric Tardos fingerprinting codes for arbitrary alphabet sizes (2008). Position i has
a secret bias p, drawn from the arcsine law and cut off near 0 and 1; a buyer's bit there is 1 with
chance p. Of a pirated word y, a buyer's score is the sum over all positions of

    y = 1:  +sqrt((1-p)/p) for a 1,  -sqrt(p/(1-p)) for a 0
    y = 0:  +sqrt(p/(1-p)) for a 0,  -sqrt((1-p)/p) for a 1

For an innocent buyer, whose word is independent of y, each position adds mean 0 and variance 1.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Word = npt.NDArray[np.uint8]

CUT = 300.0
"""Tardos' cut-off is 1/(300 c) for c colluders."""


@dataclass(frozen=True, eq=False)
class TardosCode:
    """The biases and the words of all buyers; secret."""

    biases: Floats
    words: npt.NDArray[np.uint8]

    @classmethod
    def new(
        cls, buyers: int, length: int, colluders: int, rng: np.random.Generator
    ) -> "TardosCode":
        """A code for so many buyers, against so many colluders."""
        edge = math.asin(math.sqrt(1 / (CUT * colluders)))
        biases = np.sin(rng.uniform(edge, math.pi / 2 - edge, length)) ** 2
        words = (rng.random((buyers, length)) < biases).astype(np.uint8)
        return cls(biases, words)

    def scores(self, pirated: Word) -> Floats:
        """The score of every buyer."""
        one, zero = self._steps(pirated)
        found: Floats = np.where(self.words == 1, one, zero).sum(axis=1)
        return found

    def bounds_log2(self, pirated: Word) -> Floats:
        """log2 of the chance, at most, that an innocent buyer has each buyer's score: Chernoff's.

        The biases and the pirated word are given; an innocent word is independent of the latter.
        """
        one, zero = self._steps(pirated)
        rates = np.geomspace(1e-3, 2.0, 160)
        grown = np.array(
            [
                np.logaddexp(np.log(self.biases) + r * one, np.log1p(-self.biases) + r * zero).sum()
                for r in rates
            ]
        )
        tried = grown[:, None] - rates[:, None] * self.scores(pirated)[None]
        best: Floats = np.minimum(tried.min(axis=0), 0.0) / math.log(2)
        return best

    def _steps(self, pirated: Word) -> tuple[Floats, Floats]:
        """What a 1 and a 0 count at each position."""
        up = np.sqrt((1 - self.biases) / self.biases)
        one = np.where(pirated == 1, up, -up)
        zero = np.where(pirated == 1, -1 / up, 1 / up)
        return one, zero
