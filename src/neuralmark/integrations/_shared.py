"""What all integrations do alike: attach, resume, tell the numbers, finish."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from neuralmark.errors import NeuralMarkError, NonFiniteError
from neuralmark.keys.key import Key
from neuralmark.marking.beside import claim_path
from neuralmark.marking.embedding import Embedding
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


@dataclass(frozen=True)
class FinishedMark:
    """What is left of a marked training: the trained mark's claim, and the sealed mark, if any."""

    claim: Claim
    sealed: Embedding | None = None


def finish(mark: LiveMark, path: Path, *, writes: bool, seal: Path | None = None) -> FinishedMark:
    """Restore all margins, seal if asked to, detach, and let one process write the claim.

    Every process calls it. Beside the model lies one claim of a key only: where the sealed mark's
    has the name that the trained one's would have, it is the sealed one's.
    """
    sealed = None
    try:
        if mark.settings.mode == "projection":
            mark.project()
        if seal is not None:
            if writes:
                seal.parent.mkdir(parents=True, exist_ok=True)
            sealed = mark.seal(seal, writes=writes)
        claim = mark.claim()
    finally:
        mark.detach()
    if writes and (seal is None or claim_path(seal) != path):
        path.parent.mkdir(parents=True, exist_ok=True)
        claim.save(path, overwrite=True)
    return FinishedMark(claim, sealed)
