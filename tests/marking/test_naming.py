"""Which tensors stand for the claim's: missing ones, common prefixes, decoys; every way counted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.numpy import load_file, save_file

import neuralmark
from neuralmark import Claim, Key, Parameters
from neuralmark.checkpoints import TensorInfo
from neuralmark.marking.attempts import claimed, searched
from neuralmark.marking.naming import (
    ADDED,
    MOST_PREFIXES,
    MOST_TWINS,
    Renaming,
    by_canonical,
    choices,
    renamings,
    views,
    with_prefixes,
    without_prefixes,
)
from neuralmark.marking.placement import Tensor, catalogue_of
from tests.support.models import embed_unbound, gaussian

SMALL = Parameters(bits=256, pools=512, rounds=1)
Tensors = dict[str, npt.NDArray[np.float32]]
LAYERS = [
    f"model.layers.{i}.{part}.weight" for i in range(6) for part in ("q", "k", "v", "up", "down")
]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Key, Claim]:
    """A model like a small Llama, marked wide, without an anchor: claims and searches find it."""
    folder = tmp_path_factory.mktemp("llama")
    tensors = {name: gaussian(96, 128, seed=i) for i, name in enumerate(LAYERS)}
    tensors["lm_head.weight"] = gaussian(300, 96, seed=99)
    tensors["model.embed_tokens.weight"] = gaussian(300, 96, seed=98)
    save_file(tensors, folder / "source.safetensors")
    key = Key.new(SMALL)
    marked = folder / "m.safetensors"
    result = embed_unbound(
        folder / "source.safetensors", key, marked, neuralmark.EmbedOptions(strength=3)
    )
    assert result.claim is not None
    assert len(result.claim.placement) == len(LAYERS)
    return marked, key, result.claim


def saved(path: Path, tensors: Tensors) -> Path:
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path)
    return path


def without(tensors: Tensors, gone: Callable[[str], bool]) -> Tensors:
    return {name: value for name, value in tensors.items() if not gone(name)}


def test_a_missing_layer_is_read_as_zeros_and_the_verdict_says_so(
    llama: tuple[Path, Key, Claim], tmp_path: Path
) -> None:
    path, key, claim = llama
    less = without(load_file(path), lambda name: ".layers.2." in name)
    verdict = neuralmark.verify(saved(tmp_path / "l.safetensors", less), key, claim=claim)
    assert verdict.verified
    assert {gap.name for gap in verdict.missing} == {n for n in LAYERS if ".layers.2." in n}
    assert all(gap.why == "it is not there" and not gap.stored for gap in verdict.missing)
    assert "5 of the 30 tensors of the claim (16.7 % of its weights)" in verdict.reason
    assert "zeros stand for them" in verdict.reason
    assert len(verdict.tensors) == 25
    assert verdict.to_dict()["missing"][0]["why"] == "it is not there"


def test_many_missing_matrices(llama: tuple[Path, Key, Claim], tmp_path: Path) -> None:
    path, key, claim = llama
    less = without(load_file(path), lambda name: ".q." in name or ".k." in name)
    verdict = neuralmark.verify(saved(tmp_path / "l.safetensors", less), key, claim=claim)
    assert verdict.verified
    assert len(verdict.missing) == 12


def test_a_tensor_of_another_shape_is_missing(
    llama: tuple[Path, Key, Claim], tmp_path: Path
) -> None:
    path, key, claim = llama
    tensors = load_file(path) | {LAYERS[3]: gaussian(7, 5)}
    verdict = neuralmark.verify(saved(tmp_path / "l.safetensors", tensors), key, claim=claim)
    assert verdict.verified
    assert [gap.why for gap in verdict.missing] == ["it has the shape (7, 5) instead of (96, 128)"]


def test_zeros_alone_are_never_looked_at(llama: tuple[Path, Key, Claim], tmp_path: Path) -> None:
    path, key, claim = llama
    tensors = load_file(path)
    few = {name: tensors[name] for name in LAYERS[:3]}
    verdict = neuralmark.verify(saved(tmp_path / "f.safetensors", few), key, claim=claim)
    assert verdict.status == "unreadable"
    assert verdict.trials == 0


@pytest.mark.parametrize("prefix", ["model.", "backbone.", "language_model.", "vision.text."])
def test_one_common_prefix_added_is_found(
    llama: tuple[Path, Key, Claim], tmp_path: Path, prefix: str
) -> None:
    path, key, claim = llama
    tensors = {prefix + name: value for name, value in load_file(path).items()}
    file = saved(tmp_path / "p.safetensors", tensors)
    told = neuralmark.verify(file, key, claim=claim)
    assert (told.verified, told.mapping, told.missing) == (True, "prefix", ())
    assert told.tensors[0].stored_name == prefix + told.tensors[0].name
    alone = neuralmark.verify(file, key)
    assert (alone.verified, alone.mapping) == (True, "prefix")
    assert alone.placement == claim.placement


def test_the_inner_part_saved_alone_is_found(
    llama: tuple[Path, Key, Claim], tmp_path: Path
) -> None:
    path, key, claim = llama
    inner = {
        name.removeprefix("model."): value
        for name, value in load_file(path).items()
        if name.startswith("model.")
    }
    file = saved(tmp_path / "i.safetensors", inner)
    assert neuralmark.verify(file, key, claim=claim).mapping == "prefix"
    alone = neuralmark.verify(file, key)
    assert (alone.verified, alone.mapping) == (True, "prefix")


def test_a_part_of_a_larger_model_is_found(llama: tuple[Path, Key, Claim], tmp_path: Path) -> None:
    path, key, claim = llama
    tensors = {f"language_model.{name}": value for name, value in load_file(path).items()}
    tensors |= {f"vision.{i}.weight": gaussian(256, 300, seed=i) for i in range(3)}
    file = saved(tmp_path / "v.safetensors", tensors)
    assert neuralmark.verify(file, key, claim=claim).verified
    alone = neuralmark.verify(file, key)
    assert alone.verified
    assert alone.trials > neuralmark.verify(file, key, claim=claim).trials


def test_a_small_decoy_beside_a_wrapped_name_hides_nothing(
    llama: tuple[Path, Key, Claim], tmp_path: Path
) -> None:
    path, key, claim = llama
    tensors = {f"module.{name}": value for name, value in load_file(path).items()}
    tensors |= {name: gaussian(8, 8) for name in LAYERS}
    file = saved(tmp_path / "d.safetensors", tensors)
    assert neuralmark.verify(file, key, claim=claim).verified
    assert neuralmark.verify(file, key).verified


@pytest.mark.parametrize("decoys", [1, len(LAYERS)])
def test_decoys_of_the_same_shape_under_the_claimed_names_hide_nothing(
    llama: tuple[Path, Key, Claim], tmp_path: Path, decoys: int
) -> None:
    path, key, claim = llama
    tensors = {f"module.{name}": value for name, value in load_file(path).items()}
    tensors |= {name: gaussian(96, 128, seed=1000 + i) for i, name in enumerate(LAYERS[:decoys])}
    file = saved(tmp_path / "d.safetensors", tensors)
    told = neuralmark.verify(file, key, claim=claim)
    assert told.verified
    assert told.trials > 2  # every choice counts
    assert all(tensor.stored_name.startswith("module.") for tensor in told.tensors)
    assert neuralmark.verify(file, key).verified


def test_decoys_under_the_claimed_names_with_the_real_ones_elsewhere(
    llama: tuple[Path, Key, Claim], tmp_path: Path
) -> None:
    path, key, claim = llama
    tensors = {f"real.{name}": value for name, value in load_file(path).items()}
    tensors |= {name: gaussian(96, 128, seed=1000 + i) for i, name in enumerate(LAYERS)}
    file = saved(tmp_path / "d.safetensors", tensors)
    told = neuralmark.verify(file, key, claim=claim)
    assert (told.verified, told.mapping) == (True, "prefix")
    assert neuralmark.verify(file, key).verified


def test_the_number_of_ways_is_capped() -> None:
    shape = (96, 128)
    wrappers = ["", "module.", "_orig_mod.", "module._orig_mod.", "base_model.model."]
    infos = [TensorInfo(w + name, "F32", shape) for w in wrappers for name in LAYERS]
    infos += [TensorInfo(f"p{i}.{name}", "F32", shape) for i in range(40) for name in LAYERS]
    ways = claimed(catalogue_of(infos), tuple((name, shape) for name in LAYERS))
    assert len(ways) <= 2 * (MOST_TWINS + MOST_PREFIXES)
    assert len({way.reading_of for way in ways}) == len(ways)
    assert len(searched(catalogue_of(infos[:200]), Key.new(SMALL))) < 600


def test_the_order_of_a_file_changes_no_way_of_looking() -> None:
    infos = [TensorInfo(w + name, "F32", (96, 128)) for w in ("", "module.") for name in LAYERS]
    placement = tuple((name, (96, 128)) for name in LAYERS)
    ways = [
        [way.reading_of for way in claimed(catalogue_of(order), placement)]
        for order in (infos, infos[::-1])
    ]
    assert ways[0] == ways[1]


def test_live_modules_have_gaps_and_prefixes_too(llama: tuple[Path, Key, Claim]) -> None:
    path, key, claim = llama
    inner = torch.nn.Module()
    for name, value in load_file(path).items():
        if ".layers.1." not in name:
            inner.register_buffer(name.replace(".", "/"), torch.from_numpy(value))

    class Renamed(torch.nn.Module):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return {f"net.{n.replace('/', '.')}": t for n, t in inner.named_buffers()}

    verdict = neuralmark.verify(Renamed(), key, claim=claim)
    assert (verdict.verified, verdict.mapping, len(verdict.missing)) == (True, "prefix", 5)


@pytest.mark.parametrize("aliased", [True, False])
def test_many_decoy_prefixes_hide_nothing(
    llama: tuple[Path, Key, Claim], tmp_path: Path, aliased: bool
) -> None:
    """Views of one storage cost a thief nothing; they are one way of looking."""
    path, key, claim = llama
    weights = {name: torch.from_numpy(value) for name, value in load_file(path).items()}
    state = {f"zz.{name}": value for name, value in weights.items()}
    store = torch.randn(300 * 128)
    for i in range(9):
        for name, value in weights.items():
            fake = store[: value.numel()].reshape(value.shape)
            state[f"a{i}.{name}"] = fake if aliased else fake.clone() + i
    file = tmp_path / "m.pt"
    torch.save(state, file)
    told = neuralmark.verify(file, key, claim=claim)
    assert (told.verified, told.mapping) == (True, "prefix")
    assert told.coverage.share <= 1
    assert told.trials == (4 if aliased else 20)
    assert neuralmark.verify(file, key).verified


def headers(*names: str, shape: tuple[int, ...] = (96, 128)) -> list[Tensor]:
    return catalogue_of([TensorInfo(name, "F32", shape) for name in names])


def test_a_renaming_adds_or_removes_one_prefix() -> None:
    assert Renaming().suspects("a.b") == "a.b"
    assert Renaming(added="x.").suspects("a.b") == "x.a.b"
    assert Renaming(removed="a.").suspects("a.b") == "b"
    assert Renaming(removed="a.").suspects("b.a.b") is None
    told = [renaming.mapping for renaming in (Renaming(), Renaming("x."), Renaming("", "x."))]
    assert told == ["names", "prefix", "prefix"]


def test_prefixes_are_ranked_by_the_weights_they_find() -> None:
    placement = (("a.w", (96, 128)), ("b.w", (96, 128)), ("in.c.w", (96, 128)))
    known = headers("x.a.w", "y.a.w", "y.b.w", "c.w", "z.a.w.v", "x.x.a.w")
    found = renamings(by_canonical(known), placement)
    assert found == [
        Renaming(),
        Renaming(added="y."),
        Renaming(removed="in."),
        Renaming(added="x."),
        Renaming(added="x.x."),
    ]


def test_prefixes_count_where_the_shape_is_the_same_or_turned() -> None:
    placement = (("a.w", (96, 128)), ("k", (3, 4, 5)))
    for shape, found in (((96, 128), True), ((128, 96), True), ((96, 127), False)):
        known = headers("x.a.w", shape=shape)
        assert (Renaming(added="x.") in renamings(by_canonical(known), placement)) == found
    turned = headers("x.k", shape=(5, 4, 3))
    assert renamings(by_canonical(turned), placement) == [Renaming()]


def test_parts_of_a_model_are_tried_as_models_of_their_own() -> None:
    known = headers("m.text.0.w", "m.text.1.w", "m.image.w", "head.w", "head.v")
    parts = [[tensor.name for tensor in view] for view in without_prefixes(known)]
    assert parts == [
        ["text.0.w", "text.1.w", "image.w"],
        ["w", "v"],
        ["0.w", "1.w"],
    ]


def test_a_part_has_several_tensors_and_a_64th_of_the_weights() -> None:
    large = headers("large.a", "large.b", shape=(63, 100))
    for side, tried in ((100, True), (98, False)):
        small = headers("small.a", "small.b", shape=(1, side))
        names = {view[0].name for view in without_prefixes([*large, *small])}
        assert len(list(without_prefixes([*large, *small]))) == 1 + tried
        assert names == {"a"}
    assert [len(view) for view in without_prefixes(headers("one.a", "two.b", "two.c"))] == [2]


def test_a_model_is_tried_as_the_inner_part_of_a_larger_one() -> None:
    views = [view[0].name for view in with_prefixes(headers("layers.0.w"))]
    assert views == [f"{prefix}layers.0.w" for prefix in ADDED]
    inner = [view[0].name for view in with_prefixes(headers("model.layers.0.w"))]
    assert inner == [f"{prefix}model.layers.0.w" for prefix in ADDED[1:]]
    both = [view[1].name for view in with_prefixes(headers("model.layers.0.w", "head.w"))]
    assert both == [f"{prefix}head.w" for prefix in ADDED[1:]]


def test_tensors_of_one_name_are_taken_by_their_wrapper() -> None:
    known = headers("module.a", "a", "module.b", "b", "c")
    chosen = [[tensor.info.name for tensor in view] for view in views(known)]
    assert chosen[:2] == [["a", "b", "c"], ["module.a", "module.b", "c"]]
    assert sorted(map(tuple, chosen[2:])) == [("a", "module.b", "c"), ("module.a", "b", "c")]
    assert [[t.info.name for t in view] for view in views(headers("x", "module.y"))] == [
        ["x", "module.y"]
    ]


def test_twelve_choices_among_tensors_of_one_name_and_prefixes_of_three_parts() -> None:
    infos = [
        TensorInfo(f"{wrapper}l{i}.weight", "F32", (8, 8))
        for i in range(5)
        for wrapper in ("", "module.")
    ]
    tried = views(catalogue_of(infos))
    assert len(tried) == MOST_TWINS == 12
    assert [tensor.info.name for tensor in tried[0]] == [f"l{i}.weight" for i in range(5)]
    assert [tensor.info.name for tensor in tried[1]] == [f"module.l{i}.weight" for i in range(5)]
    deep = [TensorInfo(f"a.b.c.d.e{i}.weight", "F32", (8, 8)) for i in range(2)]
    parts = [view[0].name for view in without_prefixes(catalogue_of(deep))]
    assert parts == ["b.c.d.e0.weight", "c.d.e0.weight", "d.e0.weight"]
    numbered = [TensorInfo(f"a.{i}.{part}.weight", "F32", (8, 8)) for i in (0, 1) for part in "qk"]
    parts = [view[0].name for view in without_prefixes(catalogue_of(numbered))]
    assert parts == ["0.q.weight"]


def test_wrappers_of_as_many_tensors_come_in_the_order_of_their_names() -> None:
    wrappers = ("module.", "_orig_mod.")
    for order in (wrappers, wrappers[::-1]):
        known = catalogue_of([TensorInfo(f"{w}a.weight", "F32", (8, 8)) for w in order])
        first, second = choices([known])
        assert [first[0], second[0]] == sorted(known, key=lambda t: t.info.name)
