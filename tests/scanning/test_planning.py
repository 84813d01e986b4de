"""What headers tell."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from neuralmark.checkpoints import open_checkpoint
from neuralmark.marking.attempts import claimed, searched
from neuralmark.marking.placement import Tensor, catalogue
from neuralmark.scanning import planning
from neuralmark.scanning.contract import Todo
from neuralmark.scanning.keyring import keyring_of
from neuralmark.scanning.planning import Head, batches, plan_for, shapes_fit, signature
from tests.support.models import gaussian, gaussian_model, sharded_model
from tests.support.scans import keys_of, mark


def known_of(path: Path) -> list[Tensor]:
    return catalogue(open_checkpoint(path))


def test_models_with_one_header_have_one_signature(tmp_path: Path) -> None:
    one = gaussian_model(tmp_path / "a.safetensors", 1)
    two = gaussian_model(tmp_path / "b.safetensors", 2)
    other = gaussian_model(tmp_path / "c.safetensors", 2, rows=96)
    shards = sharded_model(tmp_path / "d")
    found = [signature(known_of(path)) for path in (one, two, other, shards)]
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_the_ways_are_those_of_verify(tmp_path: Path) -> None:
    keys = keys_of("a", "b")
    claims = tmp_path / "claims"
    mark(gaussian_model(tmp_path / "m.safetensors"), keys["a.nmkey"], claims)
    known = known_of(gaussian_model(tmp_path / "x.safetensors", 5))
    ring = keyring_of(keys, claims)
    plan = plan_for(known, ring)
    with_claim, without = plan.ways
    assert with_claim.attempts == tuple(claimed(known, ring.sought[0].placement))
    assert without.attempts == tuple(searched(known, keys["b.nmkey"]))
    assert [way.trials for way in plan.ways] == [len(way.attempts) for way in plan.ways]
    assert set(plan.names) == {"layer1.weight", "layer2.weight"}
    assert plan.size == 4 * (128 + 96) * 128
    assert not plan.empty
    assert not plan.hidden


def test_shapes_rule_out(tmp_path: Path) -> None:
    keys = keys_of("a")
    claims = tmp_path / "claims"
    mark(gaussian_model(tmp_path / "m.safetensors"), keys["a.nmkey"], claims)
    save_file({"layer1.weight": gaussian(16, 16)}, tmp_path / "small.safetensors")
    assert plan_for(known_of(tmp_path / "small.safetensors"), keyring_of(keys, claims)).empty
    assert plan_for(known_of(tmp_path / "small.safetensors"), keyring_of(keys)).empty


def test_weights_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {
        "layer1.W_q": np.zeros((128, 128), np.uint8),
        "layer1.scale": gaussian(128),
    }
    save_file(tensors, tmp_path / "q.safetensors")
    plan = plan_for(known_of(tmp_path / "q.safetensors"), keyring_of(keys_of("a")))
    assert plan.hidden
    assert "layer1" in plan.why


@pytest.mark.parametrize(
    ("shape", "fits"),
    [
        ((128, 128), True),
        ((384, 128), True),  # fused
        ((96, 128), True),  # narrowed
        ((1200, 128), False),
        ((128,), False),
        ((16, 1024), False),
    ],
)
def test_shapes_that_could_hold_a_mark(tmp_path: Path, shape: tuple[int, ...], fits: bool) -> None:
    save_file({"any": gaussian(*shape)}, tmp_path / "m.safetensors")
    known = known_of(tmp_path / "m.safetensors")
    assert shapes_fit(known, [("layer1.weight", (128, 128))]) == fits


def heads(*kinds: str, size: int = 1) -> list[Head]:
    return [Head(Todo(number, str(number)), kind, size) for number, kind in enumerate(kinds)]


def test_batches_have_one_header_and_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MOST_TOGETHER", 2)
    made = batches(heads("a", "b", "a", "a"))
    assert sorted([todo.number for todo in batch] for batch in made) == [[0, 2], [1], [3]]
    large = batches(heads("a", "a", "a", size=planning.HELD))
    assert [len(batch) for batch in large] == [1, 1, 1]
    assert batches([]) == []


def test_no_worker_is_idle_while_another_has_many() -> None:
    assert [len(batch) for batch in batches(heads(*"aaaaa"), workers=2)] == [3, 2]
    assert [len(batch) for batch in batches(heads(*"aaaaabbb"), workers=2)] == [5, 3]
    assert [len(batch) for batch in batches(heads("a"), workers=4)] == [1]
