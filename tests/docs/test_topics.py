"""The code blocks of the pages on single topics run, given what each page takes for granted."""

import os
import re
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import neuralmark
from neuralmark import Key
from tests.support.commands import PYTHON
from tests.support.models import gaussian

ROOT = Path(__file__).parents[2]
PASSPHRASE = "correct horse battery staple"

# Nothing of the network: one process, and the names that a distributed script imports.
DISTRIBUTED = """
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import neuralmark

dist.init_process_group("gloo", init_method="file://" + str(Path("meet").resolve()),
                        rank=0, world_size=1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(2))


model, key, folder = Net(), neuralmark.Key.new(), "state"
"""


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def shell(*scripts: str) -> str:
    """Run in bash, in the working folder, as a user with a passphrase; give what was printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", "\n".join(scripts)],
        env=os.environ | {"PATH": path, "NEURALMARK_PASSPHRASE": PASSPHRASE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def run(block: str, names: dict[str, Any]) -> None:
    exec(compile(block, "docs", "exec"), names)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_attacks() -> None:
    commands, standard = blocks("attacks.md", "sh")
    save_file({"layer.weight": gaussian(300, 1000)}, "model.safetensors")
    printed = shell(
        "neuralmark key new acme.nmkey",
        "neuralmark embed model.safetensors --key acme.nmkey -o marked.safetensors",
        *(each.replace("--report", "--only noise --report") for each in (commands, standard)),
    )
    assert "forge-identity" in printed
    assert "3. Computational cost" in printed
    assert "0 of 6 modified unmarked networks" in printed
    assert Path("standard.html").exists()
    assert Path("card.html").exists()
    assert Path("int4.safetensors").exists()


def test_attacks_that_train() -> None:
    (block,) = blocks("attacks.md", "python")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        OrderedDict(body=torch.nn.Linear(256, 256), act=torch.nn.ReLU(), fc=torch.nn.Linear(256, 4))
    )
    key = Key.new()
    names = {
        "model": model,
        "key": key,
        "claim": neuralmark.imprint(model, key).claim,
        "inputs": torch.randn(64, 256),
        "labels": torch.randint(4, (64,)),
        "test_inputs": torch.randn(16, 256),
        "test_labels": torch.randint(4, (16,)),
    }
    run(block, names)
    assert names["result"].model is not model  # type: ignore[attr-defined]


def test_schemes() -> None:
    (commands,) = blocks("schemes.md", "sh")
    save_file({"layer3.0.conv2.weight": gaussian(64, 64, 3, 3)}, "model.safetensors")
    assert "VERIFIED" in shell(commands)
    torch.manual_seed(0)
    inner = torch.nn.Sequential(OrderedDict(conv2=torch.nn.Conv2d(64, 64, 3)))
    model = torch.nn.Sequential(OrderedDict(layer3=torch.nn.Sequential(inner)))
    names: dict[str, Any] = {
        "neuralmark": neuralmark,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }
    for block in blocks("schemes.md", "python"):
        run(block, names)
    assert names["suspicion"].matched == 24  # DeepIPR's third version
    assert (names["verdict"].status, names["verdict"].matched) == ("verified", 160)  # Lim's mark
    assert (names["undone"].status, names["undone"].matched) == ("not-verified", 87)


def test_disputes() -> None:
    (commands,) = blocks("disputes.md", "sh")
    save_file({"layer.weight": gaussian(1200, 1000)}, "base.safetensors")
    keys = "neuralmark key new acme.nmkey; neuralmark key new bandit.nmkey"
    assert "OWNER: Acme" in shell(keys, commands)


def test_copies() -> None:
    sold, shown = blocks("copies.md", "sh")
    (block,) = blocks("copies.md", "python")
    save_file({"layer.weight": gaussian(600, 500)}, "model.safetensors")
    printed = shell("neuralmark key new acme.nmkey", sold, shown)
    assert "NAMED: “Bolt GmbH”" in printed
    assert "VERIFIED" in printed
    assert Path("trace.html").exists()
    names: dict[str, Any] = {}
    run(block, names)
    assert names["found"].named == ("Acme Ltd.",)


def test_hiding() -> None:
    (commands,) = blocks("hiding.md", "sh")
    rng = np.random.default_rng(0)
    public = {f"layers.{i}.weight": gaussian(1000, 1000, seed=i) for i in range(4)}
    tuned, merged = {}, {}
    for name, weights in public.items():
        noise = rng.standard_normal(weights.shape, np.float32)
        tuned[name] = weights + 0.015 * noise
        factors = [rng.standard_normal(shape, np.float32) for shape in ((1000, 16), (16, 1000))]
        merged[name] = weights + 0.01 * factors[0] @ factors[1]
    for folder, tensors in {"public": public, "tuned": tuned, "merged": merged}.items():
        Path(folder).mkdir()
        save_file(tensors, f"{folder}/model.safetensors")
    *both, in_span = commands.strip().splitlines()
    shell("neuralmark key new acme.nmkey", *both, "rm -r marked marked.claim.json", in_span)
    assert Path("marked", "model.safetensors").exists()


def test_laboratory() -> None:
    names: dict[str, Any] = {}
    for block in blocks("lab.md", "python"):
        run(block, names)
    assert any(Path("report").iterdir())
    assert names["model"] is not None


def test_many_processes() -> None:
    Path("script.py").write_text("\n".join([DISTRIBUTED, *blocks("distributed.md", "python")]))
    done = subprocess.run([PYTHON, "script.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path("model.safetensors.claim.json").exists()
