"""The gradient of the mark in one plain tensor, in as few operations as possible.

The same numbers as `readout.loss_gradient` gives; the tests hold the two against each other
through `loss_term`. Everything here runs at every training step, so in-place operations are used
where the read-out elsewhere is written for clarity.
"""

import torch

from neuralmark.core.carriers import Carriers
from neuralmark.training.live import Pools
from neuralmark.training.sources import Direct, WeightSource


class Quick:
    """Adds the term for a single tensor that this process holds as a whole."""

    def __init__(self, source: Direct, carriers: Carriers, constants: tuple[torch.Tensor, ...]):
        """`constants`: K and the signs of the watermark, on the tensor's device."""
        self._source, self._shape = source, (carriers.per_pool, carriers.pools)
        self._matrix, self._signs = constants
        self._turned = self._matrix.t()
        self._unit = 0.5 / (len(self._signs) * carriers.per_pool)

    @classmethod
    def of(
        cls, source: WeightSource, carriers: Carriers, constants: tuple[torch.Tensor, ...]
    ) -> "Quick | None":
        """For this source, if it is one plain tensor that holds every carrier."""
        plain = isinstance(source, Direct) and not source.layout.agree and source.exact()
        if not plain or carriers.pooling != "strided" or len(source.order) != carriers.size:
            return None
        assert isinstance(source, Direct)
        return cls(source, carriers, constants)

    def add(self, factor: float | torch.Tensor) -> Pools | None:
        """Add factor · ∂L_e/∂w to .grad; None (and nothing done) where that takes more care."""
        weight, gradient = self._source.tensor, self._source.tensor.grad
        if gradient is None or not (weight.is_contiguous() and gradient.is_contiguous()):
            return None
        if weight.dtype != self._matrix.dtype or weight.device != self._matrix.device:
            return None
        if self._source.dense:
            return self._add_everywhere(weight.detach(), gradient, factor)
        index = self._source.index()
        values = weight.detach().view(-1).index_select(0, index)
        pooled = values.view(self._shape).mean(0)
        share = self._share(pooled, factor)
        gradient.view(-1).scatter_add_(0, index, share.expand(self._shape).reshape(-1))
        return Pools(pooled, None, values)

    def _add_everywhere(
        self, weight: torch.Tensor, gradient: torch.Tensor, factor: float | torch.Tensor
    ) -> Pools:
        """Every weight is a carrier: no gathering, no scattering."""
        values = weight.view(self._shape)
        pooled = values.mean(0)
        gradient.view(self._shape).add_(self._share(pooled, factor))
        return Pools(pooled, None, values.reshape(-1).clone())

    def _share(self, pooled: torch.Tensor, factor: float | torch.Tensor) -> torch.Tensor:
        wrong = torch.mv(self._turned, pooled).mul_(0.5).tanh_().sub_(self._signs)
        return torch.mv(self._matrix, wrong).mul_(self._unit * factor)
