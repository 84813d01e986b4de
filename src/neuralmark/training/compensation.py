"""Training on with the mark held still: only weights that do not carry it move.

Feng and Zhang call it compensation: what writing a mark cost in accuracy is trained back in the
other weights. Masking gradients is not enough: momentum and weight decay move a weight without one.
So the marked weights are set back after every step, and what the optimizer remembers of them is
cleared.
"""

from types import TracebackType
from typing import Any, Self

import torch

from neuralmark.errors import ParameterError, UnsuitableTensorError
from neuralmark.keys.key import Key
from neuralmark.records import Claim
from neuralmark.training.attach import locate, unwrap
from neuralmark.training.masters import adopt
from neuralmark.training.site import Site
from neuralmark.training.sources import Direct


def compensate(model: torch.nn.Module, optimizer: Any, key: Key, claim: Claim) -> "Compensation":
    """Hold a mark that is in the model while you train on: its weights do not move.

    Args:
        model: The marked module, sharded or not.
        optimizer: The optimizer that steps it, or a wrapper of one.
        key: The key that it is marked with.
        claim: Where: what `imprint`, `embed` or `mark.claim()` gave.

    Returns:
        A handle; `detach` lets go, and so does the end of a `with` block.

    Raises:
        ParameterError: The claim is of another key, or the optimizer is not torch's.
        UsageError: The claim's tensors are not in this model, or are computed from others.

    Examples:
        >>> made = neuralmark.imprint(network, key)
        >>> with neuralmark.compensate(network, optimizer, key, made.claim) as held:
        ...     network(torch.ones(1, 128)).sum().backward()
        ...     optimizer.step()
        >>> held.steps, neuralmark.verify(network, key, claim=made.claim).rate
        (1, 1.0)
    """
    if claim.fingerprint != key.fingerprint:
        raise ParameterError(
            f"the claim is of the key {claim.fingerprint[:60]}, not of {key.fingerprint}: give the"
            " key that the model was marked with"
        )
    site = locate(model, key, [name for name, _ in claim.placement])
    if site.placement != claim.placement:
        raise UnsuitableTensorError(
            "the claim's tensors have other shapes in this model: give the claim of this model"
        )
    if claim.anchor is not None:
        site = site.bound_to(claim.anchor)
    return Compensation(site, unwrap(optimizer))


class Compensation:
    """A mark that is held while the rest is trained. Made by `neuralmark.compensate`.

    Attributes:
        steps: How many steps of the optimizer it has seen.
        weights: How many weights it holds (on this process).

    Examples:
        >>> made = neuralmark.imprint(network, key)
        >>> held = neuralmark.compensate(network, optimizer, key, made.claim)
        >>> held.weights == made.carriers
        True
        >>> held.detach()
    """

    steps: int
    weights: int

    def __init__(self, site: Site, optimizer: torch.optim.Optimizer) -> None:
        """Hook the optimizer's step; `compensate` calls it."""
        self._sources: list[Direct] = []
        for source in site.sources:
            if not isinstance(source, Direct):
                raise UnsuitableTensorError(
                    f"{source.name!r} is computed from other parameters, which would all have to"
                    " stay: merge it first, or mark another tensor"
                )
            self._sources.append(source)
        adopt(site.sources, optimizer, "projection")
        self.steps, self.weights = 0, sum(len(source.order) for source in self._sources)
        self._optimizer = optimizer
        self._kept = [source.values() for source in self._sources]
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def detach(self) -> None:
        """Let go: all weights may move again. May be called twice.

        Examples:
            >>> made = neuralmark.imprint(network, key)
            >>> held = neuralmark.compensate(network, optimizer, key, made.claim)
            >>> held.detach()
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def __enter__(self) -> Self:
        """Hold until the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go."""
        self.detach()

    def _before(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """No gradient for weights that are held."""
        for source in self._sources:
            if source.tensor.grad is not None:
                source.clear(source.tensor.grad)

    def _after(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Set them back, and clear what the optimizer remembers of them."""
        for source, kept in zip(self._sources, self._kept, strict=True):
            source.write(kept.to(source.tensor.device))
            for value in self._optimizer.state.get(source.tensor, {}).values():
                if isinstance(value, torch.Tensor) and value.shape == source.tensor.shape:
                    source.clear(value)
        self.steps += 1
