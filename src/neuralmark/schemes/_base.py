"""The contract of a watermarking scheme: how a mark is made, where it lies, how it is read.

A scheme is one file in this folder; the file's name is the scheme's name. It holds one class that
derives from `Scheme`. Whatever the scheme, weights are read in two steps: `carriers` says which
weights count and in which pools their means are taken; `logits` makes n numbers of those means,
whose signs are the bits. So files are streamed, sharded models are read from their shards, and
gradients reach the weights, without the scheme knowing of any of it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from neuralmark.core import readout
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Mark, Own, Parameters, Placement, check_placement
from neuralmark.core.readout import Array, Known
from neuralmark.errors import ParameterError

Arrays = Mapping[str, npt.NDArray[Any]]
"""What a raw key holds: `matrix` (pools x bits) and whatever else its maker chose freely."""


class Scheme(ABC):
    """Base of all schemes; stateless, so one instance serves everybody."""

    theory: ClassVar[str]
    """What its own theory says of the chance of a false match, in one sentence."""
    marks: ClassVar[bool] = True
    """Whether it writes anything (the control `clean` does not)."""
    linear: ClassVar[bool] = True
    """Whether `logits` is pooled @ matrix: then a radius can be certified."""
    writes: ClassVar[bool] = True
    """Whether pooled @ matrix with the right signs makes the mark: then it can be written post hoc
    and kept by projection."""
    plain: ClassVar[bool] = True
    """Whether the loss is that of `readout.loss` on these logits: its gradient is known in closed
    form. Others are differentiated by autograd."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """The scheme's own settings and their defaults."""

    @property
    def name(self) -> str:
        """The name under which it is found: that of its file."""
        return type(self).__module__.rpartition(".")[2]

    # Parameters.

    def parameters(
        self,
        bits: int | None = None,
        pools: int | None = None,
        rounds: int | None = None,
        own: Mapping[str, Any] | None = None,
    ) -> Parameters:
        """Parameters of a key of this scheme, what is not given filled in and all of it checked."""
        chosen = {**self.settings, **(own or {})}
        bits = 256 if bits is None else bits
        pools, rounds = self._sizes(bits, pools, rounds, chosen)
        settings: Own = tuple(sorted(chosen.items()))
        made = Parameters(bits, pools, rounds, "strided", self.name, settings)
        self.check(made)
        return made

    def check(self, parameters: Parameters) -> None:
        """Refuse parameters that this scheme cannot work with."""
        known = set(self.settings)
        unknown = sorted(set(dict(parameters.own)) - known)
        if unknown:
            has = f"it has {', '.join(sorted(known))}" if known else "it has none of its own"
            raise ParameterError(f"{self.name} has no setting {unknown[0]!r}; {has}")
        if missing := sorted(known - set(dict(parameters.own))):
            raise ParameterError(f"{self.name} needs its setting {missing[0]!r}")
        for name, default in self.settings.items():
            value = parameters.setting(name)
            number = isinstance(default, int | float)
            if number != isinstance(value, int | float):
                raise ParameterError(f"{name} must be like {default!r}, not {value!r}")

    def _sizes(
        self, bits: int, pools: int | None, rounds: int | None, own: Mapping[str, Any]
    ) -> tuple[int, int]:
        """Pools and rounds where they are not given; 0 means: not used by this scheme."""
        if pools or rounds:
            raise ParameterError(f"{self.name} takes neither pools nor rounds")
        return 0, 0

    # Marks.

    @abstractmethod
    def derive(
        self, secret: bytes, parameters: Parameters, placement: Placement, content: bytes
    ) -> Mark:
        """The mark of a native key: everything follows from the secret and what it is bound to."""

    def chosen(
        self, arrays: Arrays, parameters: Parameters, placement: Placement, content: bytes
    ) -> Mark:
        """The mark of a raw key, whose maker chose the arrays; never proves anything."""
        check_placement(placement)
        extra = {name: array for name, array in arrays.items() if name not in ("matrix", "bits")}
        return Mark(parameters, arrays["matrix"], arrays["bits"].astype(np.uint8), extra)

    # Reading.

    @abstractmethod
    def carriers(self, mark: Mark, placement: Placement) -> Carriers:
        """Which weights count, and in which pools."""

    def room(self, parameters: Parameters, placement: Placement) -> float:
        """Carriers a pool to expect before the key is known; below 1 the tensors are too small."""
        return 1.0

    def spreads(self, parameters: Parameters) -> bool:
        """Whether more tensors make it better: `auto` then takes several, else the largest."""
        return False

    def logits(self, known: Known, pooled: Array) -> Array:
        """N numbers whose signs are the bits; 0 is no bit."""
        return readout.logits(pooled, known.matrix)

    # Writing.

    def loss(self, known: Known, pooled: Array, step: int = 0) -> Array:
        """The embedding loss at a strength of 1, differentiable for torch tensors."""
        return readout.loss(self.logits(known, pooled), known.bits)


def total_size(placement: Placement) -> int:
    """Number of weights in all tensors of a placement."""
    return sum(math.prod(shape) for _, shape in placement)
