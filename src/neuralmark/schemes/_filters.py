"""The filter as a part of its own: which weights a scheme looks at, before it pools them.

`none` takes all weights. `stream` and `tiled` are NeuralMark's: R rounds under a keystream grown
from the watermark, or under the watermark itself as published, so that nobody can choose them.
`private` is the paper's comparison: R rounds under a secret pattern that has
nothing to do with the watermark; whoever may choose it freely can forge with it (see the attack
`forge-identity`).
"""

import math

import numpy as np
import numpy.typing as npt

from neuralmark.core.carriers import Carriers, Listed, Tiled, expected_per_pool
from neuralmark.core.key import (
    NONE,
    PRIVATE,
    Mark,
    Parameters,
    Placement,
    Terms,
    hashed_bits,
)
from neuralmark.errors import ParameterError, TooFewCarriersError
from neuralmark.schemes.contract import total_size


def private_pattern(secret: bytes, terms: Terms) -> npt.NDArray[np.uint8]:
    """The pattern of a native key's private filter: n bits that follow from the secret only."""
    seed = terms.transcript(b"neuralmark/private/2", secret)
    return hashed_bits(seed, terms.parameters.bits)


def pools_of(parameters: Parameters, placement: Placement) -> int:
    """How many pools a scheme of Uchida's kind has here.

    Without a filter, a convolution's weights are averaged over its output channels, so there are
    in·h·w of them; a linear layer's are not averaged.
    """
    if parameters.pools:
        return parameters.pools
    shapes = [shape for _, shape in placement]
    inner = [shape[1:] if len(shape) > 2 else shape for shape in shapes]
    if len({*inner}) != 1 or (len(shapes) > 1 and len(shapes[0]) <= 2):
        raise ParameterError(
            "without a filter this scheme marks one tensor, or convolutions of one input shape:"
            " name one tensor"
        )
    return math.prod(inner[0])


def carriers_of(mark: Mark, placement: Placement) -> Carriers:
    """The carriers that the mark's filter leaves."""
    total, pools = total_size(placement), len(mark.matrix)
    parameters = mark.parameters
    if parameters.filter == NONE:
        if pools_of(parameters, placement) != pools:
            raise TooFewCarriersError(
                f"this key is made for {pools:,} pools, and the tensor gives"
                f" {pools_of(parameters, placement):,}: name the tensor that it was made for"
            )
        return Carriers.everything(total, pools)
    if parameters.filter != PRIVATE:
        return Carriers.of(mark, total)
    if "filter" in mark.extra:
        return Listed.at(mark.extra["filter"], total, pools)
    return Tiled.under(mark.extra["pattern"], parameters.rounds, total, pools)


def room(parameters: Parameters, placement: Placement) -> float:
    """Carriers per pool to expect."""
    if parameters.pools == 0:
        try:
            return float(total_size(placement) // pools_of(parameters, placement))
        except ParameterError:
            return 0.0
    return expected_per_pool(total_size(placement), parameters.pools, parameters.rounds)
