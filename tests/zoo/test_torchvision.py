"""torchvision works beside any torch, and so does what imports it; each in a fresh process."""

import subprocess
import sys

import pytest

import neuralmark.torchvision_loading as ours
from neuralmark.errors import MissingExtraError
from tests.support.commands import clean_environment
from tests.support.processes import PATIENCE

FIRST = "import neuralmark.torchvision_loading as ours; "


def run(code: str) -> str:
    """Its output, warnings being errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=clean_environment(OMP_NUM_THREADS="1", PYTHONPATH=":".join(sys.path)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_what_imports_torchvision_works_behind_it() -> None:
    imports = (
        "import torchvision, peft, accelerate, lightning.pytorch\n"
        "from transformers import GPT2Config, GPT2LMHeadModel, Trainer\n"
    )
    assert run(f"{FIRST}{imports}print('fine')") == "fine"


def test_operators_exist_and_are_not_made_up() -> None:
    out = run(
        FIRST + "tv = ours.load(); import torch\n"
        "boxes = torch.tensor([[0.0, 0, 1, 1]])\n"
        "try: print(ours.stands_in(), tv.ops.nms(boxes, torch.ones(1), 0.5).tolist())\n"
        "except (NotImplementedError, RuntimeError): print(ours.stands_in(), 'none')"
    )
    assert out in ("True none", "False [0]")  # declared only, or compiled and right


def test_operators_that_are_there_are_left_alone() -> None:
    signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    out = run(
        "import torch; kept = torch.library.Library('torchvision', 'FRAGMENT')\n"
        f"for name in ('nms', 'qnms'):\n"
        f"    if not hasattr(torch.ops.torchvision, name): kept.define(name + '{signature}')\n"
        + FIRST
        + "print(ours.stands_in(), ours.load().__name__)"
    )
    assert out == "False torchvision"


def test_without_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'neuralmark\[vision\]'"):
        ours.load()


def test_names_are_listed_without_torch() -> None:
    out = run(
        "import sys; from neuralmark import zoo; zoo.architectures(), zoo.datasets();"
        "print(zoo.architecture('swin_v2_b').marked, 'torch' in sys.modules)"
    )
    assert out == "('features.5.17.mlp.0.weight',) False"
