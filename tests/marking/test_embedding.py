"""Marks in checkpoints of every kind, through the library."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch

import neuralmark
from neuralmark import Key, Parameters
from neuralmark.checkpoints.readers.dtypes import FLOATS
from neuralmark.errors import (
    CheckpointError,
    InfeasibleError,
    OutputError,
    ParameterError,
    TooFewCarriersError,
    UnsuitableTensorError,
)
from neuralmark.marking.embedding import few_carriers
from neuralmark.storage import journal
from tests.support.dtypes import TORCH
from tests.support.models import SMALL, gaussian, saved


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_float_type_is_marked_and_nothing_else_changes(tmp_path: Path, dtype: str) -> None:
    tensors = {
        "first": torch.arange(11),
        "layer.weight": torch.from_numpy(gaussian(512, 600)).to(TORCH[dtype]),
        "last": torch.ones(3, 5, dtype=torch.bfloat16),
    }
    source, out = tmp_path / "m.safetensors", tmp_path / "out.safetensors"
    save_torch(tensors, source, metadata={"format": "pt", "note": "kept"})
    key = Key.new(SMALL)
    result = neuralmark.embed(source, key, out, options=neuralmark.EmbedOptions(strength=1.5))
    assert result.verdict is not None
    assert result.verdict.matched == 256
    assert result.verdict.smallest_margin > 1.2
    old, new = source.read_bytes(), out.read_bytes()
    assert len(old) == len(new)
    start = len(old) - sum(t.nbytes for t in tensors.values())
    assert old[:start] == new[:start]
    with safe_open(out, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "note": "kept"}
        for name in ("first", "last"):
            assert torch.equal(file.get_tensor(name), tensors[name])
        changed = file.get_tensor("layer.weight")
        assert changed.dtype == TORCH[dtype]
        assert changed.float().isfinite().all()


def test_the_change_is_reported_and_is_what_the_file_shows(tmp_path: Path) -> None:
    source, out = saved(tmp_path / "m.safetensors"), tmp_path / "o.safetensors"
    result = neuralmark.embed(source, Key.new(SMALL), out)
    assert result.verdict is not None
    assert result.verdict.checkpoint_digest.files is None
    before, after = load_file(source)["layer.weight"], load_file(out)["layer.weight"]
    change = after.astype(np.float64) - before
    assert result.change_relative == pytest.approx(
        np.linalg.norm(change) / np.linalg.norm(before), rel=1e-5
    )
    assert result.change_largest == pytest.approx(np.abs(change).max(), rel=1e-6)
    assert np.count_nonzero(change) <= result.carriers


def test_a_budget_is_kept_and_a_strength_is_reached(tmp_path: Path) -> None:
    source, key = saved(tmp_path / "m.safetensors"), Key.new(SMALL)
    spent = neuralmark.embed(
        source, key, tmp_path / "a.safetensors", options=neuralmark.EmbedOptions(budget=9.0)
    )
    assert 0.0885 <= spent.change_relative <= 0.0901
    strong = neuralmark.embed(
        source, key, tmp_path / "b.safetensors", options=neuralmark.EmbedOptions(strength=3.0)
    )
    weak = neuralmark.embed(
        source, key, tmp_path / "c.safetensors", options=neuralmark.EmbedOptions(strength=0.5)
    )
    assert strong.verdict is not None
    assert weak.verdict is not None
    assert strong.verdict.smallest_margin > 4 * weak.verdict.smallest_margin
    assert strong.change_relative > spent.change_relative > weak.change_relative
    radius = strong.verdict.certified_radius_relative
    assert radius is not None
    assert 0 < radius < strong.change_relative
    with pytest.raises(InfeasibleError, match="raise budget="):
        neuralmark.embed(source, key, options=neuralmark.EmbedOptions(budget=0.001))


def test_the_default_is_what_two_percent_buys_from_strength_one_to_two(tmp_path: Path) -> None:
    small = neuralmark.embed(saved(tmp_path / "s.safetensors"), Key.new(SMALL))
    assert small.strength == 1
    large = saved(tmp_path / "l.safetensors", **{"layer.weight": gaussian(2048, 2048)})
    result = neuralmark.embed(large, Key.new(SMALL))
    assert 1 < result.strength < 2
    assert 0.0197 < result.change_relative < 0.0201
    cheap = neuralmark.embed(large, Key.new(Parameters(bits=64, pools=128)))
    assert cheap.strength == 2
    assert cheap.change_relative < 0.0195


def test_a_second_key_keeps_the_first_mark(tmp_path: Path) -> None:
    source = saved(tmp_path / "m.safetensors", **{"layer.weight": gaussian(1024, 1024)})
    first, second = Key.new(SMALL), Key.new(SMALL)
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    neuralmark.embed(source, first, one)
    result = neuralmark.embed(one, second, two, options=neuralmark.EmbedOptions(other_keys=[first]))
    ((before, after),) = result.others
    assert before.matched == 256
    assert after.verified
    assert neuralmark.verify(two, first, claim=f"{one}.claim.json").verified
    assert not neuralmark.verify(two, first).verified  # bound to an anchor, and no claim beside it
    assert neuralmark.verify(two, second).matched == 256


def test_several_small_tensors_carry_one_mark(tmp_path: Path) -> None:
    tensors = {f"layer{i}.weight": gaussian(96, 96, seed=i) for i in range(8)}
    source = saved(tmp_path / "m.safetensors", **tensors)
    key = Key.new(Parameters(rounds=1))
    result = neuralmark.embed(source, key, tmp_path / "o.safetensors")
    assert len(result.tensors) == 8
    assert neuralmark.verify(tmp_path / "o.safetensors", key).verified


def sharded(folder: Path, count: int = 3) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"kept": true}')
    (folder / "sub").mkdir()
    (folder / "sub" / "tokenizer.txt").write_text("kept")
    table = {}
    for i in range(count):
        name = f"model-{i + 1:05}-of-{count:05}.safetensors"
        save_file({f"layers.{i}.mlp.weight": gaussian(512, 512, seed=i)}, folder / name)
        table[f"layers.{i}.mlp.weight"] = name
    index = {"metadata": {"total_size": 1}, "weight_map": table}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_a_folder_of_shards_keeps_everything_else(tmp_path: Path) -> None:
    folder, out = sharded(tmp_path / "model"), tmp_path / "marked"
    key = Key.new(SMALL)
    result = neuralmark.embed(
        folder, key, out, options=neuralmark.EmbedOptions(tensors=["layers.1.mlp.weight"])
    )
    assert result.claim_file == f"{out}.claim.json"
    for path in folder.rglob("*"):
        twin = out / path.relative_to(folder)
        if path.is_file() and "00002" not in path.name:
            assert twin.read_bytes() == path.read_bytes()
    claim = Path(f"{out}.claim.json")
    assert neuralmark.verify(out, key, claim=claim).verified
    assert neuralmark.verify(out / "model.safetensors.index.json", key, claim=claim).verified
    part = out / "model-00002-of-00003.safetensors"
    assert neuralmark.verify(part, key, claim=claim).verified
    assert not neuralmark.verify(folder, key).verified


def test_in_place_changes_only_the_marked_tensors(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    key = Key.new(SMALL)
    index = folder / "model.safetensors.index.json"
    neuralmark.embed(
        index, key, options=neuralmark.EmbedOptions(tensors=["layers.0.mlp.weight"]), in_place=True
    )
    changed = [p.name for p in folder.glob("*.safetensors") if p.read_bytes() != before[p.name]]
    assert changed == ["model-00001-of-00003.safetensors"]
    assert neuralmark.verify(folder, key).verified
    assert sorted(p.name for p in folder.iterdir() if "nm" in p.name) == []


def test_a_claim_of_another_key_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors", **{"layer.weight": gaussian(1024, 1024)})
    first, second = Key.new(SMALL), Key.new(SMALL)
    one = neuralmark.embed(path, first, in_place=True)
    two = neuralmark.embed(path, second, in_place=True)
    assert one.claim_file != two.claim_file
    for key, result in ((first, one), (second, two)):
        assert neuralmark.verify(path, key, claim=result.claim_file).verified


def test_what_cannot_be_written_is_refused_with_advice(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors")
    with pytest.raises(TooFewCarriersError, match="fewer rounds or pools"):
        neuralmark.embed(path, Key.new(Parameters(rounds=12)))
    with pytest.raises(ParameterError, match="either"):
        neuralmark.embed(
            path, Key.new(SMALL), options=neuralmark.EmbedOptions(strength=1, budget=1)
        )
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ParameterError):
            neuralmark.embed(path, Key.new(SMALL), options=neuralmark.EmbedOptions(strength=bad))
    with pytest.raises(InfeasibleError, match="pools"):
        neuralmark.embed(path, Key.new(Parameters(bits=1024, pools=512, rounds=1)))
    with pytest.raises(ParameterError, match="raw"):
        neuralmark.embed(path, Key.raw(np.ones((8, 4), np.float32), 1, "strided"))
    flat = saved(tmp_path / "flat.safetensors", **{"layer.weight": np.ones((512, 600), np.float32)})
    with pytest.raises(UnsuitableTensorError, match="all values are the same"):
        neuralmark.embed(flat, Key.new(SMALL))


def test_few_carriers_are_warned_about(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors", **{"layer.weight": gaussian(96, 100)})
    result = neuralmark.embed(path, Key.new(SMALL))
    assert any("carriers per pool" in warning for warning in result.warnings)


def test_the_strongest_mark_that_passes_the_check_is_kept(tmp_path: Path) -> None:
    path, out = saved(tmp_path / "m.safetensors"), tmp_path / "o.safetensors"
    source = load_file(path)["layer.weight"]
    seen: list[float] = []

    def check(candidate: Path) -> bool:
        change = np.linalg.norm(load_file(candidate)["layer.weight"] - source)
        seen.append(float(change / np.linalg.norm(source)))
        return seen[-1] < 0.08

    result = neuralmark.embed(
        path, Key.new(SMALL), out, options=neuralmark.EmbedOptions(check=check)
    )
    assert 0.06 < result.change_relative < 0.08
    assert max(seen) > 0.08
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "m.safetensors",
        "o.safetensors",
        "o.safetensors.anchor",
        "o.safetensors.claim.json",
    ]


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F8_E5M2"])
def test_a_budget_is_kept_in_coarse_types_too(tmp_path: Path, dtype: str) -> None:
    tensor = torch.from_numpy(gaussian(1024, 1024)).to(TORCH[dtype])
    save_torch({"layer.weight": tensor}, tmp_path / "m.safetensors")
    result = neuralmark.embed(
        tmp_path / "m.safetensors", Key.new(SMALL), options=neuralmark.EmbedOptions(budget=6.0)
    )
    assert 0.04 < result.change_relative <= 0.0602


def test_the_owner_is_told_what_to_mind(tmp_path: Path) -> None:
    def notes(path: Path, key: Key, **options: Any) -> str:
        given = neuralmark.EmbedOptions(**options)
        return " | ".join(neuralmark.embed(path, key, options=given).warnings)

    tensors = {f"l{i}.weight": gaussian(512, 600, seed=i) for i in range(2)}
    source, key = saved(tmp_path / "m.safetensors", **tensors), Key.new(SMALL)
    assert notes(source, key) == ""
    assert "only with the claim" in notes(source, key, tensors=list(tensors), anchor=False)
    short = Key.new(Parameters(bits=64, pools=128, rounds=2))
    assert "64 bits can never be verified" in notes(source, short)
    out = tmp_path / "o.safetensors"
    neuralmark.embed(source, key, out)
    assert "this very key" in notes(out, key)
    assert "another key" in notes(out, Key.new(SMALL))
    save_file(
        {"a.weight": gaussian(512, 600), "b.weight": np.ones((60, 60), np.int8)},
        tmp_path / "q.safetensors",
    )
    assert "1 quantised tensors were passed over" in notes(tmp_path / "q.safetensors", key)


def test_another_keys_mark_is_found_through_the_claim_beside_the_input(tmp_path: Path) -> None:
    tensors = {f"l{i}.weight": gaussian(512, 600, seed=i) for i in range(3)}
    source = saved(tmp_path / "m.safetensors", **tensors)
    first, second = Key.new(SMALL), Key.new(SMALL)
    one = tmp_path / "one.safetensors"
    neuralmark.embed(
        source, first, one, options=neuralmark.EmbedOptions(tensors=["l1.weight", "l2.weight"])
    )
    result = neuralmark.embed(
        one,
        second,
        tmp_path / "two.safetensors",
        options=neuralmark.EmbedOptions(other_keys=[first]),
    )
    ((before, after),) = result.others
    assert before.matched == 256
    assert after.verified


def test_auto_marks_tied_weights_once(tmp_path: Path) -> None:
    tensor = torch.from_numpy(gaussian(512, 600))
    torch.save({"a.weight": tensor, "tied.weight": tensor}, tmp_path / "m.pt")
    key = Key.new(SMALL)
    result = neuralmark.embed(tmp_path / "m.pt", key, tmp_path / "o.pt")
    assert result.tensors == ("a.weight",)
    assert neuralmark.verify(tmp_path / "o.pt", key).verified


def refused(why: str, *args: Any, **options: Any) -> None:
    with pytest.raises(OutputError, match=why):
        neuralmark.embed(*args, **options)


def test_where_the_output_may_not_be(tmp_path: Path) -> None:
    path, key = saved(tmp_path / "m.safetensors"), Key.new(SMALL)
    before = path.read_bytes()
    (tmp_path / "link.safetensors").symlink_to(path)
    for same in (path, tmp_path / "link.safetensors"):
        refused("the input itself", path, key, same, overwrite=True)
    refused("exclude each other", path, key, tmp_path / "o.safetensors", in_place=True)
    other = saved(tmp_path / "o.safetensors")
    refused("exists already", path, key, other)
    (tmp_path / "folder").mkdir()
    refused("is a folder", path, key, tmp_path / "folder", overwrite=True)
    assert path.read_bytes() == before
    assert neuralmark.embed(path, key, other, overwrite=True).verdict is not None


def test_a_folder_is_not_written_into_itself_or_around_itself(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m")
    key, content = Key.new(SMALL), sorted(path.name for path in folder.rglob("*"))
    refused("inside the input folder", folder, key, folder / "out")
    refused("holds the input", folder, key, tmp_path, overwrite=True)
    assert sorted(path.name for path in folder.rglob("*")) == content


def test_a_state_dict_is_not_a_path(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="path of a checkpoint"):
        neuralmark.embed({"w": gaussian(4, 4)}, Key.new(SMALL))  # type: ignore[arg-type]


def test_claims_inside_a_folder_are_found(tmp_path: Path) -> None:
    folder, first, second = sharded(tmp_path / "m"), Key.new(SMALL), Key.new(SMALL)
    known = {n: v for shard in folder.glob("*.safetensors") for n, v in load_file(shard).items()}
    named = sorted(known, key=lambda name: -known[name].size)[:2]
    result = neuralmark.embed(
        folder, first, options=neuralmark.EmbedOptions(tensors=named), in_place=True
    )
    assert result.claim is not None
    claim = next(tmp_path.rglob("*.claim.json"))
    claim.rename(folder / "neuralmark.claim.json")
    again = neuralmark.embed(
        folder, second, tmp_path / "out", options=neuralmark.EmbedOptions(other_keys=[first])
    )
    ((before, _),) = again.others
    assert before.mapping == "names"
    assert before.matched == 256


def test_a_mark_in_one_named_tensor_needs_no_claim(tmp_path: Path) -> None:
    tensors = {f"l{i}.weight": gaussian(128, 160, seed=i) for i in range(2)}
    path, key = saved(tmp_path / "m.safetensors", **tensors), Key.new(Parameters(160, 320))

    def warned(named: list[str] | None, strength: float | None, *, anchor: bool) -> tuple[str, ...]:
        options = neuralmark.EmbedOptions(tensors=named, strength=strength, anchor=anchor)
        return neuralmark.embed(path, key, options=options).warnings

    (told,) = warned(list(tensors), None, anchor=False)
    assert "only with the claim" in told
    assert warned(None, None, anchor=False) == ()
    for anchor in (True, False):
        (told,) = warned(["l0.weight"], None, anchor=anchor)
        assert "one tensor alone has all of the mark" in told
        assert warned(["l0.weight"], 4.0, anchor=anchor) == ()


@pytest.mark.parametrize(("per_pool", "warned"), [(7, True), (8, False)])
def test_eight_carriers_per_pool_are_enough(per_pool: int, warned: bool) -> None:
    mark = Key.new(SMALL).at((("a.weight", (512, 600)),))
    warnings = few_carriers(mark, SimpleNamespace(per_pool=per_pool))  # type: ignore[arg-type]
    assert bool(warnings) == warned


def test_nothing_can_be_recovered_where_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such file"):
        neuralmark.recover(tmp_path / "absent.safetensors")


def test_nobody_else_marks_a_model_in_place_meanwhile(tmp_path: Path) -> None:
    path, key = saved(tmp_path / "m.safetensors"), Key.new(SMALL)
    seen: list[str] = []

    def check(candidate: Path) -> bool:
        try:
            with journal.exclusive(path):
                seen.append("free")
        except OutputError:
            seen.append("taken")
        return True

    options = neuralmark.EmbedOptions(check=check)
    neuralmark.embed(path, key, tmp_path / "o.safetensors", options)
    assert set(seen) == {"free"}
    seen.clear()
    neuralmark.embed(path, key, options=options, in_place=True)
    assert set(seen) == {"taken"}


def test_a_mark_that_is_there_already_changes_nothing(tmp_path: Path) -> None:
    path, key = saved(tmp_path / "m.safetensors"), Key.new(SMALL)
    strong = neuralmark.EmbedOptions(strength=2.0, anchor=False)
    neuralmark.embed(path, key, tmp_path / "o.safetensors", strong)
    weak = neuralmark.EmbedOptions(strength=0.5, anchor=False)
    again = neuralmark.embed(tmp_path / "o.safetensors", key, tmp_path / "a.safetensors", weak)
    assert (again.change_relative, again.change_largest) == (0, 0)
    before, after = (load_file(tmp_path / f"{name}.safetensors") for name in "oa")
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_one_tensor_of_an_adapter_among_others_is_noted(tmp_path: Path) -> None:
    tensors = {"a.lora_A.weight": gaussian(128, 160), "b.weight": gaussian(128, 160, seed=1)}
    path, key = saved(tmp_path / "m.safetensors", **tensors), Key.new(Parameters(160, 320))
    for names, noted in ((list(tensors), True), (["b.weight"], False)):
        options = neuralmark.EmbedOptions(tensors=names)
        told = neuralmark.embed(path, key, options=options).warnings
        assert any("LoRA adapter" in each for each in told) == noted


def test_multiples_stay_multiples_beyond_the_first_piece_that_is_read(tmp_path: Path) -> None:
    """Rows of int8 scales, in more than two megabytes."""
    rng = np.random.default_rng(0)
    codes = np.clip(np.rint(40 * rng.standard_normal((1100, 600))), -127, 127)
    codes[:, 0] = 127
    scales = rng.uniform(1e-3, 2e-3, (1100, 1)).astype(np.float32)
    path = saved(tmp_path / "m.safetensors", **{"l.weight": (codes * scales).astype(np.float32)})
    result = neuralmark.embed(path, Key.new(SMALL), tmp_path / "o.safetensors")
    assert result.verdict is not None
    assert result.verdict.matched == 256
    new = load_file(tmp_path / "o.safetensors")["l.weight"]
    multiples = new / scales
    assert np.abs(multiples - np.rint(multiples)).max() < 1e-4
    assert (new[900:] != (codes * scales)[900:].astype(np.float32)).any()
