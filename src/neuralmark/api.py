"""Public functions that take a checkpoint or a live model alike."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from neuralmark import verification
from neuralmark.keyfile import Key
from neuralmark.reading import Progress
from neuralmark.records import Claim, Verdict

if TYPE_CHECKING:
    import torch


def verify(
    model: "str | Path | torch.nn.Module",
    key: Key,
    *,
    claim: Claim | str | Path | None = None,
    tensors: Sequence[str] | None = None,
    full_digest: bool = False,
    progress: Progress | None = None,
) -> Verdict:
    """Look for the key's mark in a checkpoint (a path) or in a live module.

    With a claim or tensor names, only there; without, in the list that `auto` would choose and in
    every tensor that is large enough, the bound corrected for all of them. On a sharded module
    all processes must call it.
    """
    if isinstance(model, str | Path):
        return verification.verify(
            model,
            key,
            claim=claim,
            tensors=tensors,
            full_digest=full_digest,
            progress=progress,
        )
    from neuralmark.training.live import LiveSuspect

    return verification.examine(LiveSuspect(model), key, claim=claim, tensors=tensors)
