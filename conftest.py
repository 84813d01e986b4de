"""Runs before all tests and doctests.

Makes torchvision importable beside the CPU build of torch: transformers, lightning and peft import
it wherever it is installed; see neuralmark.torchvision_loading for what is wrong with the pair that
pip finds.

Doctests run in a folder of their own, which holds a small `model.safetensors` and, marked with
`key`, `marked.safetensors` with its claim. Those of neuralmark.training have a live `network` and
its `optimizer` too.

What is drawn at random is the same in every run: see tests/support/luck.py.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.support import luck

import neuralmark
import neuralmark.torchvision_loading


def pytest_configure() -> None:
    """Before anything is imported that draws."""
    luck.load()


def pytest_report_header() -> str:
    """Which luck this run has."""
    return f"luck: NEURALMARK_TEST_SEED={luck.SEED!r}"


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> None:
    """A fixture draws the same whoever asks for it first."""
    luck.begin(f"{request.node.nodeid}/{fixturedef.argname}/{request.param_index}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """A test draws the same whatever ran before it."""
    luck.begin(item.nodeid)


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, neuralmark.Key]:
    """What the examples in docstrings begin with: the folder of files, and the key."""
    folder = tmp_path_factory.mktemp("examples")
    rng = np.random.default_rng(0)
    shapes = {"layer1.weight": (128, 128), "layer2.weight": (96, 128)}
    tensors = {
        name: (0.05 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    key = neuralmark.Key.new(neuralmark.Parameters(bits=160, pools=320))
    neuralmark.embed(folder / "model.safetensors", key, folder / "marked.safetensors")
    return folder, key


@pytest.fixture(autouse=True)
def example_folder(
    request: pytest.FixtureRequest, doctest_namespace: dict[str, Any], tmp_path_factory: Any
) -> None:
    """Run a doctest in a fresh copy of the folder, with `neuralmark` and `key` at hand."""
    if not isinstance(request.node, pytest.DoctestItem):
        return
    folder, key = request.getfixturevalue("examples")
    fresh = tmp_path_factory.mktemp("example") / "files"
    shutil.copytree(folder, fresh)
    request.getfixturevalue("monkeypatch").chdir(fresh)
    doctest_namespace.update(neuralmark=neuralmark, key=key)
    if "training" in request.node.path.parts:
        import torch

        network = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.Linear(128, 96))
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        doctest_namespace.update(torch=torch, network=network, optimizer=optimizer)
