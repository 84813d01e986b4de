"""Read a model in a sandboxed process instead of this one (the sandbox itself: `sandbox/`)."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from neuralmark.checkpoints import place_of
from neuralmark.errors import NeuralMarkWarning, ParameterError
from neuralmark.marking.options import VerifyOptions
from neuralmark.marking.reading import Progress
from neuralmark.storage.places import FarPlace, Place


def read_apart(
    work: Callable[..., dict[str, Any]],
    model: Any,
    options: VerifyOptions,
    given: dict[str, Any],
    progress: Progress | None,
) -> dict[str, Any]:
    """Have a sandboxed process do the work; what it says is as little to be trusted as the model.

    `work` is a function of a module, called with the place, the options and `given`, and returns
    plain values.
    """
    from neuralmark.anchors.anchor import Anchor
    from neuralmark.sandbox.confined import Confined
    from neuralmark.sandbox.served import PlaceServer

    if not isinstance(model, str | Path | FarPlace):
        raise ParameterError(
            "a sandbox is for files: a live model, or one at its triggers, is read here; leave"
            " VerifyOptions(sandbox=...) out"
        )
    if isinstance(options.anchor, Anchor):
        raise ParameterError("in a sandbox the anchor is given as its file, not as an Anchor")
    place, label = place_of(model), str(model)
    server = PlaceServer(lambda target: place)
    server.allow([label])
    far = isinstance(place, FarPlace)
    given = given | {"options": replace(options, sandbox=None)}
    with Confined(options.sandbox, server.answer) as reader:
        told: dict[str, Any] = reader.call(in_sandbox, work, label, far, given, progress=progress)
        if not reader.protection.whole:
            warnings.warn(f"sandbox: {reader.protection}", NeuralMarkWarning, stacklevel=4)
    return told


def in_sandbox(
    work: Callable[..., dict[str, Any]], model: str, far: bool, given: dict[str, Any]
) -> dict[str, Any]:
    """In the sandboxed process: do the work on what the parent serves, or on the file itself."""
    from neuralmark.sandbox import child
    from neuralmark.sandbox.served import ServedPlace

    place: Place = ServedPlace(model) if far else Path(model)
    return work(place, progress=child.tell if child.sandboxed() else None, **given)
