"""VanillaMark (Uchida et al. 2017): a secret projection of a layer's averaged weights.

A convolution is averaged over its output channels and flattened; bit j is the sign of its product
with the j-th row of a Gaussian secret. With a filter, the weights go through a filter first
and are pooled as NeuralMark's are: the paper's future work, in a line.
"""

from typing import ClassVar

from neuralmark.core.carriers import Carriers
from neuralmark.core.key import (
    MAX_ENTRIES,
    NONE,
    PRIVATE,
    STREAM,
    TILED,
    Filter,
    Mark,
    Parameters,
    Placement,
    Terms,
    bell_matrix,
    check_secret,
    watermark,
)
from neuralmark.errors import UnsuitableTensorError
from neuralmark.schemes import _filters as filters
from neuralmark.schemes.contract import Facts, Scheme


class VanillaMark(Scheme):
    """Uchida's scheme, with or without a filter before it."""

    facts: ClassVar[Facts] = Facts(
        origin="Uchida et al. 2017",
        bit="a projection of the layer averaged over its output channels",
        needs="the weights",
        survives="half pruned by size, noise (just), quantisation, fine-tuning, scaling; half"
        " pruned at random and rearranged channels with an anchor only; 90 % pruned or"
        " second marks in its layer destroy it",
        costs="files in seconds; a matrix as large as a kernel's inputs times the bits",
        proves="nothing as published: matrix and bits are free; with a derived key the exact bound,"
        " and a certified radius",
    )
    theory: ClassVar[str] = (
        "none as published: the secret matrix may be chosen freely, and one that fits can be learnt"
        " for any model; a key that derives matrix and bits from a secret matches a foreign model"
        " like fair coins"
    )
    filters: ClassVar[tuple[Filter, ...]] = (NONE, STREAM, TILED, PRIVATE)

    def derive(self, secret: bytes, terms: Terms) -> Mark:
        """The matrix and the private pattern from the secret, the bits from the matrix."""
        check_secret(secret)
        parameters, placement = terms.parameters, terms.placement
        pools = filters.pools_of(parameters, placement)
        if pools * parameters.bits > MAX_ENTRIES:
            raise UnsuitableTensorError(
                f"{placement[0][0]!r} would need a secret of {pools:,} x {parameters.bits}"
                f" numbers, above the cap of {MAX_ENTRIES:,}: choose a smaller tensor, or a filter"
            )
        seed = terms.transcript(b"neuralmark/matrix/2", secret)
        matrix = bell_matrix(seed, pools, parameters.bits)
        extra = {}
        if parameters.filter == PRIVATE:
            extra["pattern"] = filters.private_pattern(secret, terms)
        return Mark(parameters, matrix, watermark(matrix, terms.content), extra)

    def carriers(self, mark: Mark, placement: Placement) -> Carriers:
        """All weights, or what the filter leaves."""
        return filters.carriers_of(mark, placement)

    def room(self, parameters: Parameters, placement: Placement) -> float:
        """Weights that are averaged into one."""
        pools = filters.room(parameters, placement)
        if pools and not parameters.pools:
            wide = filters.pools_of(parameters, placement) * parameters.bits
            return pools if wide <= MAX_ENTRIES else 0.0
        return pools

    def spreads(self, parameters: Parameters) -> bool:
        """With a filter the pools are fixed, and more weights help."""
        return parameters.pools > 0
