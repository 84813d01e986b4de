"""Carriers of a live model: reading them, adding to their gradients, shifting them.

A source covers the carriers of one marked tensor that this process holds. `Direct` is a tensor of
numbers; `Derived` is computed from parameters (a LoRA product, a parametrised weight) and passes
gradients on by autograd.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from neuralmark.core.key import Pooling
from neuralmark.core.readout import pool_of
from neuralmark.errors import UnsuitableTensorError
from neuralmark.training.layout import Index, Layout, is_dtensor, local


class WeightSource(Protocol):
    """What a live mark needs of a marked tensor."""

    name: str
    layout: Layout
    order: Index

    def parameters(self) -> Sequence[torch.Tensor]:
        """The tensors that the optimizer must know for gradients to arrive."""

    def values(self, *, differentiable: bool = False) -> torch.Tensor:
        """The carriers' present values, in order, in float32 at least."""

    def push(self, gradients: torch.Tensor) -> None:
        """Add gradients with respect to the carriers to the parameters' .grad."""

    def write(self, values: torch.Tensor) -> None:
        """Set the carriers, rounded to the tensor's dtype."""

    def exact(self) -> bool:
        """Whether what is written is what is read: in float32 and float64, but for last digits."""

    def pools(self, pools: int, per_pool: int, pooling: Pooling) -> torch.Tensor:
        """Pool of each carrier, on the device of the values."""


SPARSE = (
    'sparse gradients, which the mark\'s cannot be added to: use mode="projection", or sparse=False'
)
_EXACT = (torch.float32, torch.float64)


class _Base:
    """Index bookkeeping that follows the parameter when it moves to another device."""

    def __init__(self, name: str, layout: Layout, at: Index, order: Index) -> None:
        self.name, self.layout, self.order = name, layout, order
        self._at = at
        self._indices: dict[torch.device, torch.Tensor] = {}
        self._owners: dict[torch.device, torch.Tensor] = {}

    def pools(self, pools: int, per_pool: int, pooling: Pooling) -> torch.Tensor:
        """Pool of each carrier."""
        device = self._device()
        if device not in self._owners:
            owner = pool_of(self.order, pools, per_pool, pooling)
            self._owners[device] = torch.from_numpy(owner).to(device)
        return self._owners[device]

    def exact(self) -> bool:
        """Whether what is written is what is read."""
        return self._dtype() in _EXACT

    def index(self) -> torch.Tensor:
        """Places of the carriers in the local block, on its device."""
        device = self._device()
        if device not in self._indices:
            self._indices[device] = torch.from_numpy(self._at).to(device)
        return self._indices[device]

    def _device(self) -> torch.device:
        raise NotImplementedError

    def _dtype(self) -> torch.dtype:
        raise NotImplementedError


class Direct(_Base):
    """A tensor of numbers: a parameter, a buffer, or this process's shard of one."""

    def __init__(
        self, name: str, tensor: torch.Tensor, layout: Layout, places: tuple[Index, Index]
    ) -> None:
        """`places`: positions in the local block, and indices among all carriers."""
        super().__init__(name, layout, *places)
        self.tensor = tensor
        self.mirror: torch.Tensor | None = None
        """The model's weight, where `tensor` is a master that is rounded into it."""
        self._distributed = is_dtensor(tensor)
        self.dense = len(places[0]) == local(tensor.detach()).numel()
        """Whether every weight is a carrier (schemes without a filter): no index is needed."""

    def follow(self, master: torch.Tensor) -> None:
        """Read and write a master from now on, and the weight with it."""
        self.tensor, self.mirror = master, self.tensor if self.mirror is None else self.mirror

    def parameters(self) -> Sequence[torch.Tensor]:
        """The tensor itself."""
        return (self.tensor,)

    def values(self, *, differentiable: bool = False) -> torch.Tensor:
        """Gather the carriers."""
        given = local(self.tensor) if differentiable else self._local(self.tensor.detach())
        flat = given.reshape(-1)
        return wide(flat.clone() if self.dense else flat.index_select(0, self.index()))

    @torch.no_grad()
    def push(self, gradients: torch.Tensor) -> None:
        """Add to .grad, making it where there is none."""
        gradient = _placed_like(self.tensor)
        if gradient is not self.tensor.grad:
            self.tensor.grad = gradient
        with _flat(self._local(gradient)) as flat:
            if self.dense:
                flat.add_(gradients.to(flat.dtype))
                return
            flat.scatter_add_(0, self.index(), gradients.to(flat.dtype))  # each place once

    @torch.no_grad()
    def write(self, values: torch.Tensor) -> None:
        """Set the carriers, rounded to the tensor's dtype."""
        with _flat(self._local(self.tensor.detach())) as flat:
            flat.index_copy_(0, self.index(), values.to(flat.dtype))
        if self.mirror is not None:
            self.mirror.detach().copy_(self.tensor.detach())

    @torch.no_grad()
    def clear(self, tensor: torch.Tensor) -> None:
        """Set to zero, at the carriers' places, a tensor of the same shape and layout."""
        if tensor.layout != torch.strided:
            raise UnsuitableTensorError(f"{self.name!r} has {SPARSE}")
        with _flat(self._local(tensor.detach())) as flat:
            flat.index_fill_(0, self.index(), 0.0)

    def _local(self, tensor: torch.Tensor) -> torch.Tensor:
        return local(tensor) if self._distributed else tensor

    def _device(self) -> torch.device:
        return self.tensor.device

    def _dtype(self) -> torch.dtype:
        return self.tensor.dtype


class Derived(_Base):
    """Values computed from parameters; gradients go back by autograd, writing is impossible."""

    def __init__(
        self,
        name: str,
        layout: Layout,
        order: Index,
        compute: Callable[[], torch.Tensor],
        inputs: Sequence[torch.Tensor],
    ) -> None:
        """`compute` gives the carriers' values, in order, differentiable in `inputs`."""
        super().__init__(name, layout, np.zeros(0, np.int64), order)
        self._compute, self._inputs = compute, tuple(inputs)
        self._last: torch.Tensor | None = None

    def parameters(self) -> Sequence[torch.Tensor]:
        """What the values are computed from."""
        return self._inputs

    def values(self, *, differentiable: bool = False) -> torch.Tensor:
        """Compute the carriers' values; the graph is kept for the next `push`."""
        with torch.enable_grad():
            values = wide(self._compute())
        self._last = values
        return values if differentiable else values.detach()

    def push(self, gradients: torch.Tensor) -> None:
        """Pass gradients on to the parameters that can take them."""
        assert self._last is not None
        takers = [tensor for tensor in self._inputs if tensor.requires_grad]
        given = torch.autograd.grad(self._last, takers, gradients.to(self._last.dtype))
        self._last = None
        for tensor, gradient in zip(takers, given, strict=True):
            scaled = gradient.to(tensor.dtype)
            tensor.grad = scaled if tensor.grad is None else tensor.grad.add_(scaled)

    def write(self, values: torch.Tensor) -> None:
        """Refuse: there is no place to write to."""
        raise UnsuitableTensorError(
            f"{self.name!r} is computed from other parameters and cannot be written: use"
            ' mode="gradient"'
        )

    def _device(self) -> torch.device:
        return self._inputs[0].device

    def _dtype(self) -> torch.dtype:
        return self._inputs[0].dtype


class _flat:  # noqa: N801 - a context manager used like a function
    """A flat view of a tensor; one that is not contiguous is copied and written back."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._copy = None if tensor.is_contiguous() else tensor.contiguous()

    def __enter__(self) -> torch.Tensor:
        return (self._tensor if self._copy is None else self._copy).view(-1)

    def __exit__(self, *failure: object) -> None:
        if self._copy is not None and failure[0] is None:
            self._tensor.copy_(self._copy)


def _placed_like(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's gradient (zero where there is none), sharded as the tensor itself is.

    A replicated DTensor fed with sharded inputs leaves partial sums that nobody has added yet.
    """
    gradient = tensor.grad
    if gradient is None:
        return torch.zeros_like(tensor)
    if gradient.layout != torch.strided:
        raise UnsuitableTensorError(f"a marked tensor has {SPARSE}")
    if not is_dtensor(tensor) or gradient.placements == tensor.placements:  # type: ignore[attr-defined]
        return gradient
    moved: torch.Tensor = gradient.redistribute(placements=tensor.placements)  # type: ignore[attr-defined]
    return moved


def wide(values: torch.Tensor) -> torch.Tensor:
    """In float32 at least."""
    return values if values.dtype == torch.float64 else values.float()
