"""ST-DM (Li, Tondi and Barni 2021): VanillaMark's projection, read through a sine.

A layer is averaged over its output channels and projected: z = Xᵀw̄. Bit j is 1 where
σ(α·sin(β·z_j)) is above one half, so cells of width π/β take turns: a lattice in place of one
boundary. The published α and β are 10, and X is Gaussian. `norm` fixes the length of X's columns,
as it multiplies β; 0 leaves them as they are drawn, about √M for M averaged weights. A raw key's
matrix is taken as it is.

A claimant who chooses X and the bits has no bound. Here X follows from the secret, and the bits are
hashed last, over everything that shapes the read-out: on a fixed model the signs are settled before
the bits are drawn.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from neuralmark.core import readout
from neuralmark.core.exact import Aim, ExactChange
from neuralmark.core.imprint import LeastChange
from neuralmark.core.key import NONE, Filter, Float, Mark, Parameters, Terms, hashed_bits
from neuralmark.core.readout import Array, Known, namespace
from neuralmark.errors import ParameterError
from neuralmark.schemes.contract import Facts
from neuralmark.schemes.vanillamark import VanillaMark

LOSSES = ("bce", "absolute")
PUBLISHED_WEIGHT = 16.0
"""What the published code really minimises is about this times the mean of |θ - b|."""
_ROOM = 0.9
"""A mark is written up to this share of the way from the boundary to the middle of a cell."""
_MOST = 1e6


class STDM(VanillaMark):
    """A lattice of half-period π/β over the secret projections."""

    facts: ClassVar[Facts] = Facts(
        origin="Li, Tondi and Barni 2021",
        bit="the sine of a projection of the layer averaged over its output channels",
        needs="the weights",
        survives="half pruned by size, noise, quantisation, fine-tuning; half pruned at random,"
        " scaling and rearranged channels with an anchor only; 90 % pruned or second"
        " marks in its layer destroy it",
        costs="files in seconds; in training a gradient up to α·β times as steep: strength 0.01",
        proves="nothing as published: matrix and bits are free; with a derived key the exact bound;"
        " no certified radius",
    )
    theory: ClassVar[str] = (
        "none as published: matrix and bits may be chosen freely, and a matrix that fits can be"
        " learnt for any model; a key that derives the matrix and hashes the bits last matches a"
        " foreign model like fair coins"
    )
    linear: ClassVar[bool] = False
    plain: ClassVar[bool] = False
    filters: ClassVar[tuple[Filter, ...]] = (NONE,)
    settings: ClassVar[Mapping[str, Any]] = {
        "alpha": 10.0,
        "beta": 10.0,
        "loss": "bce",
        "norm": 0.0,
    }

    def check(self, parameters: Parameters) -> None:
        """Numbers within reason, and a loss that there is."""
        super().check(parameters)
        for name in ("alpha", "beta"):
            if not 0 < parameters.setting(name) <= _MOST:
                raise ParameterError(f"{name} must be above 0 and at most {_MOST:g}")
        if not 0 <= parameters.setting("norm") <= _MOST:
            raise ParameterError(f"norm must be from 0 (as drawn) to {_MOST:g}")
        if parameters.setting("loss") not in LOSSES:
            raise ParameterError(
                f"loss must be {' or '.join(LOSSES)}, not {parameters.setting('loss')!r}"
            )

    def derive(self, secret: bytes, terms: Terms) -> Mark:
        """The matrix from the secret; the bits from the secret and all that shapes the read-out."""
        matrix = super().derive(secret, terms).matrix
        seed = terms.transcript(b"neuralmark/stdm/bits/1", secret)
        bits = hashed_bits(seed, terms.parameters.bits)
        return Mark(terms.parameters, _of_length(matrix, terms.parameters), bits)

    def widest(self, parameters: Parameters) -> float:
        """The first cells on both sides of zero."""
        return math.pi / float(parameters.setting("beta"))

    def logits(self, known: Known, pooled: Array) -> Array:
        """How far each z lies from the next boundary of the lattice; positive in cells of a 1."""
        return lattice_distance(pooled @ known.matrix, known.settings["beta"])

    def loss(self, known: Known, pooled: Array, step: int = 0) -> Array:
        """The cross-entropy of σ(α·sin(β·z)) against the bits, or 16 times its mean distance."""
        settings = known.settings
        xp = namespace(pooled)
        waves = settings["alpha"] * xp.sin(settings["beta"] * (pooled @ known.matrix))
        if settings["loss"] == "bce":
            return readout.loss(waves, known.bits)
        share = 0.5 * (1.0 + xp.tanh(0.5 * waves))
        return PUBLISHED_WEIGHT * abs(share - known.bits).mean()

    def solver(self, mark: Mark, effort: Float | float = 1.0) -> LeastChange:
        """To the nearest cell of the right kind, for every bit."""
        return ExactChange(mark, _Cells.of(mark), effort)


def lattice_distance(z: Array, beta: float) -> Array:
    """The distance of z to the next multiple of π/β, with the sign of sin(β·z).

    >>> [round(float(x), 3) for x in lattice_distance(np.array([0.1, 0.3, 0.4]), 10.0)]
    [0.1, 0.014, -0.086]
    """
    turns = z * (beta / math.pi)
    whole = namespace(z).round(turns)
    return (turns - whole) * (1.0 - 2.0 * (whole % 2)) * (math.pi / beta)


@dataclass(frozen=True, eq=False)
class _Cells(Aim):
    """Where each projection belongs: inside the nearest cell of its bit's kind."""

    beta: float
    scale: Float
    """What a distance is multiplied by to count as it would for columns of deviation 1."""

    @classmethod
    def of(cls, mark: Mark) -> "_Cells":
        basis = mark.matrix.astype(np.float64)
        beta = float(mark.parameters.setting("beta"))
        lengths = np.maximum(np.linalg.norm(basis, axis=0), 1e-30)
        scale = math.sqrt(len(basis)) / lengths
        most = _ROOM * float(scale.min()) * math.pi / (2 * beta)
        return cls(basis, mark.signs, most, beta, scale)

    def margins(self, numbers: Float) -> Float:
        distance: Float = lattice_distance(numbers, self.beta) * self.signs * self.scale
        return distance

    def targets(self, numbers: Float, goal: float) -> Float:
        width = math.pi / self.beta
        cell = np.floor(numbers / width)
        wrong = (cell % 2 == 0) != (self.signs > 0)
        nearer = np.where(numbers - cell * width < width / 2, -1.0, 1.0)
        cell = cell + np.where(wrong, nearer, 0.0)
        inside = np.minimum(goal / self.scale, width / 2)
        return np.clip(numbers, cell * width + inside, (cell + 1) * width - inside)


def _of_length(matrix: npt.NDArray[np.float32], parameters: Parameters) -> npt.NDArray[np.float32]:
    """The matrix with columns of the length that the parameters fix; 0 leaves them."""
    norm = float(parameters.setting("norm"))
    if not norm:
        return matrix
    wide = matrix.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(wide, axis=0), 1e-30)
    scaled: npt.NDArray[np.float32] = (wide * (norm / lengths)).astype(np.float32)
    return scaled
