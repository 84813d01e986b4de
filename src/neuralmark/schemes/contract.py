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
from neuralmark.core.key import (
    FILTERS,
    NONE,
    TILED,
    Filter,
    Mark,
    Own,
    Parameters,
    Placement,
    Terms,
)
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
    filters: ClassVar[tuple[Filter, ...]] = (NONE,)
    """The filters that it can be used with, the usual one first."""
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
        filter: Filter | None = None,  # noqa: A002 - the name it has everywhere
        own: Mapping[str, Any] | None = None,
    ) -> Parameters:
        """Parameters of a key of this scheme, what is not given filled in and all of it checked."""
        bits = 256 if bits is None else bits
        chosen = self.filters[0] if filter is None else filter
        self._check_filter(chosen)
        if chosen != NONE:
            filled = Parameters.of(bits, pools, rounds, chosen if chosen in FILTERS[:2] else TILED)
            pools, rounds = filled.pools, filled.rounds
        settings: Own = tuple(sorted({**self.settings, **(own or {})}.items()))
        made = Parameters(bits, pools or 0, rounds or 0, "strided", self.name, chosen, settings)
        self.check(made)
        return made

    def check(self, parameters: Parameters) -> None:
        """Refuse parameters that this scheme cannot work with."""
        self._check_filter(parameters.filter)
        if parameters.filter == NONE and (parameters.rounds or parameters.pools):
            raise ParameterError(
                f"{self.name} without a filter takes neither pools nor rounds: leave them out"
            )
        if parameters.filter != NONE and not (parameters.rounds and parameters.pools):
            raise ParameterError("a filter needs rounds and pools: give both, or leave both out")
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

    def _check_filter(self, chosen: str) -> None:
        if chosen not in self.filters:
            names = " or ".join(self.filters)
            raise ParameterError(
                f"the filter of {self.name} must be {names}, not {str(chosen)[:80]!r}"
            )

    # Marks.

    @abstractmethod
    def derive(self, secret: bytes, terms: Terms) -> Mark:
        """The mark of a native key: everything follows from the secret and what it is bound to."""

    def chosen(self, arrays: Arrays, terms: Terms) -> Mark:
        """The mark of a raw key, whose maker chose the arrays; never proves anything."""
        extra = {name: array for name, array in arrays.items() if name not in ("matrix", "bits")}
        return Mark(terms.parameters, arrays["matrix"], arrays["bits"].astype(np.uint8), extra)

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
