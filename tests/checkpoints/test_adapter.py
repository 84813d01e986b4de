"""Adapters read as what PEFT makes of them and their base."""

import json
import re
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers.pytorch_utils import Conv1D

import neuralmark
from neuralmark import Key, VerifyOptions
from neuralmark.checkpoints import Checkpoint, open_checkpoint
from neuralmark.checkpoints.readers import blocks
from neuralmark.checkpoints.readers.dtypes import decode
from neuralmark.checkpoints.readers.lora import names
from neuralmark.errors import (
    MalformedError,
    NeuralMarkError,
    ParameterError,
    UnreadableError,
    UnsuitableTensorError,
)
from tests.support.commands import call
from tests.support.makers import Arrays
from tests.support.models import QUICK, SMALL, gaussian
from tests.support.quantisers import QUANTISERS, quantised_folder


class Net(torch.nn.Module):
    """One of each kind of layer that PEFT adapts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(50, 24)
        self.wide = torch.nn.Linear(24, 20)
        self.square = torch.nn.Linear(24, 24)
        turned: Any = Conv1D
        self.turned = turned(36, 24)
        self.turned_square = turned(24, 24)
        self.conv = torch.nn.Conv2d(5, 7, 3)
        self.point = torch.nn.Conv2d(5, 7, 1)
        self.head = torch.nn.Linear(36, 10)


ALL = ["embed", "wide", "turned", "conv", "point"]


def saved(tmp_path: Path, **options: Any) -> tuple[Path, Path, Arrays]:
    """An adapter, its base, and what PEFT merges them to."""
    base = Net()
    (tmp_path / "base").mkdir()
    save_file(base.state_dict(), tmp_path / "base" / "model.safetensors")
    chosen: dict[str, Any] = {"r": 4, "lora_alpha": 6, "target_modules": ALL} | options
    halved = chosen.pop("dtype", None)
    binary = chosen.pop("binary", False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*fan_in_fan_out")
        model = get_peft_model(base, LoraConfig(**chosen))
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data = parameter.data * 0.9 + 0.1 * noise
            if halved is not None:
                parameter.data = parameter.data.to(halved).float()
    model.save_pretrained(str(tmp_path / "adapter"), safe_serialization=not binary)
    if halved is not None:
        file = tmp_path / "adapter" / "adapter_model.safetensors"
        save_file({n: t.to(halved) for n, t in load_file(file).items()}, file)
    whole = model.merge_and_unload().state_dict()
    return tmp_path / "adapter", tmp_path / "base", {n: t.numpy() for n, t in whole.items()}


def content(checkpoint: Checkpoint) -> Arrays:
    return {
        name: np.concatenate(
            [decode(piece, checkpoint.info(name).dtype).copy() for piece in checkpoint.read(name)]
        ).reshape(checkpoint.info(name).shape)
        for name in checkpoint.names()
    }


def close(one: Arrays, two: Arrays) -> bool:
    return set(one) == set(two) and all(
        one[n].shape == two[n].shape
        and np.abs(one[n] - two[n]).max() <= 2e-6 * max(1e-9, float(np.abs(two[n]).max()))
        for n in one
    )


LINEAR = {"target_modules": ["wide", "turned"], "use_dora": True}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True},
        {"alpha_pattern": {"conv": 3, "^wide": 11}, "rank_pattern": {"embed": 8, "conv": 2}},
        {"target_modules": ["square"]},
        {"target_modules": ["turned_square"]},
        {"modules_to_save": ["head"]},
        {"bias": "all"},
        {"dtype": torch.bfloat16},
        {"binary": True},
        LINEAR,
        {"target_modules": ["conv", "point"], "use_dora": True},
    ],
)
def test_what_is_read_is_what_peft_merges(tmp_path: Path, options: dict[str, Any]) -> None:
    adapter, base, whole = saved(tmp_path, **options)
    found = open_checkpoint(adapter, base)
    assert close(content(found), whole)
    assert {file.parent.name for file in found.files()} == {"adapter", "base"}
    form = "DoRA" if options.get("use_dora") else "LoRA"
    targets = options.get("target_modules", ALL)
    stored = {n.split(".")[0] for n in found.names() if form in (found.info(n).stored or "")}
    assert stored == set(targets)


@pytest.mark.parametrize("options", [{}, LINEAR])
def test_every_run_is_the_same_to_the_bit(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, base, _ = saved(tmp_path, **options)
    whole = content(open_checkpoint(adapter, base))
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 40)
    found = open_checkpoint(adapter, base)
    for name, array in whole.items():
        flat = array.reshape(-1)
        for start, stop in ((0, len(flat)), (len(flat) // 3, len(flat) // 2 + 1)):
            run = decode(found.read_run(name, start, stop), "F32")
            assert np.array_equal(run, flat[start:stop])


def test_a_base_beside_the_adapter_is_found_by_its_name(tmp_path: Path) -> None:
    adapter, _, whole = saved(tmp_path)
    config = adapter / "adapter_config.json"
    told = json.loads(config.read_text())
    config.write_text(json.dumps(told | {"base_model_name_or_path": "some/where/base"}))
    assert close(content(open_checkpoint(adapter)), whole)
    for name in ("", "..", "some/..", "elsewhere", "adapter", "base\\", 7):
        config.write_text(json.dumps(told | {"base_model_name_or_path": name}))
        assert all("lora" in n for n in open_checkpoint(adapter).names())


def test_a_quantised_base(tmp_path: Path) -> None:
    weights = {"l.weight": gaussian(128, 64)}
    values = quantised_folder(tmp_path / "base", weights, QUANTISERS["nf4"])
    down, up = gaussian(4, 64, seed=1), gaussian(128, 4, seed=2)
    folder = adapter_of(tmp_path / "adapter", {"l.lora_A.weight": down, "l.lora_B.weight": up})
    found = open_checkpoint(folder, tmp_path / "base")
    assert close(content(found), {"l.weight": values["l.weight"] + 2 * up @ down})
    assert found.info("l.weight").stored == "nf4 with LoRA"


def adapter_of(folder: Path, tensors: Arrays, **config: Any) -> Path:
    from safetensors.numpy import save_file as save

    folder.mkdir()
    save(
        {f"base_model.model.{n}": a for n, a in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    told = {"peft_type": "LORA", "lora_alpha": 8, "base_model_name_or_path": "acme/llm"} | config
    (folder / "adapter_config.json").write_text(json.dumps(told))
    return folder


@pytest.mark.parametrize("stored", ["model.layers.0.q.weight", "layers.0.q.weight", "q.weight"])
def test_the_bases_names_may_have_another_beginning(tmp_path: Path, stored: str) -> None:
    from safetensors.numpy import save_file as save

    down, up = gaussian(4, 64, seed=1), gaussian(128, 4, seed=2)
    stem = "layers.0.q" if "layers" in stored else "model.q"
    parts = {f"{stem}.lora_A.weight": down, f"{stem}.lora_B.weight": up}
    adapter = adapter_of(tmp_path / "adapter", parts)
    save({stored: gaussian(128, 64)}, tmp_path / "base.safetensors")
    found = content(open_checkpoint(adapter, tmp_path / "base.safetensors"))
    assert close(found, {stored: gaussian(128, 64) + 2 * up @ down})


@pytest.fixture
def marked(tmp_path: Path) -> tuple[Path, Path, Path, Path]:
    """Adapter, marked base, key and claim."""
    from safetensors.numpy import save_file as save

    source = {f"model.layers.{i}.q.weight": gaussian(128, 160, seed=i) for i in range(4)}
    save(source, tmp_path / "m.safetensors")
    key = Key.new(QUICK)
    key.save(tmp_path / "k.nmkey", None)
    done = neuralmark.embed(tmp_path / "m.safetensors", key, tmp_path / "base.safetensors")
    parts = {
        f"model.layers.{i}.q.lora_{half}.weight": gaussian(*shape, seed=9 + i)
        for i in range(4)
        for half, shape in (("A", (4, 160)), ("B", (128, 4)))
    }
    adapter = adapter_of(tmp_path / "adapter", parts)
    assert done.claim_file is not None
    return adapter, tmp_path / "base.safetensors", tmp_path / "k.nmkey", Path(done.claim_file)


def test_the_mark_of_the_base_is_found_through_its_adapter(
    marked: tuple[Path, Path, Path, Path], tmp_path: Path
) -> None:
    adapter, base, key, claim = marked
    arguments = ("verify", adapter, "--key", key, "--claim", claim)
    told = call(*arguments, "--base", base, "--json")
    assert (told.code, told.json["status"], told.json["mapping"]) == (0, "verified", "names")
    assert told.json["model"] == f"{adapter} merged into {base}"
    (tmp_path / "v.json").write_text(told.out)
    again = call("recheck", tmp_path / "v.json", adapter, "--key", key, "--base", base, "--json")
    assert (again.code, again.json["holds"]) == (0, True)
    without = call(*arguments, "--json")
    assert (without.code, without.json["status"]) == (3, "unreadable")
    assert "is an adapter" in without.json["reason"]
    assert "'acme/llm'" in without.json["reason"]
    plain = call(*arguments)
    assert "give --base" in re.sub(r"\s+", " ", plain.out)


def test_without_claim_and_base_the_message_says_what_to_give(
    marked: tuple[Path, Path, Path, Path],
) -> None:
    adapter, base, key, claim = marked
    claim.unlink()
    assert "acme/llm" in neuralmark.verify(adapter, Key.load(key)).reason
    with pytest.raises(UnreadableError, match=r"acme/llm.*give VerifyOptions\(base=\.\.\.\)"):
        neuralmark.verify(adapter, Key.new(SMALL))
    with pytest.raises(ParameterError, match="no adapter"):
        neuralmark.verify(base, Key.load(key), options=VerifyOptions(base=adapter))
    live = torch.nn.Linear(3, 3)
    with pytest.raises(ParameterError, match="live model"):
        neuralmark.verify(live, Key.load(key), options=VerifyOptions(base=base))


def test_a_merged_adapter_is_not_marked_but_inspected(
    marked: tuple[Path, Path, Path, Path], tmp_path: Path
) -> None:
    adapter, base, key, _ = marked
    rows = call("inspect", adapter, "--base", base, "--json").json
    assert {row["dtype"] for row in rows["rows"]} == {"F32 with LoRA"}
    assert rows["format"] == "adapter of safetensors"
    (tmp_path / "llm").mkdir()
    shutil.copy(base, tmp_path / "llm" / "model.safetensors")
    with pytest.raises(UnsuitableTensorError, match=r"not marked: .*merge them .* mark it"):
        neuralmark.embed(adapter, Key.load(key), tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"peft_type": "IA3"}, "'IA3' are not merged"),
        ({"peft_type": None}, "are not merged"),
        ({"lora_alpha": "8"}, "not a number"),
        ({"lora_alpha": 1e99}, "not a number"),
        ({"alpha_pattern": [1]}, "not a table"),
        ({"alpha_pattern": {"q": None}}, "not a number"),
        ({"alpha_pattern": {"(a+)+b": 3}}, "too involved"),
        ({"init_lora_weights": "pissa"}, "changing its base"),
        ({"layer_replication": [[0, 4]]}, "layer_replication"),
    ],
)
def test_configurations_from_which_no_merge_follows(
    marked: tuple[Path, Path, Path, Path], change: dict[str, Any], error: str
) -> None:
    adapter, base, *_ = marked
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(NeuralMarkError, match=error):
        open_checkpoint(adapter, base)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": ' + "[" * 100_000, "\udcff", " " * (2 << 20)]
)
def test_damaged_configurations(marked: tuple[Path, Path, Path, Path], text: str) -> None:
    adapter, base, *_ = marked
    (adapter / "adapter_config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(MalformedError):
        open_checkpoint(adapter, base)


Q = "model.layers.0.q"


@pytest.mark.parametrize(
    ("tensors", "error"),
    [
        ({f"{Q}.lora_A.weight": gaussian(4, 160)}, MalformedError),
        (
            {f"{Q}.lora_A.weight": gaussian(4, 160), f"{Q}.lora_B.weight": gaussian(128, 5)},
            MalformedError,
        ),
        (
            {f"{Q}.lora_A.weight": gaussian(4, 161), f"{Q}.lora_B.weight": gaussian(128, 4)},
            MalformedError,
        ),
        (
            {"x.lora_A.weight": gaussian(4, 160), "x.lora_B.weight": gaussian(128, 4)},
            MalformedError,
        ),
        ({f"{Q}.weight": gaussian(3, 3)}, MalformedError),
        ({f"{Q}.lora_B.bias": gaussian(3)}, UnreadableError),
        (
            {
                f"{Q}.lora_embedding_A": gaussian(4, 160),
                f"{Q}.lora_embedding_B": gaussian(128, 4),
                f"{Q}.lora_magnitude_vector": gaussian(128),
            },
            UnreadableError,
        ),
        (
            {
                f"{Q}.lora_A.weight": gaussian(4, 160),
                f"{Q}.lora_B.weight": gaussian(128, 4),
                f"{Q}.lora_magnitude_vector": gaussian(7),
            },
            MalformedError,
        ),
    ],
)
def test_tensors_that_do_not_fit(
    marked: tuple[Path, Path, Path, Path],
    tmp_path: Path,
    tensors: Arrays,
    error: type[NeuralMarkError],
) -> None:
    adapter = adapter_of(tmp_path / "other", tensors)
    with pytest.raises(error):
        open_checkpoint(adapter, marked[1])


def test_replaced_rows_are_an_obstacle(
    marked: tuple[Path, Path, Path, Path], tmp_path: Path
) -> None:
    name = f"{Q}.token_adapter.trainable_tokens_delta"
    adapter = adapter_of(tmp_path / "other", {name: gaussian(2, 160)})
    found = open_checkpoint(adapter, marked[1])
    assert "rows" in (found.info(f"{Q}.weight").obstacle or "")


@pytest.mark.parametrize(
    ("pattern", "module", "found"),
    [
        ("q", "a.b.q", True),
        ("q", "a.bq", False),
        ("^a.b", "a.b", True),
        ("^b", "a.b", False),
        (r"layers\.\d+\.q", "model.layers.10.q", True),
        (r"layers\.[0-9]+\.q", "model.layers.x.q", False),
        (r".*\.(q|k)_proj", "model.k_proj", True),
        (r".+q", "q", False),
        ("a.c", "abc", True),
        (r"a\.c", "abc", False),
        ("q$", "a.q", True),
    ],
)
def test_patterns_name_modules_as_pefts_do(pattern: str, module: str, found: bool) -> None:
    assert bool(re.match(rf"(.*\.)?({pattern})$", module)) == found
    assert names(pattern, module) == found


def test_no_pattern_is_slow() -> None:
    start = time.monotonic()
    assert not names(".*" * 200 + "x", "a." * 500)
    assert time.monotonic() - start < 5
