"""Accelerate: plain `neuralmark.attach` works on what `prepare` gives; this saves three lines.

model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
mark = attach(accelerator, model, optimizer, key)       # save_state and load_state include it
...
log(accelerator, mark, step)
finish(accelerator, mark, "output", seal="output")      # writes output.claim.json, output.anchor
"""

from pathlib import Path
from typing import Any

from neuralmark.errors import MissingExtraError

try:
    from accelerate import Accelerator  # type: ignore[import-untyped]
except ImportError:
    raise MissingExtraError(
        "marking with Accelerate needs it: pip install 'neuralmark[accelerate]'"
    ) from None

import torch

from neuralmark.integrations import _shared
from neuralmark.keys.key import Key
from neuralmark.marking.beside import claim_path
from neuralmark.marking.options import AttachOptions
from neuralmark.records import Claim
from neuralmark.training.handle import LiveMark


def attach(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: Any,
    key: Key,
    options: AttachOptions | None = None,
) -> LiveMark:
    """`neuralmark.attach` on prepared objects; the accelerator saves and loads the mark's state."""
    mark = _shared.Waiting(key, options).attach(model, optimizer)
    accelerator.register_for_checkpointing(mark)
    return mark


def log(accelerator: Accelerator, mark: LiveMark, step: int | None = None) -> None:
    """Rate, loss and margin to the accelerator's trackers; every process calls it."""
    accelerator.log(_shared.numbers(mark), step=step)


def finish(
    accelerator: Accelerator,
    mark: LiveMark,
    folder: str | Path,
    *,
    seal: str | Path | None = None,
) -> Claim:
    """Detach, and write the claim beside the model's folder; every process calls it.

    With `seal`, where the model will be saved, it is sealed first (`LiveMark.seal`), and the claim
    is the sealed mark's.
    """
    path, where = claim_path(Path(folder)), None if seal is None else Path(seal)
    done = _shared.finish(mark, path, writes=accelerator.is_main_process, seal=where)
    sealed = None if done.sealed is None else done.sealed.claim
    return done.claim if sealed is None else sealed
