"""Pipelines as diffusers saves them: one checkpoint of all components."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import neuralmark
import neuralmark.torchvision_loading  # before diffusers, which imports transformers
from neuralmark import EmbedOptions, Key
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import (
    AmbiguousFolderError,
    MalformedError,
    NeuralMarkError,
    OutputError,
    UnknownFormatError,
)
from tests.support.commands import call
from tests.support.models import QUICK, gaussian
from tests.support.quantisers import QUANTISERS


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small latent pipeline with a sharded denoiser, and every variant in fp16."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import diffusers
    package: Any = diffusers
    torch.manual_seed(0)
    unet = package.UNet2DModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )
    vqvae = package.VQModel(block_out_channels=(32,), norm_num_groups=8, layers_per_block=1)
    folder = tmp_path_factory.mktemp("pipeline") / "p"
    made = package.LDMPipeline(vqvae=vqvae, unet=unet, scheduler=package.DDPMScheduler())
    made.save_pretrained(folder, max_shard_size="500KB")
    made.to(torch.float16).save_pretrained(folder, variant="fp16")
    return folder


def weights(folder: Path, variant: str = "") -> dict[str, torch.Tensor]:
    """All tensors, by the package that wrote them."""
    found: dict[str, torch.Tensor] = {}
    for component in ("unet", "vqvae"):
        for file in (folder / component).glob("*.safetensors"):
            if (".fp16" in file.name) == bool(variant):
                found |= {f"{component}.{n}": t for n, t in load_file(file).items()}
    return found


def test_a_pipeline_is_one_checkpoint(pipeline: Path) -> None:
    found = open_checkpoint(pipeline)
    known = weights(pipeline)
    assert len(list((pipeline / "unet").glob("*-of-*.safetensors"))) > 1
    assert {n: found.info(n).shape for n in found.names()} == {
        n: tuple(t.shape) for n, t in known.items()
    }
    name = max(known, key=lambda n: known[n].numel())
    read = np.concatenate([piece.copy() for piece in found.read(name)]).view(np.float32)
    assert np.array_equal(read, known[name].numpy().reshape(-1))
    ((label, half),) = found.others()
    assert label == "fp16 safetensors"
    assert set(half.names()) == set(known)
    assert half.info(name).dtype == "F16"


@pytest.mark.parametrize("in_place", [False, True])
def test_marking_writes_into_the_folders_of_components(
    pipeline: Path, tmp_path: Path, in_place: bool
) -> None:
    source = shutil.copytree(pipeline, tmp_path / "source")
    key, out = Key.new(QUICK), source if in_place else tmp_path / "out"
    before = weights(source)
    before = {n: t.clone() for n, t in before.items()}
    done = neuralmark.embed(source, key, None if in_place else out, in_place=in_place)
    assert done.claim is not None
    names = [name for name, _ in done.claim.placement]
    assert {name.split(".")[0] for name in names} == {"unet", "vqvae"}
    after = weights(out)
    assert {n for n in before if not torch.equal(before[n], after[n])} == set(names)
    assert neuralmark.verify(out, key, claim=done.claim).matched == QUICK.bits
    assert (out / "model_index.json").is_file()
    assert (out / "scheduler" / "scheduler_config.json").is_file()
    half = weights(out, "fp16")
    for name in names:
        rounded = torch.equal(half[name], after[name].half())
        assert rounded is not in_place  # in place, the variant is named in a warning
    if in_place:
        assert any("fp16" in warning for warning in done.warnings)


def test_the_mark_is_found_in_one_component_alone(pipeline: Path, tmp_path: Path) -> None:
    key = Key.new(QUICK)
    done = neuralmark.embed(pipeline, key, tmp_path / "out", EmbedOptions(strength=4))
    told = neuralmark.verify(tmp_path / "out" / "unet", key, claim=done.claim)
    assert (told.verified, told.mapping) == (True, "prefix")


def test_the_command_line(pipeline: Path, tmp_path: Path) -> None:
    Key.new(QUICK).save(tmp_path / "k.nmkey", None)
    arguments = ("--key", tmp_path / "k.nmkey", "--json")
    call("embed", pipeline, "-o", tmp_path / "out", *arguments)
    told = call("verify", tmp_path / "out", *arguments, "--full-digest")
    assert (told.code, told.json["status"]) == (0, "verified")
    names = set(told.json["checkpoint_digest"]["files"])
    assert any(name.startswith("vqvae/") for name in names)
    assert sum(name.startswith("unet/") for name in names) > 1
    seen = call("inspect", pipeline, "--json").json
    assert seen["format"] == "diffusers of safetensors"


def by_hand(folder: Path, index: Any = None, **files: dict[str, Any]) -> Path:
    """A pipeline of these files, `component__file`."""
    folder.mkdir()
    told: dict[str, Any] = {"_class_name": "P", "tokenizer": ["transformers", "T"]}
    for place, tensors in files.items():
        component, _, name = place.partition("__")
        (folder / component).mkdir(exist_ok=True)
        told[component] = ["diffusers", "Model"]
        tensors = {n: torch.as_tensor(t).contiguous() for n, t in tensors.items()}
        save_file(tensors, folder / component / f"{name.replace('__', '.')}.safetensors")
    (folder / "model_index.json").write_text(json.dumps(told if index is None else index))
    return folder


def test_only_a_variant(tmp_path: Path) -> None:
    one = {"w": gaussian(4, 4)}
    path = by_hand(tmp_path / "p", unet__diffusion_pytorch_model__fp16=one, text_encoder__model=one)
    assert set(open_checkpoint(path).names()) == {"unet.w", "text_encoder.w"}
    assert open_checkpoint(path).others() == []


def test_a_quantised_component(tmp_path: Path) -> None:
    made = QUANTISERS["nf4"]("l", torch.from_numpy(gaussian(64, 64)))
    path = by_hand(tmp_path / "p", transformer__diffusion_pytorch_model=made.state)
    found = open_checkpoint(path)
    assert found.info("transformer.l.weight").stored == "nf4"
    read = np.concatenate([piece.copy() for piece in found.read("transformer.l.weight")])
    assert np.array_equal(read.view(np.float32), made.value.reshape(-1))


def test_a_second_model_in_the_folder_is_not_published_unmarked(tmp_path: Path) -> None:
    weights = {"w": gaussian(256, 256)}
    path = by_hand(tmp_path / "p", unet__diffusion_pytorch_model=weights)
    save_file({"other": torch.from_numpy(gaussian(256, 256))}, path / "v1-pruned.safetensors")
    with pytest.raises(OutputError, match="would be published without the mark"):
        neuralmark.embed(path, Key.new(QUICK), tmp_path / "out")


@pytest.mark.parametrize(
    ("index", "error"),
    [
        ([], MalformedError),
        ({"unet": 3}, UnknownFormatError),
        ({"../unet": ["diffusers", "M"]}, UnknownFormatError),
        ({"unet": [None, None]}, UnknownFormatError),
        ({"gone": ["diffusers", "M"]}, UnknownFormatError),
        ({str(i): ["d", "M"] for i in range(101)}, MalformedError),
    ],
)
def test_indices_that_name_nothing(
    tmp_path: Path, index: Any, error: type[NeuralMarkError]
) -> None:
    path = by_hand(tmp_path / "p", index, unet__diffusion_pytorch_model={"w": gaussian(3, 3)})
    with pytest.raises(error):
        open_checkpoint(path)


def test_two_models_in_one_component(tmp_path: Path) -> None:
    one = {"w": gaussian(3, 3)}
    path = by_hand(tmp_path / "p", unet__diffusion_pytorch_model=one, unet__model=one)
    with pytest.raises(AmbiguousFolderError, match="loaders differ"):
        open_checkpoint(path)
    (path / "model_index.json").write_text("x" * (2 << 20))
    with pytest.raises(MalformedError):
        open_checkpoint(path)
