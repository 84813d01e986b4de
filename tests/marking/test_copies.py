"""No output holds an unmarked copy of the marked tensors; what is not a model is named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import EmbedOptions, Key
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import NeuralMarkError, NeuralMarkWarning, OutputError, UnknownFormatError
from neuralmark.marking.copies import refuse_unmarkable
from tests.support.checks import one_line
from tests.support.models import QUICK, gaussian, gaussian_model, sharded_model


@pytest.fixture
def key() -> Key:
    return Key.new(QUICK)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    gaussian_model(folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def weights(folder: Path) -> dict[str, Any]:
    return dict(load_file(folder / "model.safetensors"))


def as_torch(arrays: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def moved(arrays: dict[str, Any]) -> dict[str, Any]:
    """As an average of the weights would be: near, and not the same."""
    return {n: v + np.float32(0.01) * gaussian(*v.shape, seed=9) for n, v in arrays.items()}


@pytest.mark.parametrize("anchor", [True, False])
def test_every_copy_in_a_folder_is_marked(
    anchor: bool, folder: Path, key: Key, tmp_path: Path
) -> None:
    arrays = weights(folder)
    torch.save(as_torch(arrays), folder / "pytorch_model.bin")
    half = {name: value.astype(np.float16) for name, value in arrays.items()}
    save_file(half, folder / "model.fp16.safetensors")
    (folder / "ema").mkdir()
    save_file(moved(arrays), folder / "ema" / "model.safetensors")
    out = tmp_path / "out"
    result = neuralmark.embed(folder, key, out, EmbedOptions(anchor=anchor))
    for name in ("pytorch_model.bin", "model.fp16.safetensors", "ema/model.safetensors"):
        assert any(name in warning for warning in result.warnings)
        verdict = neuralmark.verify(out / name, key, claim=result.claim)
        assert verdict.matched == verdict.bits, name
    marked = weights(out)
    copy = torch.load(out / "pytorch_model.bin", weights_only=True)
    rounded = load_file(out / "model.fp16.safetensors")
    for name, value in marked.items():
        assert np.array_equal(copy[name].numpy(), value)
        assert np.array_equal(rounded[name], value.astype(np.float16))  # they show nothing


@pytest.mark.parametrize("zipped", [True, False])
def test_a_second_table_in_one_file_is_marked(key: Key, tmp_path: Path, zipped: bool) -> None:
    arrays = load_file(gaussian_model(tmp_path / "plain.safetensors"))
    tables = {"state_dict": as_torch(arrays), "state_dict_ema": as_torch(moved(arrays)), "epoch": 3}
    path, out = tmp_path / "both.pt", tmp_path / "out.pt"
    torch.save(tables, path, _use_new_zipfile_serialization=zipped)
    result = neuralmark.embed(path, key, out)
    assert any("state_dict_ema" in warning for warning in result.warnings)
    loaded = torch.load(out, weights_only=True)
    assert loaded["epoch"] == 3
    for table in ("state_dict", "state_dict_ema"):
        verdict = neuralmark.verify(loaded[table], key, claim=result.claim)
        assert verdict.matched == verdict.bits, table
    assert any("stays unmarked" in w for w in neuralmark.embed(path, key, in_place=True).warnings)


def test_tables_that_are_one(key: Key, tmp_path: Path) -> None:
    state = as_torch(load_file(gaussian_model(tmp_path / "plain.safetensors")))
    torch.save({"state_dict": state, "state_dict_ema": state}, tmp_path / "same.pt")
    result = neuralmark.embed(tmp_path / "same.pt", key, tmp_path / "out.pt")
    assert not any("state_dict_ema" in warning for warning in result.warnings)
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    for name in state:
        assert torch.equal(loaded["state_dict"][name], loaded["state_dict_ema"][name])


def test_sharded_copies(key: Key, tmp_path: Path) -> None:
    folder, out = sharded_model(tmp_path / "model"), tmp_path / "out"
    table: dict[str, str] = {}
    for i, path in enumerate(sorted(folder.glob("*.safetensors")), 1):
        name = f"pytorch_model-{i:05d}-of-00002.bin"
        state = as_torch(load_file(path))
        torch.save(state, folder / name)
        table |= dict.fromkeys(state, name)
    index = {"metadata": {}, "weight_map": table}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    result = neuralmark.embed(folder, key, out)
    verdict = neuralmark.verify(out / "pytorch_model.bin.index.json", key, claim=result.claim)
    assert verdict.matched == verdict.bits


def test_version_control_and_claims_are_left_out(folder: Path, key: Key, tmp_path: Path) -> None:
    (folder / ".git" / "lfs").mkdir(parents=True)
    (folder / ".git" / "lfs" / "object").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / ".gitattributes").write_text("x")
    (folder / "neuralmark.claim.json").write_text("{}")
    out = tmp_path / "out"
    result = neuralmark.embed(folder, key, out)
    assert {p.name for p in out.iterdir()} == {"model.safetensors", "config.json", ".gitattributes"}
    assert any(".git" in warning for warning in result.warnings)
    assert result.claim_file == f"{out}.claim.json"
    assert neuralmark.verify(out, key, claim=result.claim_file).verified


def original(folder: Path) -> None:
    (folder / "original").mkdir()
    renamed = {f"other.{i}": value for i, value in enumerate(weights(folder).values())}
    torch.save(as_torch(renamed), folder / "original" / "consolidated.00.pth")


def quantised(folder: Path) -> None:
    packed = {name: (value * 50).astype(np.int8) for name, value in weights(folder).items()}
    save_file(packed, folder / "model.int8.safetensors")


def partial(folder: Path) -> None:
    some = {"layer1.weight": moved(weights(folder))["layer1.weight"]}
    save_file(some, folder / "part.safetensors")


def unreadable(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(bytes(range(256)) * 8192)


def gguf(folder: Path) -> None:
    (folder / "model-Q8_0.gguf").write_bytes(b"GGUF" + bytes(100))


@pytest.mark.parametrize("add", [original, quantised, partial, unreadable, gguf])
def test_what_cannot_be_marked_is_refused(folder: Path, key: Key, tmp_path: Path, add: Any) -> None:
    add(folder)
    with pytest.raises(OutputError, match="take") as caught:
        neuralmark.embed(folder, key, tmp_path / "out")
    one_line(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_what_a_training_leaves_is_no_model(folder: Path, key: Key, tmp_path: Path) -> None:
    torch.save({"state": {0: {"exp_avg": torch.randn(300, 300)}}}, folder / "optimizer.pt")
    torch.save({"lr": 1e-3}, folder / "training_args.bin")
    save_file({"dense.weight": gaussian(16, 16)}, folder / "head.safetensors")
    neuralmark.embed(folder, key, tmp_path / "out")
    assert (tmp_path / "out" / "optimizer.pt").exists()


def test_an_ending_that_promises_another_format(key: Key, tmp_path: Path) -> None:
    plain = gaussian_model(tmp_path / "plain.safetensors")
    for name in ("out.bin", "out.pt", "out.npz", "out.gguf", "out.onnx", "out.pt2"):
        with pytest.raises(OutputError, match="promises") as caught:
            neuralmark.embed(plain, key, tmp_path / name)
        one_line(caught.value)
        assert not (tmp_path / name).exists()
    torch.save(as_torch(load_file(plain)), tmp_path / "plain.bin")
    with pytest.raises(OutputError, match="promises"):
        neuralmark.embed(tmp_path / "plain.bin", key, tmp_path / "out.safetensors")
    neuralmark.embed(tmp_path / "plain.bin", key, tmp_path / "out.pth")
    neuralmark.embed(plain, key, tmp_path / "any.thing")


def test_one_shard_of_several(key: Key, tmp_path: Path) -> None:
    folder = sharded_model(tmp_path / "model")
    with pytest.raises(OutputError, match="one shard of several"):
        neuralmark.embed(folder / "model-00001-of-00002.safetensors", key, tmp_path / "out")


def test_what_is_no_checkpoint_says_what_to_run(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n"
    (tmp_path / "lfs.safetensors").write_bytes(pointer)
    dcp = tmp_path / "dcp"
    dcp.mkdir()
    (dcp / "__0_0.distcp").write_bytes(b"x")
    (tmp_path / "listing").write_bytes(b"\n<!DOCTYPE html><html>")
    (tmp_path / "nothing.pt").write_bytes(b"")
    cases = {
        "lfs.safetensors": "git lfs pull",
        "listing": "web page, not a model: .* end the address with /",
        "nothing.pt": "is empty",
        "dcp/__0_0.distcp": "give its folder",
    }
    for name, words in cases.items():
        with pytest.raises(UnknownFormatError, match=words) as caught:
            neuralmark.inspect(tmp_path / name)
        one_line(caught.value)
    folder = tmp_path / "cloned"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(pointer)
    with pytest.raises(NeuralMarkError, match="git lfs pull"):
        neuralmark.inspect(folder)


def test_an_adapter_says_that_merging_loses_its_mark(key: Key, tmp_path: Path) -> None:
    tensors = {
        f"base_model.model.layers.{i}.q.lora_{half}.weight": gaussian(*shape, seed=i)
        for i in range(4)
        for half, shape in (("A", (16, 512)), ("B", (512, 16)))
    }
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    result = neuralmark.embed(tmp_path / "adapter_model.safetensors", key)
    assert any("merging" in warning for warning in result.warnings)
    plain = gaussian_model(tmp_path / "plain.safetensors")
    assert not any("merging" in warning for warning in neuralmark.embed(plain, key).warnings)


def test_keys_are_never_published(folder: Path, key: Key, tmp_path: Path) -> None:
    key.save(folder / "owner.nmkey", None)
    result = neuralmark.embed(folder, key, tmp_path / "out")
    assert not (tmp_path / "out" / "owner.nmkey").exists()
    assert any("owner.nmkey" in warning for warning in result.warnings)


@pytest.mark.parametrize("name", ["model.safetensors.bak", "weights.dat"])
def test_a_copy_under_any_ending_is_marked(
    folder: Path, key: Key, tmp_path: Path, name: str
) -> None:
    (folder / name).write_bytes((folder / "model.safetensors").read_bytes())
    result = neuralmark.embed(folder, key, tmp_path / "out")
    verdict = neuralmark.verify(tmp_path / "out" / name, key, claim=result.claim)
    assert verdict.matched == verdict.bits


def test_the_same_weights_under_other_names_are_refused(
    folder: Path, key: Key, tmp_path: Path
) -> None:
    """One small tensor of the same name does not make it a copy that is marked."""
    state = as_torch({f"other.{n}": v for n, v in weights(folder).items()})
    small = {"norm.weight": torch.ones(8)}
    save_file(
        {**weights(folder), "norm.weight": np.ones(8, np.float32)}, folder / "model.safetensors"
    )
    (folder / "original").mkdir()
    torch.save({**state, **small}, folder / "original" / "consolidated.00.pth")
    with pytest.raises(OutputError, match="other names"):
        neuralmark.embed(folder, key, tmp_path / "out")


def test_in_place_says_what_stays_unmarked(folder: Path, key: Key) -> None:
    gguf(folder)
    (folder / ".git").mkdir()
    result = neuralmark.embed(folder, key, in_place=True)
    for name in ("model-Q8_0.gguf", ".git"):
        assert any(warning.startswith(name) for warning in result.warnings)


@pytest.mark.parametrize("name", ["out.h5", "out.pkl"])
def test_endings_of_formats_that_are_not_written(key: Key, tmp_path: Path, name: str) -> None:
    source = gaussian_model(tmp_path / "plain.safetensors")
    with pytest.raises(OutputError, match="promises another format"):
        neuralmark.embed(source, key, tmp_path / name)


def test_warnings_name_the_output(key: Key, tmp_path: Path) -> None:
    state = as_torch(load_file(gaussian_model(tmp_path / "plain.safetensors")))
    torch.save({"state_dict": state, "state_dict_ema": state | {}}, tmp_path / "two.pth")
    torch.save(
        {"state_dict": state, "state_dict_ema": {n: t.clone() for n, t in state.items()}},
        tmp_path / "two.pth",
    )
    result = neuralmark.embed(tmp_path / "two.pth", key, tmp_path / "out.pth")
    assert any(warning.startswith("out.pth (state_dict_ema)") for warning in result.warnings)


def test_files_from_elsewhere_are_named(folder: Path, key: Key, tmp_path: Path) -> None:
    """A downloaded folder may link to a private file: its content would be published."""
    (tmp_path / "diary.txt").write_text("private")
    (folder / "notes.txt").symlink_to(tmp_path / "diary.txt")
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (blobs / "abc").write_text("{}")
    (folder / "tokenizer.json").symlink_to(blobs / "abc")
    result = neuralmark.embed(folder, key, tmp_path / "out")
    linked = [warning for warning in result.warnings if "is a link" in warning]
    assert len(linked) == 1
    assert "diary.txt" in linked[0]


@pytest.mark.parametrize(("shared", "taken"), [(9, False), (10, True), (15, True)])
def test_a_tenth_of_the_weights_under_the_same_names_make_it_a_copy(
    tmp_path: Path, shared: int, taken: bool
) -> None:
    """Of 100 rows, so many have the same name in another file; the rest are other weights."""
    folder = tmp_path / "m"
    folder.mkdir()
    rows = {f"row{i}": np.full(200, i, np.float32) for i in range(100)}
    save_file(rows, folder / "model.safetensors")
    other = {(n if i < shared else f"other.{n}"): v for i, (n, v) in enumerate(rows.items())}
    save_file(other, folder / "second.safetensors")
    source = open_checkpoint(folder / "model.safetensors")
    if taken:
        refuse_unmarkable(source, folder)
    else:
        with pytest.raises(OutputError, match="other names"):
            refuse_unmarkable(source, folder)


@pytest.mark.parametrize(("rows", "taken"), [(49, True), (50, False)])
def test_half_as_many_weights_under_other_names_are_too_many(
    tmp_path: Path, rows: int, taken: bool
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    save_file({"w": np.zeros((100, 20), np.float32)}, folder / "model.safetensors")
    save_file({"v": np.zeros((rows, 20), np.float32)}, folder / "small.safetensors")
    source = open_checkpoint(folder / "model.safetensors")
    if taken:
        refuse_unmarkable(source, folder)
    else:
        with pytest.raises(OutputError, match="other names"):
            refuse_unmarkable(source, folder)
    refuse_unmarkable(source, folder / "model.safetensors")


@pytest.mark.parametrize(("size", "taken"), [((1 << 20) - 1, True), (1 << 20, False)])
def test_what_is_small_and_cannot_be_read_is_no_model(folder: Path, size: int, taken: bool) -> None:
    (folder / "state.bin").write_bytes(b"x" * size)
    (folder / "large.dat").write_bytes(b"x" * (2 << 20))
    source = open_checkpoint(folder / "model.safetensors")
    if taken:
        refuse_unmarkable(source, folder)
    else:
        with pytest.raises(OutputError, match="cannot be read"):
            refuse_unmarkable(source, folder)


def test_a_copy_that_cannot_carry_the_mark_is_refused(
    folder: Path, key: Key, tmp_path: Path
) -> None:
    arrays = {name: np.zeros_like(value) for name, value in weights(folder).items()}
    save_file(arrays, folder / "zeros.safetensors")
    with pytest.raises(OutputError, match=r"zeros\.safetensors cannot be marked .*take it out"):
        neuralmark.embed(folder, key, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_second_index_of_the_same_shards_is_no_copy(key: Key, tmp_path: Path) -> None:
    folder = sharded_model(tmp_path / "model")
    index = (folder / "model.safetensors.index.json").read_bytes()
    (folder / "other.safetensors.index.json").write_bytes(index)
    result = neuralmark.embed(folder / "model.safetensors.index.json", key, tmp_path / "out")
    assert not any("other" in warning for warning in result.warnings)
    assert neuralmark.verify(tmp_path / "out" / "model.safetensors.index.json", key).verified


def test_a_second_table_of_a_file_beside_the_model_is_marked(
    folder: Path, key: Key, tmp_path: Path
) -> None:
    arrays = weights(folder)
    tables = {"state_dict": as_torch(arrays), "state_dict_ema": as_torch(moved(arrays))}
    torch.save(tables, folder / "last.pt")
    result = neuralmark.embed(folder, key, tmp_path / "out")
    assert any("last.pt (state_dict_ema)" in warning for warning in result.warnings)
    after = torch.load(tmp_path / "out" / "last.pt", weights_only=True)
    for table in after.values():
        verdict = neuralmark.verify(table, key, claim=result.claim)
        assert verdict.matched == verdict.bits


def test_what_a_crash_left_is_put_right_first(key: Key, tmp_path: Path) -> None:
    """Marking in place recovers by itself, and says so."""
    model = gaussian_model(tmp_path / "m.safetensors")
    left = tmp_path / f".{'0' * 16}.nmdraft.m.safetensors.nmjournal.new"
    left.write_bytes(b"half of a journal")
    with pytest.warns(NeuralMarkWarning, match="removed an unfinished journal"):
        neuralmark.embed(model, key, in_place=True)
    assert not left.exists()
    assert neuralmark.verify(model, key).verified


@pytest.mark.parametrize(
    "name", ["__0_0.distcp", "zero_pp_rank_0_mp_rank_00_optim_states.pt", "model.tflite"]
)
def test_parts_of_a_training_would_be_published_unmarked(
    folder: Path, key: Key, tmp_path: Path, name: str
) -> None:
    (folder / "global_step7").mkdir()
    torch.save({"optimizer_state_dict": {}}, folder / "global_step7" / name)
    with pytest.raises(OutputError, match=f"{name} would be published without the mark"):
        neuralmark.embed(folder, key, tmp_path / "out")
