"""What cannot be written is refused before anything is."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

import neuralmark
from neuralmark import EmbedOptions, Key
from neuralmark.errors import InfeasibleError, NonFiniteError, OutputError, UnsuitableTensorError
from neuralmark.marking.reading import require_carriers
from tests.support.checks import content_of
from tests.support.dtypes import TORCH
from tests.support.models import QUICK, gaussian, gaussian_model


def test_tied_tensors_are_not_marked_twice(tmp_path: Path) -> None:
    weight = torch.from_numpy(gaussian(256, 256))
    torch.save({"embed.weight": weight, "head.weight": weight}, tmp_path / "m.pt")
    options = EmbedOptions(tensors=["embed.weight", "head.weight"])
    with pytest.raises(UnsuitableTensorError, match=r"share their bytes \(tied weights\)"):
        neuralmark.embed(tmp_path / "m.pt", Key.new(QUICK), options=options)


def test_carriers_that_are_all_equal_have_no_scale(tmp_path: Path) -> None:
    key, placement = Key.new(QUICK), (("a.weight", (256, 256)),)
    values = gaussian(256, 256).reshape(-1)
    values[require_carriers(key.at(placement), placement).positions()] = 0.0
    save_file({"a.weight": values.reshape(256, 256)}, tmp_path / "m.safetensors")
    with pytest.raises(InfeasibleError, match="all equal"):
        neuralmark.embed(
            tmp_path / "m.safetensors",
            key,
            options=EmbedOptions(tensors=["a.weight"], anchor=False),
        )


def test_a_budget_that_no_coarse_type_can_keep(tmp_path: Path) -> None:
    tensor = torch.from_numpy(gaussian(256, 256)).to(TORCH["F8_E5M2"])
    save_torch({"a.weight": tensor}, tmp_path / "m.safetensors")
    key = Key(QUICK, salt=bytes(32), secret=bytes(range(32)))
    for budget, words in ((0.01, "even the weakest mark"), (5.0, "so coarse a dtype")):
        options = EmbedOptions(budget=budget)
        with pytest.raises(InfeasibleError, match=words):
            neuralmark.embed(tmp_path / "m.safetensors", key, options=options)


def test_an_output_and_in_place_exclude_each_other(tmp_path: Path) -> None:
    model = gaussian_model(tmp_path / "m.safetensors")
    with pytest.raises(OutputError, match="exclude each other"):
        neuralmark.embed(model, Key.new(QUICK), tmp_path / "o.safetensors", in_place=True)


def test_a_disk_that_forgets_what_is_written_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark is read back; nothing is left of one that is not there."""
    model = gaussian_model(tmp_path / "m.safetensors")
    before = content_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("neuralmark.storage.files.write_at", lambda handle, data, offset: None)
        for options in ({"in_place": True}, {"out": tmp_path / "o.safetensors"}):
            with pytest.raises(InfeasibleError, match="were read back"):
                neuralmark.embed(model, Key.new(QUICK), **options)
    assert content_of(tmp_path) == before


def test_signalling_values_are_named_without_a_warning(tmp_path: Path) -> None:
    """Some that are no numbers make the processor complain; a shifted file is full of them."""
    values = gaussian(256, 256)
    values.view(np.uint32)[3, 4] = 0x7F800001
    save_file({"a.weight": values, "b.weight": gaussian(256, 256)}, tmp_path / "m.safetensors")
    with pytest.raises(NonFiniteError, match="NaN"):
        neuralmark.embed(
            tmp_path / "m.safetensors", Key.new(QUICK), options=EmbedOptions(tensors=["a.weight"])
        )
