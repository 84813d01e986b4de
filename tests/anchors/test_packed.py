"""Layers in stacks, and tensors in shards, whose channels, heads or stream were moved as well."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from neuralmark.anchors.aligning import align_together
from neuralmark.anchors.locating import locate
from neuralmark.anchors.locating.suspect import TableWeights
from tests.support.anchored import arrays
from tests.support.moved import KEY, NEARLY_ALL, case, fused, rebuilt, restored
from tests.support.speaking import trained

PACKED = [
    ("stack-layers",),
    ("stack-layers", "prefix"),
    ("conv1d", "stack-layers"),
    ("fuse-gate-up", "fuse-qkv", "stack-layers"),
    ("shard-rows",),
    ("shard-columns",),
    ("shard-columns", "prefix"),
    ("stack-layers", "shard-rows"),
    ("fuse-gate-up", "fuse-qkv", "shard-rows"),
]
CASES = [
    *(("llama", how, hows) for how in ("permute", "all") for hows in PACKED),
    *(("gpt2", "all", (how,)) for how in ("stack-layers", "shard-rows", "shard-columns")),
    ("vit", "all", ("stack-layers", "rename")),
    ("bert words", "all", ("fuse-qkv", "shard-columns")),
]


@pytest.mark.parametrize(("name", "how", "hows"), CASES)
def test_all_of_it_is_found(name: str, how: str, hows: tuple[str, ...]) -> None:
    anchor, marked = case(name)
    record, bits = restored(fused(rebuilt(marked, how), *hows), anchor)
    assert bits >= NEARLY_ALL
    assert record.found > 0.99
    assert min(fate.restored for fate in record.tensors) > 0.97


@pytest.mark.parametrize("hows", [("stack-layers",), ("shard-rows",)])
def test_another_model_stays_another(hows: tuple[str, ...]) -> None:
    anchor, _ = case("llama")
    other = rebuilt(arrays(trained("llama", seed=1)), "all")
    record, bits = restored(fused(other, *hows), anchor)
    assert max(fate.restored for fate in record.tensors) < 0.6
    assert bits < 0.75 * KEY.parameters.bits


@pytest.mark.parametrize("part", ["q", "k", "v", "o"])
def test_shards_of_one_device_alone_do_no_harm(part: str) -> None:
    anchor, marked = case("llama")
    suspect, axis = rebuilt(marked, "permute"), int(part == "o")
    for name in [name for name in suspect if f"{part}_proj.weight" in name]:
        suspect[name] = np.split(suspect[name], 4, axis=axis)[0]
    names = [name for name, _ in anchor.placement]
    assert set(align_together(suspect, anchor, names)) <= set(names)


def test_layers_are_not_taken_for_shards() -> None:
    anchor, marked = case("llama")
    suspect = rebuilt(marked, "permute")
    renamed = {name.replace("model.layers.", "blk."): value for name, value in suspect.items()}
    for table in (suspect, renamed):
        found = locate(TableWeights(table), anchor)
        for name, _ in anchor.placement:
            (stored,) = found[name].view.stored()
            assert stored.replace("blk.", "model.layers.") == name


def test_many_stacks_and_pieces_are_bounded() -> None:
    anchor, _ = case("llama")
    rng = np.random.default_rng(0)
    values = rng.standard_normal((200, 64, 64)).astype(np.float32)
    suspect = {f"s{i}.x.{j}.weight": values for i in range(40) for j in range(8)}
    suspect |= {f"p{i}.x.{j}.weight": values[0, :16] for i in range(500) for j in range(4)}
    found = locate(TableWeights(suspect), anchor, limit=20)
    assert not any(each.direct for each in found.values())
