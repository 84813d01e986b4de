"""A suspect run once on an example: what each of its modules takes and gives."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralmark.errors import ParameterError
from neuralmark.training.probing.calling import Seen


@contextmanager
def at_rest(model: torch.nn.Module) -> Iterator[None]:
    """In evaluation, without gradients, with random numbers of its own; then as before."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model.eval()
            yield
    finally:
        for module, training in modes:
            module.training = training


def given_example(example: Any, model: torch.nn.Module) -> Tensor:
    """The example as a tensor where the module is: as given, or random numbers of a shape."""
    own = next((value for value in model.parameters() if value.is_floating_point()), None)
    if isinstance(example, Tensor):
        made = example.detach()
    elif isinstance(example, np.ndarray):
        made = torch.from_numpy(example)
    else:
        made = torch.randn(tuple(example), generator=torch.Generator().manual_seed(0))
    if own is None:
        return made
    return made.to(own) if made.is_floating_point() else made.to(own.device)


def watched(model: torch.nn.Module, example: Tensor) -> tuple[dict[str, Seen], str]:
    """What went through each module that takes and gives one tensor, by name; and what stopped it.

    Of what is called several times, the first call counts.
    """
    found: dict[str, Seen] = {}
    hooks = [
        module.register_forward_hook(_noting(found, name), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    stopped = ""
    try:
        model(example)
    except (Exception, SystemExit) as error:
        why = str(error).splitlines()[0] if str(error) else ""
        stopped = f"the suspect raised {type(error).__name__} on the example{why and f' ({why})'}"
    finally:
        for hook in hooks:
            hook.remove()
    if stopped and not found:
        raise ParameterError(f"{stopped}: give an example that it takes")
    return found, stopped


def _noting(found: dict[str, Seen], name: str) -> Any:
    def note(_: Any, given: Sequence[Any], named: dict[str, Any], made: Any) -> None:
        tensors = [each for each in (*given, *named.values()) if isinstance(each, Tensor)]
        one = len(tensors) == len(given) == 1
        if name in found or not one or not isinstance(made, Tensor):
            return
        if tensors[0].is_floating_point() and tensors[0].ndim and tensors[0].numel():
            found[name] = Seen.of(tensors[0], made)

    return note
