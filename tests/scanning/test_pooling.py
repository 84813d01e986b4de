"""One look at many models, many looks at one: the bits that `verify` finds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuralmark import Key, schemes
from neuralmark.checkpoints import Checkpoint, open_checkpoint
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Filter
from neuralmark.errors import NeuralMarkError
from neuralmark.marking.attempts import Attempt, claimed, searched
from neuralmark.marking.placement import catalogue
from neuralmark.marking.reading import FileSuspect
from neuralmark.marking.verification import find
from neuralmark.scanning import pooling, screening
from neuralmark.scanning.keyring import keyring_of
from neuralmark.scanning.planning import plan_for
from neuralmark.scanning.pooling import NONE, MarkCache
from tests.support.models import QUICK, gaussian, gaussian_model, saved
from tests.support.scans import keys_of
from tests.support.schemes import ALL

WAYS = [(name, how) for name in ALL for how in schemes.get(name).filters]


def naive(checkpoint: Checkpoint, key: Key, attempt: Attempt) -> int:
    """What the library finds."""
    try:
        return find(FileSuspect(checkpoint, "m"), key, attempt).matched
    except NeuralMarkError:
        return NONE


def both(checkpoint: Checkpoint, key: Key, attempt: Attempt) -> tuple[int, int]:
    """What is found held in memory, and streamed."""
    marks = MarkCache()
    names = [tensor.info.name for tensor in attempt.read_tensors()]
    rows = [pooling.laid_out(attempt, pooling.load(checkpoint, names))]
    drawn = marks.get(key, attempt.placement, attempt.anchor)
    (held,) = pooling.matches(drawn, rows)
    (streamed,) = pooling.streamed(checkpoint, [(key, attempt)], marks).counts
    return int(held), int(streamed)


@pytest.mark.parametrize(("scheme", "how"), WAYS)
def test_every_way_of_a_search_gives_the_same_bits(
    tmp_path: Path, scheme: str, how: Filter
) -> None:
    pools = None if how in ("none", schemes.get(scheme).filters[0]) else 320
    pools = None if isinstance(schemes.get(scheme), schemes.PassportScheme) else pools
    key = Key.new(schemes.parameters(scheme, bits=64, pools=pools, filter=how))
    tensors = {"layer1.weight": gaussian(128, 128), "layer2.weight": gaussian(96, 64, 3, 3)}
    model = open_checkpoint(saved(tmp_path / "m.safetensors", **tensors))
    attempts = searched(catalogue(model), key)
    assert any(attempt.by_rows for attempt in attempts)
    for attempt in attempts:
        assert both(model, key, attempt) == (naive(model, key, attempt),) * 2


def test_claims_with_gaps_turned_tensors_and_levelled_rows(tmp_path: Path) -> None:
    key = Key.new(QUICK)
    gaussian_model(tmp_path / "m.safetensors")
    tensors = load_file(tmp_path / "m.safetensors")
    placement = tuple((name, tensors[name].shape) for name in ("layer1.weight", "layer2.weight"))
    turned = {"layer1.weight": np.ascontiguousarray(tensors["layer1.weight"].T)}
    turned["layer2.weight"] = np.ascontiguousarray(tensors["layer2.weight"].T)
    save_file(turned, tmp_path / "turned.safetensors")
    save_file({"x.layer1.weight": tensors["layer1.weight"]}, tmp_path / "part.safetensors")
    seen = set()
    for name in ("m", "turned", "part"):
        model = open_checkpoint(tmp_path / f"{name}.safetensors")
        for attempt in claimed(catalogue(model), placement):
            seen.add((attempt.transposed, attempt.by_rows, bool(attempt.gaps)))
            assert both(model, key, attempt) == (naive(model, key, attempt),) * 2
    assert {(True, True, False), (True, False, False), (False, True, True)} <= seen


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_types(tmp_path: Path, dtype: str) -> None:
    key = Key.new(QUICK)
    weights = gaussian(128, 128).astype(dtype)
    save_file({"layer1.weight": weights}, tmp_path / "m.safetensors")
    model = open_checkpoint(tmp_path / "m.safetensors")
    for attempt in searched(catalogue(model), key):
        assert both(model, key, attempt) == (naive(model, key, attempt),) * 2


def test_contiguous_pools_of_raw_keys(tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).standard_normal((64, 32)).astype("float32")
    key = Key.raw(matrix, rounds=1, pooling="contiguous")
    model = open_checkpoint(gaussian_model(tmp_path / "m.safetensors"))
    for attempt in searched(catalogue(model), key):
        assert both(model, key, attempt) == (naive(model, key, attempt),) * 2


def test_what_is_not_finite_matches_nothing(tmp_path: Path) -> None:
    key = Key.new(QUICK)
    weights = gaussian(128, 128)
    weights[0] = np.nan
    save_file({"layer1.weight": weights}, tmp_path / "m.safetensors")
    model = open_checkpoint(tmp_path / "m.safetensors")
    for attempt in searched(catalogue(model), key):
        assert both(model, key, attempt) == (NONE, NONE)
    plan = plan_for(catalogue(model), keyring_of([key]))
    seen = screening.screen([model], plan, keyring_of([key]), MarkCache(), 1)
    assert seen.broken == (("layer1.weight",),)
    assert seen.closest(0) is None


def test_a_tensor_without_room_is_no_look() -> None:
    key = Key.new(QUICK)
    placement = (("tiny", (8, 8)),)
    drawn = MarkCache().get(key, placement, b"")
    assert drawn.carriers.per_pool == 0
    assert list(pooling.matches(drawn, [np.zeros(64, np.float32)] * 2)) == [NONE, NONE]


def test_large_models_are_streamed_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = keyring_of(keys_of("a", "b", "c"))
    model = open_checkpoint(gaussian_model(tmp_path / "m.safetensors"))
    plan = plan_for(catalogue(model), ring)
    held = screening.screen([model, model], plan, ring, MarkCache(), 10)
    monkeypatch.setattr(screening, "HELD", 1)
    read: list[str] = []
    usual = Checkpoint.read

    def noted(self: Checkpoint, name: str) -> Any:
        read.append(name)
        return usual(self, name)

    monkeypatch.setattr(Checkpoint, "read", noted)
    streamed = screening.screen([model], plan, ring, MarkCache(), 10)
    assert (held.best == streamed.best).all()
    assert held.needed == streamed.needed
    assert sorted(read) == sorted(2 * ["layer1.weight", "layer2.weight"])  # rows are levelled


@pytest.mark.parametrize("how", ["none", "stream"])
def test_means_of_every_weight_are_held_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Filter
) -> None:
    """With the same result, though they take a pass for each look."""
    key = Key.new(schemes.parameters("passport-aware", bits=64, filter=how))
    ring = keyring_of([key, *keys_of("a").values()])
    models = [open_checkpoint(gaussian_model(tmp_path / f"{i}.safetensors", i)) for i in range(3)]
    plan = plan_for(catalogue(models[0]), ring)
    whole = screening.screen(models, plan, ring, MarkCache(), 10)
    assert (whole.best >= 0).all()
    passes: list[int] = []
    usual = pooling._read

    def noted(checkpoint: Checkpoint, looks: Any, streams: Any, marks: MarkCache) -> None:
        passes.append(len(streams))
        usual(checkpoint, looks, streams, marks)

    monkeypatch.setattr(pooling, "_read", noted)
    monkeypatch.setattr(pooling, "SUMS", 1)
    few = screening.screen(models, plan, ring, MarkCache(), 10)
    assert (few.best == whole.best).all()
    assert not passes
    monkeypatch.setattr(screening, "HELD", 1)
    streamed = screening.screen(models[:1], plan, ring, MarkCache(), 10)
    assert (streamed.best == whole.best[:, :1]).all()
    assert max(passes) == 1


def test_marks_are_kept_up_to_a_size() -> None:
    keys = [Key.new(QUICK) for _ in range(4)]
    placement = (("layer1.weight", (128, 128)),)
    one = MarkCache().get(keys[0], placement, b"").size
    cache = MarkCache(2 * one)
    made = [cache.get(key, placement, b"") for key in keys]
    assert cache.get(keys[3], placement, b"") is made[3]
    assert cache.get(keys[0], placement, b"") is not made[0]
    assert cache.get(keys[3], placement, b"") is made[3]  # used last, so kept


def test_sparing_carriers_are_the_same() -> None:
    mark = Key.new(QUICK).at((("w", (1000, 300)),))
    carriers = Carriers.of(mark, 300_000)
    sparing = carriers.sparing()
    for low, high in ((0, 300_000), (65_000, 66_000), (131_072, 200_000)):
        first, at = carriers.between(low, high)
        assert sparing.between(low, high)[0] == first
        assert (sparing.between(low, high)[1] == at).all()
    assert not sparing._kept  # type: ignore[attr-defined]
    assert Carriers.everything(10, 2).sparing().size == 10
