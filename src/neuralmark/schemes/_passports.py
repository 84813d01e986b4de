"""Passports: the affine factors of a norm follow from the layer before it and a secret input.

A passport s is a feature map of the size that a layer takes. The layer's own weights W turn it into
the factor γ of each of its output channels: conv(W, s), pooled over all places. A second passport
gives the offsets β. The signs of γ are the bits, one for each channel, so a bit is read from one
row of the weights, and a file is enough to read it. Whether the network also works with γ and β in
the place of its norms' own (its *private branch*) is another question, and no proof of anything:
see `neuralmark.Passports`.

Pooled by the mean, γ = W·v with v the means of the passport's windows: linear in the weights. The
published claimant chooses passports and bits, and for nearly any bits there is such a v. Here
passports follow from the secret, and the bits are hashed last, over all that shapes the read-out.

With the filter `stream`, passports read only the weights that the hashed filter leaves. Its
keystream is a hash of the bits, so the signs are drawn apart from the bits they are compared with.
"""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from neuralmark.core.carriers import Carriers, Listed, StreamCarriers
from neuralmark.core.imprint import LeastChange
from neuralmark.core.key import (
    MAX_ENTRIES,
    NONE,
    STREAM,
    Filter,
    Float,
    Mark,
    Parameters,
    Placement,
    Terms,
    check_secret,
    hashed_bits,
)
from neuralmark.core.passports import (
    LayerPassports,
    LayerShape,
    laid_out,
    layer_shape,
    packed,
    packed_rows,
    passport_places,
    passports_in,
    picked,
    pools_of,
    row_lengths,
    rowwise,
    shapes_in,
)
from neuralmark.core.readout import Array, Known, namespace
from neuralmark.core.rowwise import RowChange
from neuralmark.errors import (
    ParameterError,
    PassportMismatchError,
    TooFewCarriersError,
    UnsuitableTensorError,
)
from neuralmark.schemes.contract import Arrays, Scheme, total_size

MARGIN = 0.1
WEIGHT = 0.1
"""Of the sum of what each γ lacks of the margin: published as λ."""
DECAY = 1e-5
"""Of the sum of the squares of γ."""
MAX_SIDE = 256


def _listed(shapes: Sequence[LayerShape]) -> str:
    """The names of layers, for a message.

    >>> _listed([layer_shape("a", (4, 2), 8), layer_shape("b", (4, 2), 8)])
    "'a', 'b'"
    """
    return ", ".join(repr(shape.name) for shape in shapes[:4]) + ", …" * (len(shapes) > 4)


class PassportScheme(Scheme):
    """Base of the schemes that read γ, the factors that passports give a layer's channels.

    Attributes:
        linear: Yes where γ is pooled by the mean.
        writes: As `linear`: every bit has a row of weights to itself.
        plain: No: the loss is a hinge.
        pooled: No: every weight stands alone.
        filters: None, or the hashed filter before the passports.
        settings: `side`, the height and width of a passport.
        hidden: The private branch's MLP has this part of the channels as hidden units; 0: no MLP.
        biases: Whether that MLP has biases, and a plain ReLU.
        own_statistics: Whether the private branch counts means and variances of its own.
        asking: How keys that draw labels for triggers (`asks`) are made, if there are some.

    Examples:
        >>> scheme = neuralmark.schemes.get("passport-aware")
        >>> isinstance(scheme, neuralmark.schemes.PassportScheme), scheme.reads
        (True, 'weights')
    """

    linear: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    plain: ClassVar[bool] = False
    pooled: ClassVar[bool] = False
    filters: ClassVar[tuple[Filter, ...]] = (NONE, STREAM)
    settings: ClassVar[Mapping[str, Any]] = {"side": 8}
    hidden: ClassVar[int] = 0
    biases: ClassVar[bool] = False
    own_statistics: ClassVar[bool] = True
    asking: ClassVar[str] = ""

    def asks(self, parameters: Parameters) -> bool:
        """Whether triggers whose labels the key draws belong to it, to suspect a network by.

        Args:
            parameters: What a key has.

        Returns:
            Yes for DeepIPR's third version only.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepipr")
            >>> scheme.asks(scheme.parameters(own={"version": 3}))
            True
        """
        return False

    def ships(self, parameters: Parameters) -> bool:
        """Whether passports are part of the deployed network.

        Args:
            parameters: What a key has.

        Returns:
            True for the first version of DeepIPR only.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepipr")
            >>> scheme.ships(scheme.parameters(own={"version": 1}))
            True
        """
        return False

    @abstractmethod
    def pooled_over(self, weights: Array, windows: Array) -> Array:
        """One number for each row of a layer, from what its kernel sees of a passport.

        Args:
            weights: The layer, rows x (inputs · kernel).
            windows: What the kernel sees at each place, (inputs · kernel) x places.

        Returns:
            One number per row.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepipr")
            >>> scheme.pooled_over(np.ones((2, 3)), np.ones((3, 4)))
            array([3., 3.])
        """

    # Parameters.

    def parameters(
        self,
        bits: int | None = None,
        pools: int | None = None,
        rounds: int | None = None,
        filter: Filter | None = None,  # noqa: A002 - the name it has everywhere
        own: Mapping[str, Any] | None = None,
    ) -> Parameters:
        """As every scheme's; there are no pools, and a filter has one round by default.

        Args:
            bits: Length of the watermark; the layers must have as many output channels.
            pools: Not to be given: every weight stands alone.
            rounds: How many times the filter is applied.
            filter: `none`, or `stream` for the hashed filter before the passports.
            own: `side`, the height and width of a passport.

        Returns:
            What `Key.new` takes.

        Raises:
            ParameterError: The scheme cannot work with these values.

        Examples:
            >>> neuralmark.schemes.get("deepipr").parameters(filter="stream").rounds
            1
        """
        if pools:
            raise ParameterError(f"{self.name} takes no pools: every weight stands alone")
        chosen: Filter = NONE if filter is None else filter
        self._check_filter(chosen)
        turns = rounds if rounds is not None else int(chosen != NONE)
        settings = tuple(sorted({**self.settings, **(own or {})}.items()))
        length = 256 if bits is None else bits
        made = Parameters(length, 0, turns, "strided", self.name, chosen, settings)
        self.check(made)
        return made

    def check(self, parameters: Parameters) -> None:
        """Refuse parameters that passports cannot work with.

        Args:
            parameters: What a key has.

        Raises:
            ParameterError: The filter, the side or a setting does not fit.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepipr")
            >>> scheme.check(scheme.parameters())
        """
        super().check(parameters)
        side = parameters.setting("side")
        if type(side) is not int or not 1 <= side <= MAX_SIDE:
            raise ParameterError(f"side must be a whole number from 1 to {MAX_SIDE}, not {side!r}")

    def _check_sizes(self, parameters: Parameters) -> None:
        if parameters.filter != NONE and not parameters.rounds:
            raise ParameterError(
                f"rounds must be at least 1 with the filter {parameters.filter}, not 0"
            )
        if parameters.pools or (parameters.rounds and parameters.filter == NONE):
            raise ParameterError(
                f"{self.name} takes no pools, and rounds with a filter only: leave them out"
            )

    # Marks.

    def derive(self, secret: bytes, terms: Terms) -> Mark:
        """The passports from the secret, uniform in [-1, 1); the bits last.

        Where γ is a mean, passports are centred: a constant added to all weights moves no γ.

        Args:
            secret: The 32 bytes of the key.
            terms: What the mark is bound to.

        Returns:
            The passports as the matrix, row after row, and the watermark.

        Raises:
            UnsuitableTensorError: A tensor is no layer that takes passports, or too large.
            TooFewCarriersError: The layers have fewer output channels than there are bits.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepipr")
            >>> terms = Terms(scheme.parameters(bits=32), (("conv.weight", (64, 16, 3, 3)),))
            >>> scheme.derive(bytes(32), terms).matrix.size == 2 * 16 * 8 * 8
            True
        """
        check_secret(secret)
        parameters = terms.parameters
        shapes = self.shapes(parameters, terms.placement)
        domain = f"neuralmark/{self.name}".encode()
        count = 2 * sum(shape.passport for shape in shapes)
        seed = terms.transcript(domain + b"/passports/1", secret)
        words = np.frombuffer(hashlib.shake_256(seed).digest(2 * count), "<u2")
        numbers = words.astype(np.float64) / 32768 - 1
        if self.linear:
            numbers = np.concatenate(
                [shape.centred(some) for shape, some in passports_in(numbers, shapes)]
            )
        bits = hashed_bits(terms.transcript(domain + b"/bits/1", secret), parameters.bits)
        matrix = packed(numbers.astype(np.float32), parameters.bits)
        return self._mark(parameters, matrix, bits, shapes)

    def chosen(self, arrays: Arrays, terms: Terms) -> Mark:
        """Passports and bits of somebody's own choice: `matrix` holds the passports, packed.

        Args:
            arrays: The passports as `packed` lays them out, and the bits.
            terms: What the mark is bound to.

        Returns:
            The passports and the watermark.

        Raises:
            PassportMismatchError: They are passports of other layers.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepipr")
            >>> terms = Terms(scheme.parameters(bits=8), (("conv.weight", (8, 2, 3, 3)),))
            >>> mine = {"matrix": np.zeros((32, 8), np.float32), "bits": np.ones(8, np.uint8)}
            >>> int(scheme.chosen(mine, terms).bits.sum())
            8
        """
        parameters = terms.parameters
        shapes = self.shapes(parameters, terms.placement)
        matrix = arrays["matrix"]
        wanted = packed_rows(2 * sum(shape.passport for shape in shapes), parameters.bits)
        if matrix.shape != (wanted, parameters.bits):
            names = ", ".join(repr(shape.name) for shape in shapes[:4])
            raise PassportMismatchError(
                f"these passports have {matrix.size:,} numbers, and {names} would need"
                f" {wanted * parameters.bits:,} (side {parameters.setting('side')}): name the"
                " layers that they were made for"
            )
        return self._mark(parameters, matrix, self._bits_of(arrays, terms), shapes)

    def _bits_of(self, arrays: Arrays, terms: Terms) -> npt.NDArray[np.uint8]:
        return arrays["bits"].astype(np.uint8)

    def _mark(
        self,
        parameters: Parameters,
        matrix: npt.NDArray[np.float32],
        bits: npt.NDArray[np.uint8],
        shapes: Sequence[LayerShape],
    ) -> Mark:
        extra: dict[str, npt.NDArray[Any]] = {
            "shapes": np.array([(s.rows, s.inputs, *s.kernel, s.side) for s in shapes], np.int64),
            "rows": picked(sum(shape.rows for shape in shapes), parameters.bits),
        }
        if parameters.filter != NONE:
            total = sum(shape.size for shape in shapes)
            places = StreamCarriers.under(bits, parameters.rounds, total, 1).positions()
            extra["places"] = places
            self._require_weights(parameters, shapes, places, extra["rows"])
        mark = Mark(parameters, matrix, bits, extra)
        if not self.linear:
            return mark
        level = math.sqrt(pools_of(mark)) / np.maximum(row_lengths(mark), 1e-30)
        return Mark(parameters, matrix, bits, {**extra, "level": level})

    def _require_weights(
        self,
        parameters: Parameters,
        shapes: Sequence[LayerShape],
        places: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
    ) -> None:
        """Refuse a filter that leaves a bit without any weight to be read from."""
        sizes = np.concatenate([np.full(each.rows, each.size // each.rows) for each in shapes])
        ends = np.cumsum(sizes)
        left = np.searchsorted(places, ends) - np.searchsorted(places, ends - sizes)
        empty = int((left[rows] == 0).sum())
        if empty:
            raise TooFewCarriersError(
                f"{_listed(shapes)}: {parameters.rounds} rounds of the filter leave no weight in"
                f" the rows of {empty} of {parameters.bits} bits of {self.name}: make a key with"
                " fewer rounds, or name layers with more inputs"
            )

    def shapes(self, parameters: Parameters, placement: Placement) -> list[LayerShape]:
        """The layers of a placement, as passports see them.

        Args:
            parameters: What a key has.
            placement: The marked tensors in order.

        Returns:
            Rows, inputs, kernel and side of each.

        Raises:
            UnsuitableTensorError: A tensor is no linear layer and no convolution, or too large.
            TooFewCarriersError: They have fewer output channels than there are bits.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepipr")
            >>> scheme.shapes(scheme.parameters(bits=8), (("conv.weight", (8, 2, 3, 3)),))[0].rows
            8
        """
        shapes = self._layers(parameters, placement)
        rows = sum(shape.rows for shape in shapes)
        if rows < parameters.bits:
            raise TooFewCarriersError(
                f"{_listed(shapes)}: {rows} output channels, too few for {parameters.bits} bits of"
                f" {self.name}: name more layers, or make a key with fewer bits"
            )
        return shapes

    def _layers(self, parameters: Parameters, placement: Placement) -> list[LayerShape]:
        """The same, however few output channels they have."""
        side = parameters.setting("side")
        shapes = [layer_shape(name, shape, side) for name, shape in placement]
        largest = max(total_size(placement), 2 * sum(shape.passport for shape in shapes))
        if largest > MAX_ENTRIES:
            raise UnsuitableTensorError(
                f"passports for {placement[0][0]!r} would take {largest:,} numbers, above the cap"
                f" of {MAX_ENTRIES:,}: name smaller layers"
            )
        return shapes

    # Reading.

    def carriers(self, mark: Mark, placement: Placement) -> Carriers:
        """Every weight by itself; with a filter, those that it leaves.

        Args:
            mark: A key at one placement.
            placement: The marked tensors in order.

        Returns:
            The positions of the carriers.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepipr")
            >>> placement = (("conv.weight", (64, 16, 3, 3)),)
            >>> terms = Terms(scheme.parameters(bits=32), placement)
            >>> scheme.carriers(scheme.derive(bytes(32), terms), placement).pools
            9216
        """
        total = total_size(placement)
        if "places" in mark.extra:
            places = mark.extra["places"]
            return Listed.at(places, total, len(places))
        return Carriers.everything(total, total)

    def room(self, parameters: Parameters, placement: Placement) -> float:
        """Output channels for each bit.

        Args:
            parameters: What a key has.
            placement: The tensors to mark, in order.

        Returns:
            The number per bit; 0 where a tensor takes no passports.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepipr")
            >>> scheme.room(scheme.parameters(bits=32), (("conv.weight", (64, 16, 3, 3)),))
            2.0
        """
        try:
            shapes = self._layers(parameters, placement)
        except (TooFewCarriersError, UnsuitableTensorError):
            return 0.0
        return sum(shape.rows for shape in shapes) / parameters.bits

    def factors(self, known: Known, pooled: Array) -> Array:
        """γ of the channels that count: one for each bit.

        Args:
            known: The mark, as arrays.
            pooled: The carriers, each by itself.

        Returns:
            One number per bit, as the private branch multiplies by it.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepipr")
            >>> terms = Terms(scheme.parameters(bits=32), (("conv.weight", (64, 16, 3, 3)),))
            >>> known = Known.of(scheme.derive(bytes(32), terms))
            >>> scheme.factors(known, np.zeros(9216)).shape
            (32,)
        """
        weights = laid_out(known, pooled)
        passports = known.matrix.reshape(-1)
        found, start = [], 0
        for shape, at in passport_places(shapes_in(known.extra)):
            layer = weights[start : start + shape.size].reshape(shape.rows, -1)
            windows = shape.windows(passports[at : at + shape.passport])
            found.append(self.pooled_over(layer, windows))
            start += shape.size
        return namespace(pooled).concatenate(found)[known.extra["rows"]]

    def logits(self, known: Known, pooled: Array) -> Array:
        """γ; where it is linear, in units in which unmarked weights spread by σz.

        Args:
            known: The mark, as arrays.
            pooled: The carriers, each by itself.

        Returns:
            One number per bit.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepipr")
            >>> terms = Terms(scheme.parameters(bits=32), (("conv.weight", (64, 16, 3, 3)),))
            >>> known = Known.of(scheme.derive(bytes(32), terms))
            >>> bool(scheme.logits(known, np.zeros(9216)).any())
            False
        """
        found = self.factors(known, pooled)
        return found * known.extra["level"] if self.linear else found

    def steepest(self, mark: Mark) -> float:
        """Bits share no weight, and all are levelled alike: √pools.

        Args:
            mark: A key at one placement.

        Returns:
            By how much the logits move at most when the weights move by 1.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepipr")
            >>> terms = Terms(scheme.parameters(bits=32), (("conv.weight", (64, 16, 3, 3)),))
            >>> scheme.steepest(scheme.derive(bytes(32), terms))
            96.0
        """
        return math.sqrt(pools_of(mark))

    def passports_of(self, mark: Mark, placement: Placement) -> list[LayerPassports]:
        """What the private branch of every layer is made of.

        Args:
            mark: A key at one placement.
            placement: The marked tensors in order.

        Returns:
            Two passports for each layer, and which weights they read.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepipr")
            >>> placement = (("conv.weight", (64, 16, 3, 3)),)
            >>> mark = scheme.derive(bytes(32), Terms(scheme.parameters(bits=32), placement))
            >>> scheme.passports_of(mark, placement)[0].scale.shape
            (1024,)
        """
        kept = None
        if "places" in mark.extra:
            kept = np.zeros(total_size(placement), np.bool_)
            kept[mark.extra["places"]] = True
        flat, found, start = mark.matrix.reshape(-1), [], 0
        for shape, at in passport_places(self.shapes(mark.parameters, placement)):
            middle, end = at + shape.passport, at + 2 * shape.passport
            mask = None if kept is None else kept[start : start + shape.size]
            found.append(LayerPassports(shape, flat[at:middle], flat[middle:end], mask))
            start += shape.size
        return found

    # Writing.

    def loss(self, known: Known, pooled: Array, step: int = 0) -> Array:
        """0.1 times what each γ lacks of 0.1 on its side, and 1e-5 times their squares.

        Args:
            known: The mark, as arrays.
            pooled: The carriers, each by itself.
            step: Not used: there is no noise.

        Returns:
            One number.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepipr")
            >>> terms = Terms(scheme.parameters(bits=32), (("conv.weight", (64, 16, 3, 3)),))
            >>> known = Known.of(scheme.derive(bytes(32), terms))
            >>> round(float(scheme.loss(known, np.zeros(9216))), 3)
            0.32
        """
        found = self.factors(known, pooled)
        short = (MARGIN - known.signs * found).clip(min=0)
        return WEIGHT * short.sum() + DECAY * (found * found).sum()

    def solver(self, mark: Mark, effort: Float | float = 1.0) -> LeastChange:
        """Every bit by itself, along its row's share of the passport's windows.

        Args:
            mark: A key at one placement.
            effort: Norm of the change of the weights that a shift of a pool's mean by 1 takes.

        Returns:
            The solver.

        Examples:
            >>> scheme = neuralmark.schemes.get("deepipr")
            >>> terms = Terms(scheme.parameters(bits=32), (("conv.weight", (64, 16, 3, 3)),))
            >>> solver = scheme.solver(scheme.derive(bytes(32), terms))
            >>> bool(solver.margins(solver.change(np.zeros(9216), 1.0)).min() > 0.999)
            True
        """
        return RowChange(mark, rowwise(mark).levelled(), effort)
