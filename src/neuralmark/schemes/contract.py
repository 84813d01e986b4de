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
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from neuralmark.core import readout
from neuralmark.core.carriers import Carriers
from neuralmark.core.certificate import largest_singular_value
from neuralmark.core.imprint import LeastChange
from neuralmark.core.key import (
    FILTERS,
    NONE,
    TILED,
    Filter,
    Float,
    Mark,
    Own,
    Parameters,
    Placement,
    Terms,
)
from neuralmark.core.readout import Array, Known
from neuralmark.errors import ParameterError
from neuralmark.schemes._checks import check_settings, check_sizes
from neuralmark.schemes._facts import Facts

__all__ = ["ACTIVATIONS", "Arrays", "Facts", "Reads", "Scheme", "total_size"]

Reads = Literal["weights", "activations"]
"""What a read-out looks at: weights, which a file holds, or what a live model makes of triggers."""
WEIGHTS: Final = "weights"
ACTIVATIONS: Final = "activations"

Arrays = Mapping[str, npt.NDArray[Any]]
"""What a raw key holds: `matrix` (pools x bits) and whatever else its maker chose freely."""


class Scheme(ABC):
    """Base of all schemes; stateless, so one instance serves everybody.

    Attributes:
        theory: What its own theory says of the chance of a false match, in one sentence.
        marks: Whether it writes anything (the control `clean` does not).
        linear: Whether `logits` is pooled @ matrix: then a radius can be certified.
        writes: Whether a `solver` finds the weights that hold the mark: then it can be written post
            hoc and kept by projection.
        plain: Whether the loss is that of `readout.loss` on these logits, with a gradient in closed
            form. Others are differentiated by autograd.
        pooled: Whether weights share pools; where each stands alone, few of them are no fault.
        filters: The filters that it can be used with, the usual one first.
        settings: The scheme's own settings and their defaults.
        facts: What to know before choosing it.
        reads: What is read, `weights` or `activations` (see `TriggerScheme`).
        whole: Whether the loss looks at every carrier, not only at the means of the pools.
        learnt: Arrays of the mark that a training moves along, and the size of their steps.

    Examples:
        >>> scheme = neuralmark.schemes.get("votemark")
        >>> scheme.name, scheme.linear, dict(scheme.settings)
        ('votemark', False, {'noise': 0.5, 'votes': 11})
    """

    theory: ClassVar[str]
    marks: ClassVar[bool] = True
    linear: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    plain: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    filters: ClassVar[tuple[Filter, ...]] = (NONE,)
    settings: ClassVar[Mapping[str, Any]] = {}
    facts: ClassVar[Facts] = Facts()
    reads: ClassVar[Reads] = WEIGHTS
    whole: ClassVar[bool] = False
    learnt: ClassVar[Mapping[str, float]] = {}

    @property
    def name(self) -> str:
        """The name under which it is found: that of its file."""
        return type(self).__module__.rpartition(".")[2].replace("_", "-")

    @property
    def written_by(self) -> str:
        """How a mark gets into a model: by training, into files too, or not at all."""
        if not self.marks:
            return "nothing"
        return "training and files" if self.writes else "training"

    # Parameters.

    def parameters(
        self,
        bits: int | None = None,
        pools: int | None = None,
        rounds: int | None = None,
        filter: Filter | None = None,  # noqa: A002 - the name it has everywhere
        own: Mapping[str, Any] | None = None,
    ) -> Parameters:
        """Parameters for a key of this scheme, checked; what is not given is filled in.

        Args:
            bits: Length of the watermark.
            pools: How many groups the carriers are averaged in.
            rounds: How many times the filter is applied.
            filter: How carriers are chosen.
            own: Settings that only this scheme has, by name.

        Returns:
            What `Key.new` takes.

        Raises:
            ParameterError: The scheme cannot work with these values.

        Examples:
            >>> neuralmark.schemes.get("votemark").parameters(own={"votes": 5}).setting("votes")
            5
        """
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
        """Refuse parameters that this scheme cannot work with.

        Args:
            parameters: What a key has.

        Raises:
            ParameterError: The filter, a size or a setting does not fit.

        Examples:
            >>> neuralmark.schemes.get("neuralmark").check(key.parameters)
        """
        self._check_filter(parameters.filter)
        self._check_sizes(parameters)
        check_settings(self.name, self.settings, parameters)

    def _check_sizes(self, parameters: Parameters) -> None:
        check_sizes(self.name, parameters)

    def _check_filter(self, chosen: str) -> None:
        if chosen not in self.filters:
            names = " or ".join(self.filters)
            raise ParameterError(
                f"the filter of {self.name} must be {names}, not {str(chosen)[:80]!r}"
            )

    # Marks.

    @abstractmethod
    def derive(self, secret: bytes, terms: Terms) -> Mark:
        """The mark of a native key: everything follows from the secret and what it is bound to.

        Args:
            secret: The 32 bytes of the key.
            terms: What the mark is bound to: parameters, placement, content, anchor.

        Returns:
            The key matrix and the watermark.

        Raises:
            ParameterError: The secret has another length.
            UnsuitableTensorError: The tensors are too large for this scheme.

        Examples:
            >>> terms = Terms(Parameters(), (("layer1.weight", (128, 128)),))
            >>> neuralmark.schemes.get("neuralmark").derive(bytes(32), terms).matrix.shape
            (512, 256)
        """

    def chosen(self, arrays: Arrays, terms: Terms) -> Mark:
        """The mark of a raw key, whose maker chose the arrays; it never proves anything.

        Args:
            arrays: The matrix, and whatever else the maker chose.
            terms: What the mark is bound to.

        Returns:
            The key matrix and the watermark.

        Examples:
            >>> terms = Terms(Parameters(8, 16), (("layer1.weight", (128, 128)),))
            >>> arrays = {"matrix": np.ones((16, 8), np.float32)}
            >>> len(neuralmark.schemes.get("neuralmark").chosen(arrays, terms).bits)
            8
        """
        extra = {name: array for name, array in arrays.items() if name not in ("matrix", "bits")}
        return Mark(terms.parameters, arrays["matrix"], arrays["bits"].astype(np.uint8), extra)

    def check_chosen(self, parameters: Parameters, arrays: Arrays) -> None:
        """Refuse arrays of a raw key that this scheme cannot work with, wherever it is read.

        Args:
            parameters: What the key has.
            arrays: The matrix, and whatever else the maker chose.

        Raises:
            ParameterError: One is missing, or of another size.

        Examples:
            >>> arrays = {"matrix": np.ones((16, 8), np.float32)}
            >>> neuralmark.schemes.get("vanillamark").check_chosen(Parameters(8, 16), arrays)
        """
        bits = arrays.get("bits")
        if bits is None:
            return
        if bits.shape != (parameters.bits,) or not np.isin(bits, (0, 1)).all():
            raise ParameterError(f"the bits of a raw key are {parameters.bits} zeros and ones")

    # Reading.

    @abstractmethod
    def carriers(self, mark: Mark, placement: Placement) -> Carriers:
        """Which weights count, and in which pools.

        Args:
            mark: A key at one placement.
            placement: The marked tensors in order.

        Returns:
            The positions of the carriers, computed on demand.

        Examples:
            >>> placement = (("layer1.weight", (128, 128)),)
            >>> found = neuralmark.schemes.get("neuralmark").carriers(key.at(placement), placement)
            >>> found.total, found.pools
            (16384, 320)
        """

    def room(self, parameters: Parameters, placement: Placement) -> float:
        """How many carriers per pool to expect before the key is known.

        Args:
            parameters: What a key has.
            placement: The tensors to mark, in order.

        Returns:
            The number per pool; below 1 the tensors are too small.

        Examples:
            >>> placement = (("layer1.weight", (128, 128)),)
            >>> neuralmark.schemes.get("neuralmark").room(key.parameters, placement)
            25.6
        """
        return 1.0

    def spreads(self, parameters: Parameters) -> bool:
        """Whether more tensors make the mark better.

        Args:
            parameters: What a key has.

        Returns:
            Whether `auto` takes several tensors; otherwise it takes the largest.

        Examples:
            >>> neuralmark.schemes.get("neuralmark").spreads(key.parameters)
            True
        """
        return False

    def widest(self, parameters: Parameters) -> float:
        """Up to which size a number of pooled @ matrix reads as its sign.

        Args:
            parameters: What a key has.

        Returns:
            Infinity where the sign is all that counts; the end of a cell for a lattice.

        Examples:
            >>> neuralmark.schemes.get("neuralmark").widest(key.parameters)
            inf
        """
        return math.inf

    def strongest(self, parameters: Parameters) -> float:
        """Below which strength a mark that is projected at every step keeps its size.

        The margin follows the spread of the weights. Where the mark itself is what spreads them,
        it would grow with every step.

        Args:
            parameters: What a key has.

        Returns:
            Infinity where the spread is not the mark's.

        Examples:
            >>> scheme = neuralmark.schemes.get("feng")
            >>> scheme.strongest(scheme.parameters())
            4.0
        """
        return math.inf

    def logits(self, known: Known, pooled: Array) -> Array:
        """The numbers whose signs are the bits; 0 is neither.

        Args:
            known: The mark, as arrays.
            pooled: The means of the carriers, one per pool.

        Returns:
            One number per bit.

        Examples:
            >>> scheme = neuralmark.schemes.get("neuralmark")
            >>> known = Known.of(key.at((("layer1.weight", (128, 128)),)))
            >>> scheme.logits(known, np.ones(320)).shape
            (160,)
        """
        return readout.logits(pooled, known.matrix)

    def steepest(self, mark: Mark) -> float:
        """By how much the logits move at most when the means move by 1, for linear schemes.

        Args:
            mark: A key at one placement.

        Returns:
            The largest singular value of the read-out.

        Examples:
            >>> mark = key.at((("layer1.weight", (128, 128)),))
            >>> 20 < neuralmark.schemes.get("neuralmark").steepest(mark) < 40
            True
        """
        return largest_singular_value(mark.matrix)

    # Writing.

    def loss(self, known: Known, pooled: Array, step: int = 0) -> Array:
        """The embedding loss at a strength of 1, differentiable for torch tensors.

        Args:
            known: The mark, as arrays.
            pooled: The means of the carriers, one per pool; for schemes that look at the `whole`,
                a row of pools for each carrier that a pool has.
            step: The training step, for schemes whose loss has noise.

        Returns:
            One number.

        Examples:
            >>> scheme = neuralmark.schemes.get("neuralmark")
            >>> known = Known.of(key.at((("layer1.weight", (128, 128)),)))
            >>> round(float(scheme.loss(known, np.zeros(320))), 3)
            0.693
        """
        return readout.loss(self.logits(known, pooled), known.bits)

    def solver(self, mark: Mark, effort: Float | float = 1.0) -> LeastChange:
        """What finds the smallest change that writes the mark; asked only of schemes that write.

        By default every logit of pooled @ matrix gets the sign of its bit and at least a margin. A
        scheme that wants more than signs gives an `ExactChange`.

        Args:
            mark: A key at one placement.
            effort: Norm of the change of the weights that a shift of a pool's mean by 1 takes.

        Returns:
            The solver.

        Raises:
            InfeasibleError: This many bits cannot be written into these pools.

        Examples:
            >>> mark = key.at((("layer1.weight", (128, 128)),))
            >>> solver = neuralmark.schemes.get("neuralmark").solver(mark)
            >>> pooled = np.random.default_rng(0).standard_normal(320)
            >>> bool(solver.margins(pooled + solver.change(pooled, 1.0)).min() > 0.999)
            True
        """
        return LeastChange(mark, effort)


def total_size(placement: Placement) -> int:
    """Number of weights in all tensors of a placement."""
    return sum(math.prod(shape) for _, shape in placement)
