"""torchvision, also beside a torch that its compiled part was not made for.

PyPI has torchvision only as compiled for CUDA. Beside the CPU build of torch its library does not
load, and `import torchvision` then fails on two operators, `nms` and `qnms`, whose shapes it wants
to register. Models, transforms and data sets need neither. So, only where the compiled operators
are missing, the two are declared without an implementation: calling one still fails, as it should.

Importing this module does that much and no more; `load` gives torchvision. transformers,
torchmetrics and peft import torchvision wherever it is installed, so whoever imports them beside
such a pair must import this module first. Where torchvision is sound or absent, nothing happens.
"""

import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from neuralmark.errors import MissingExtraError

INSTALL = "pip install 'neuralmark[vision]'"
_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[Any] = []
"""What holds the declarations: they vanish with it."""


def load() -> Any:
    """The torchvision module, or an error with the line that installs it."""
    try:
        return import_module("torchvision")
    except ModuleNotFoundError:
        raise MissingExtraError(f"this model is torchvision's: {INSTALL}") from None


def stands_in() -> bool:
    """Whether operators had to be declared here."""
    return bool(_declared)


def _prepare() -> None:
    found = None if "torchvision" in sys.modules else find_spec("torchvision")
    if found is None or found.origin is None or find_spec("torch") is None:
        return
    import torch

    for compiled in Path(found.origin).parent.glob("_C.*"):
        with suppress(OSError):  # the reason for all of this
            torch.ops.load_library(compiled)
    missing = [name for name in _OPERATORS if not hasattr(torch.ops.torchvision, name)]
    if missing:
        _declared.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in missing:
            _declared[0].define(name + _SIGNATURE)


_prepare()
