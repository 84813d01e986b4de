"""Adapters and pipelines whose parts are not what they should be: named errors, and obstacles."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from neuralmark.checkpoints import diffusers, open_checkpoint
from neuralmark.errors import MalformedError, UnreadableError, UnsuitableTensorError
from tests.support.makers import Arrays
from tests.support.makers import adapter as adapters
from tests.support.makers import diffusers as pipelines

ARRAYS = {
    "layer.weight": np.arange(48, dtype=np.float32).reshape(8, 6),
    "layer.bias": np.ones(8, np.float32),
}
STEM = "base_model.model.layer"


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return adapters.make(ARRAYS, tmp_path)


def test_a_compressed_base_says_what_to_do(adapter: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", **ARRAYS)  # type: ignore[arg-type]
    assert open_checkpoint(adapter, tmp_path / "plain.npz").names() == list(ARRAYS)
    np.savez_compressed(tmp_path / "packed.npz", **ARRAYS)  # type: ignore[arg-type]
    with pytest.raises(UnreadableError, match="is compressed: save it uncompressed first"):
        open_checkpoint(adapter, tmp_path / "packed.npz")


def test_integers_that_an_adapter_changes_are_an_obstacle(adapter: Path, tmp_path: Path) -> None:
    integers = ARRAYS | {"layer.weight": ARRAYS["layer.weight"].astype(np.int32)}
    save_file(integers, tmp_path / "base.safetensors")
    opened = open_checkpoint(adapter, tmp_path / "base.safetensors")
    assert opened.info("layer.weight").obstacle == "its base has the dtype I32"
    with pytest.raises(UnsuitableTensorError, match="I32"):
        list(opened.read("layer.weight"))


@pytest.mark.parametrize(
    "odd",
    [
        {f"{STEM}.lora_A.weight": np.ones((4, 6), np.int32)},
        {f"{STEM}.lora_B.weight": np.ones((8, 4), np.uint8)},
        {f"{STEM}.lora_A.weight": np.ones((0, 6), np.float32)},
        {f"{STEM}.lora_magnitude_vector": np.ones(8, np.int64)},
    ],
)
def test_factors_without_numbers_are_refused(adapter: Path, odd: Arrays) -> None:
    file = adapter / "adapter_model.safetensors"
    save_file(load_file(file) | odd, file)
    with pytest.raises(MalformedError, match="holds no numbers"):
        open_checkpoint(adapter)


def test_a_pipeline_of_too_many_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pipelines.make(ARRAYS | {"other.weight": ARRAYS["layer.weight"]}, tmp_path)
    assert len(open_checkpoint(path).names()) == 3
    monkeypatch.setattr(diffusers, "MAX_TENSORS", 2)
    with pytest.raises(MalformedError, match="more than 2 tensors"):
        open_checkpoint(path)


def test_further_tables_of_a_component_are_named_with_it(tmp_path: Path) -> None:
    path = pipelines.make(ARRAYS, tmp_path)
    (path / "unet").mkdir()
    weights = {"conv.weight": torch.ones(4, 4), "conv.bias": torch.ones(4)}
    averages = {name: 2 * tensor for name, tensor in weights.items()}
    both = {"state_dict": weights, "state_dict_ema": averages}
    torch.save(both, path / "unet" / "diffusion_pytorch_model.bin")
    index = json.loads((path / "model_index.json").read_text())
    index["unet"] = ["diffusers", "Model"]
    (path / "model_index.json").write_text(json.dumps(index))
    for file in (path / "layer").iterdir():  # one kind of file for all components
        torch.save(
            {n: torch.from_numpy(a) for n, a in load_file(file).items()}, file.with_suffix(".bin")
        )
        file.unlink()
    opened = open_checkpoint(path)
    assert "unet.conv.weight" in opened.names()
    ((label, other),) = opened.others()
    assert label == "unet: state_dict_ema"
    assert other.names() == ["unet.conv.weight", "unet.conv.bias"]
    (piece,) = other.read("unet.conv.bias")
    assert np.array_equal(piece.view(np.float32), [2, 2, 2, 2])
