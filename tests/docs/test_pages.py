"""Every code block on the pages of the journeys runs, in the order in which a reader meets it.

`sh` blocks run in bash, `python` blocks share their names over a page; both work in one folder that
holds an unmarked `model.safetensors`. A block that is not to be run is marked `text`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
JOURNEYS = {
    "README.md": ("VERIFIED", "True 256 256 -255.0", "greedymark"),
    "docs/index.md": ("VERIFIED",),
    "docs/owner.md": ("VERIFIED", "True 256 256 -255.0"),
    "docs/judge.md": ("VERIFIED", '"verified": true', "OWNER: Acme"),
    "docs/anchors.md": ("VERIFIED", "position 256"),
    "docs/researcher.md": ("forge-identity", "greedymark", "overlap"),
    "docs/scan.md": ("SOMETHING VERIFIED", "True {'nothing': 1, 'verified': 1}"),
    "docs/method.md": (),
    "docs/threat-model.md": (),
    "docs/glossary.md": (),
}
"""Pages, and what running them prints among other things."""


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of every fenced block."""
    return FENCE.findall((ROOT / page).read_text(encoding="utf-8"))


def training() -> dict[str, Any]:
    """What a reader with a training loop has already."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()
    )
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "loader": [(torch.randn(8, 16), torch.randint(256, (8,))) for _ in range(4)],
        "task_loss": torch.nn.functional.cross_entropy,
    }


@pytest.mark.parametrize("page", JOURNEYS)
def test_every_block_runs(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((300, 1000)).astype(np.float32)
    save_file({"layer.weight": weights}, tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"NEURALMARK_PASSPHRASE": "correct horse battery staple"}
    names, printed = training(), ""
    for language, block in blocks(page):
        assert language in ("sh", "python", "text"), f"{page}: say what this block is: {block}"
        if language == "sh":
            done = subprocess.run(
                ["bash", "-euc", block],
                env=environment | {"PATH": path},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
            printed += done.stdout
        elif language == "python":
            exec(compile(block, page, "exec"), names)
    printed += capsys.readouterr().out
    for words in JOURNEYS[page]:
        assert words in printed


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/owner.md", "docs/judge.md"])
def test_the_journeys_have_something_to_run(page: str) -> None:
    assert {language for language, _ in blocks(page)} >= {"sh", "python"}
