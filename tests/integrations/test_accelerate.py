"""Accelerate: plain attach on prepared objects, and the thin helpers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.tracking import GeneralTracker  # type: ignore[import-untyped]
from accelerate.utils import ProjectConfiguration  # type: ignore[import-untyped]
from safetensors.torch import save_file

import neuralmark
from neuralmark import AttachOptions, Key
from neuralmark.integrations import accelerate as bridge
from neuralmark.marking.options import Mode

NAME = "2.weight"


def network(seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(16, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128))


class Memory(GeneralTracker):  # type: ignore[misc]
    """A tracker that keeps what it is told."""

    name = "memory"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int | None, dict[str, Any]]] = []

    @property
    def tracker(self) -> Any:
        return self

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Nothing to keep."""

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self.told.append((step, values))


def prepared(
    accelerator: Accelerator, seed: int = 0
) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = network(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    return model, optimizer


def train(
    accelerator: Accelerator, model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range
) -> None:
    for step in steps:
        with accelerator.accumulate(model):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
            accelerator.backward(model(x).square().mean())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("mode", ["gradient", "projection"])
def test_plain_attach_works_on_prepared_objects(tmp_path: Path, key: Key, mode: Mode) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer = prepared(accelerator)
    strength = 200.0 if mode == "gradient" else 1.0
    mark = neuralmark.attach(
        model,
        optimizer,
        key,
        options=neuralmark.AttachOptions(tensors=[NAME], mode=mode, strength=strength),
    )
    train(accelerator, model, optimizer, range(400))
    assert mark.steps == 200  # steps of accumulation are none of the optimizer's
    assert mark.rate == 1
    save_file(accelerator.get_state_dict(model), tmp_path / "model.safetensors")
    claim = mark.claim()
    mark.detach()
    assert neuralmark.verify(tmp_path / "model.safetensors", key, claim=claim).verified


def test_the_helpers_log_and_finish(tmp_path: Path, key: Key) -> None:
    tracker = Memory()
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("test")
    model, optimizer = prepared(accelerator)
    mark = bridge.attach(
        accelerator, model, optimizer, key, options=AttachOptions(tensors=[NAME], mode="projection")
    )
    train(accelerator, model, optimizer, range(2))
    bridge.log(accelerator, mark, step=2)
    (step, values), *_ = tracker.told
    assert step == 2
    assert values["neuralmark/rate"] == 1
    assert values["neuralmark/margin"] == pytest.approx(2, rel=1e-3)
    claim = bridge.finish(accelerator, mark, tmp_path / "out")
    accelerator.save_model(model, tmp_path / "out")
    verdict = neuralmark.verify(tmp_path / "out", key, claim=tmp_path / "out.claim.json")
    assert verdict.verified
    assert claim.marked_digest.tensors == verdict.checkpoint_digest.tensors


@pytest.mark.parametrize(("mode", "every"), [("gradient", 1), ("projection", 3)])
def test_a_loaded_state_goes_on_as_if_never_stopped(
    tmp_path: Path, key: Key, mode: Mode, every: int
) -> None:
    def start(seed: int) -> tuple[Any, Any, Any, Any]:
        accelerator = Accelerator(
            cpu=True, project_config=ProjectConfiguration(project_dir=str(tmp_path))
        )
        model, optimizer = prepared(accelerator, seed)
        mark = bridge.attach(
            accelerator,
            model,
            optimizer,
            key,
            options=AttachOptions(tensors=[NAME], mode=mode, every=every),
        )
        return accelerator, model, optimizer, mark

    accelerator, whole, optimizer, mark = start(0)
    train(accelerator, whole, optimizer, range(5))
    accelerator.save_state(str(tmp_path / "state"))
    train(accelerator, whole, optimizer, range(5, 12))
    accelerator, resumed, optimizer, again = start(7)
    accelerator.load_state(str(tmp_path / "state"))
    train(accelerator, resumed, optimizer, range(5, 12))
    assert again.steps == mark.steps == 12
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_finishing_seals(tmp_path: Path, key: Key) -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer = prepared(accelerator)
    mark = bridge.attach(accelerator, model, optimizer, key, options=AttachOptions(tensors=[NAME]))
    train(accelerator, model, optimizer, range(2))
    claim = bridge.finish(accelerator, mark, tmp_path / "out", seal=tmp_path / "out")
    accelerator.save_model(model, tmp_path / "out")
    assert claim.anchor is not None
    verdict = neuralmark.verify(tmp_path / "out", key)
    assert verdict.verified
    assert verdict.anchor_digest == claim.anchor.digest
