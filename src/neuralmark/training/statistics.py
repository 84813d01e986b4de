"""Norms with running statistics, while a gradient goes through them in evaluation.

In evaluation a batch norm divides by statistics that were counted earlier. They are constants to
autograd, so a loss may push the mean and the size of a channel wherever it likes; the next batch of
a training takes that back, the running statistics follow late, and meanwhile the weights run away
from them: the network works in training and fails in evaluation. Here a norm gives what it gives in
evaluation, but its gradient is that of a norm whose statistics move along with its inputs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase


@contextmanager
def moving_along(model: torch.nn.Module) -> Iterator[None]:
    """Have the statistics of all norms that are being trained move along, in the gradient only.

    Norms that the user keeps in evaluation stay as they are: their statistics are constants.
    """
    trained = [each for each in model.modules() if isinstance(each, _NormBase) and each.training]
    hooks = [
        norm.register_forward_hook(_moved)
        for norm in trained
        if norm.running_mean is not None and torch.is_grad_enabled()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _moved(norm: Any, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor | None:
    """The norm's output in evaluation, with the gradient of one that takes its own statistics."""
    inputs = given[0]
    if inputs.dim() < 2 or inputs.numel() < 2 * inputs.shape[1]:
        return None  # of one value per channel nothing would be left
    shape = (1, -1, *(1 for _ in inputs.shape[2:]))
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    wide = inputs.to(norm.running_mean.dtype)
    own = functional.batch_norm(wide, None, None, training=True, eps=norm.eps)
    spread, mean = torch.var_mean(wide.detach(), dim=axes, correction=0)
    size = (norm.running_var + norm.eps).sqrt()
    scale, offset = (spread + norm.eps).sqrt() / size, (mean - norm.running_mean) / size
    moved: torch.Tensor = own * scale.view(shape) + offset.view(shape)
    if norm.weight is not None:
        moved = moved * norm.weight.view(shape)
    if norm.bias is not None:
        moved = moved + norm.bias.view(shape)
    return moved.to(output.dtype)
