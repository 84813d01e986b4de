"""What all integrations do alike: attach, resume, tell the numbers, finish."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from neuralmark.errors import NeuralMarkError, NonFiniteError
from neuralmark.keys.key import Key
from neuralmark.marking.options import AttachOptions
from neuralmark.records import Claim
from neuralmark.training.attach import attach
from neuralmark.training.handle import LiveMark
from neuralmark.training.layout import Peers, require_agreement


@dataclass(frozen=True)
class Waiting:
    """What `neuralmark.attach` takes besides model and optimizer, kept until both exist."""

    key: Key
    options: AttachOptions | None = None

    def attach(
        self, model: torch.nn.Module, optimizer: Any, state: dict[str, Any] | None = None
    ) -> LiveMark:
        """Attach, and go on from the saved state of a handle if there is one.

        Frameworks may show the inner model of DDP, which does not know its peers: so all processes
        are asked whether they have the same key.
        """
        if dist.is_available() and dist.is_initialized():
            device = next((p.device.type for p in model.parameters()), "cpu")
            world = Peers(dist.group.WORLD, device)
            require_agreement((world,), {"key": self.key.fingerprint})
        mark = attach(model, optimizer, self.key, self.options)
        if state is not None:
            try:
                mark.load_state_dict(state)
            except NeuralMarkError:
                mark.detach()
                raise
        return mark


def numbers(mark: LiveMark) -> dict[str, float]:
    """What is logged; NaN where the weights are NaN, so that logging never ends a training."""
    try:
        now = mark.measure()
    except NonFiniteError:
        return dict.fromkeys(
            ("neuralmark/rate", "neuralmark/loss", "neuralmark/margin"), float("nan")
        )
    return {
        "neuralmark/rate": now.rate,
        "neuralmark/loss": now.loss,
        "neuralmark/margin": now.margin,
    }


def finish(mark: LiveMark, path: Path, *, writes: bool) -> Claim:
    """Restore all margins, detach, and let one process write the claim; every process calls it."""
    try:
        if mark.settings.mode == "projection":
            mark.project()
        claim = mark.claim()
    finally:
        mark.detach()
    if writes:
        path.parent.mkdir(parents=True, exist_ok=True)
        claim.save(path, overwrite=True)
    return claim
