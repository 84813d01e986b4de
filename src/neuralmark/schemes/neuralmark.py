"""NeuralMark: the watermark, hashed from the key, picks the carriers (docs/method.md)."""

from typing import ClassVar

from neuralmark.core import key as core
from neuralmark.core.carriers import Carriers, expected_per_pool
from neuralmark.core.key import STREAM, TILED, Filter, Mark, Parameters, Placement, Terms
from neuralmark.schemes.contract import Arrays, Facts, Scheme, total_size


class NeuralMark(Scheme):
    """Hashed filter, average pooling, a projection; b is the hash of K."""

    facts: ClassVar[Facts] = Facts(
        origin="the paper",
        bit="a projection of pooled carriers, chosen by the hashed watermark",
        needs="the weights",
        survives="half pruned by size, noise, quantisation, fine-tuning, a second mark, scaling;"
        " half pruned at random and rearranged channels with an anchor only; 90 % pruned"
        " or eight second marks destroy it",
        costs="files in seconds; the smallest change that gives every bit its margin",
        proves="the exact bound with a derived key, and a certified radius; nothing with a matrix"
        " of free choice",
    )
    theory: ClassVar[str] = (
        "a key derived from a secret matches each bit of a foreign model like a fair coin, so the"
        " bound is exact; a matrix of one's own choice can be fitted, so it has none"
    )

    filters: ClassVar[tuple[Filter, ...]] = (STREAM, TILED)

    def derive(self, secret: bytes, terms: Terms) -> Mark:
        """K from the secret, b from K."""
        return core.derive(secret, terms)

    def chosen(self, arrays: Arrays, terms: Terms) -> Mark:
        """K as it is; b is its hash all the same."""
        matrix = arrays["matrix"]
        return Mark(terms.parameters, matrix, core.watermark(matrix, terms.content))

    def carriers(self, mark: Mark, placement: Placement) -> Carriers:
        """What R rounds of the hashed filter leave."""
        return Carriers.of(mark, total_size(placement))

    def room(self, parameters: Parameters, placement: Placement) -> float:
        """Half of the weights survive each round."""
        return expected_per_pool(total_size(placement), parameters.pools, parameters.rounds)

    def spreads(self, parameters: Parameters) -> bool:
        """The more weights share a pool, the cheaper the mark."""
        return True
