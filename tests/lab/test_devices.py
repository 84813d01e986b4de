"""Where runs compute. No GPU is at hand here: what is tested is what happens without one."""

from typing import Any

import pytest
import torch

from neuralmark import zoo
from neuralmark.errors import ParameterError
from neuralmark.lab.execution.devices import device_for, name_of


def test_without_a_gpu_auto_is_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert name_of(device_for("0a", "auto")) == "cpu"
    with pytest.raises(ParameterError, match="torch finds no GPU here"):
        device_for("0a", "cuda")
    unknown: Any = "gpu"
    with pytest.raises(ParameterError, match="must be one of auto, cpu, cuda"):
        device_for("0a", unknown)


def test_runs_are_dealt_to_the_gpus_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    found = {run: device_for(run, "auto") for run in ("00", "01", "0b", "ff")}
    assert [str(device) for device in found.values()] == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
    assert torch.backends.cudnn.deterministic
    assert str(device_for("01", "cpu")) == "cpu"


def test_a_data_set_moves_whole() -> None:
    data = zoo.data("digits").to("meta")
    images = (data.train_images, data.train_labels, data.test_images, data.test_labels)
    assert {each.device.type for each in images} == {"meta"}
    assert data.classes == 10
