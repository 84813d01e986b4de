"""The filter as a part of its own: which weights a scheme looks at, before it pools them.

`none` takes all weights. `hashed` is NeuralMark's: R rounds under the watermark, so that nobody
can choose it. `private` is the paper's comparison: R rounds under a secret pattern that has
nothing to do with the watermark; whoever may choose it freely can forge with it (see the attack
`forge-identity`).
"""

import hashlib
import math

import numpy as np
import numpy.typing as npt

from neuralmark.core.carriers import Carriers, Listed, expected_per_pool
from neuralmark.core.key import Mark, Parameters, Placement, transcript
from neuralmark.errors import ParameterError, TooFewCarriersError
from neuralmark.schemes._base import total_size

FILTERS = ("none", "hashed", "private")


def check(parameters: Parameters) -> None:
    """Refuse a filter that is none of these, or one without rounds."""
    chosen = parameters.setting("filter")
    if chosen not in FILTERS:
        raise ParameterError(f"filter must be one of {', '.join(FILTERS)}, not {chosen!r}")
    if (chosen == "none") != (parameters.rounds == 0):
        raise ParameterError(
            "without a filter there are no rounds" if chosen == "none" else "a filter needs rounds"
        )
    if (chosen == "none") != (parameters.pools == 0):
        raise ParameterError(
            "without a filter the tensor's shape gives the pools"
            if chosen == "none"
            else "a filter needs pools"
        )


def private_pattern(
    secret: bytes, parameters: Parameters, placement: Placement, content: bytes
) -> npt.NDArray[np.uint8]:
    """The pattern of a native key's private filter: n bits that follow from the secret only."""
    seed = transcript(b"neuralmark/filter/1", secret, parameters, placement, content)
    packed = np.frombuffer(hashlib.shake_256(seed).digest((parameters.bits + 7) // 8), np.uint8)
    return np.unpackbits(packed, count=parameters.bits)


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
    chosen = parameters.setting("filter")
    if chosen == "none":
        if pools_of(parameters, placement) != pools:
            raise TooFewCarriersError(
                f"this key is made for {pools:,} pools, and the tensor gives"
                f" {pools_of(parameters, placement):,}: name the tensor that it was made for"
            )
        return Carriers.everything(total, pools)
    if chosen == "hashed":
        return Carriers.under(mark.bits, parameters.rounds, total, pools)
    if "filter" in mark.extra:
        return Listed.at(mark.extra["filter"], total, pools)
    return Carriers.under(mark.extra["pattern"], parameters.rounds, total, pools)


def room(parameters: Parameters, placement: Placement) -> float:
    """Carriers a pool to expect."""
    if parameters.pools == 0:
        try:
            return float(total_size(placement) // pools_of(parameters, placement))
        except ParameterError:
            return 0.0
    return expected_per_pool(total_size(placement), parameters.pools, parameters.rounds)
