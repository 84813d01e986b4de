"""Which tensors may be fused, and all ways to cut them apart."""

import numpy as np
import pytest

from neuralmark.anchors.locating.cuts import ROW_BY_ROW, Cut, FusionKind, fusions_of
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.locating.views import Stored
from neuralmark.structures import structure_from_shapes

QKV = FusionKind(0, (8, 4, 4), 5, (1, 2), rigid=True)
GATES = FusionKind(1, (6, 6), 5, (1, ROW_BY_ROW))


def read(kind: FusionKind, length: int, cut: Cut) -> list[list[int]]:
    """Which places along the axis each part takes."""
    values = np.arange(length, dtype=np.float32)
    table = TableWeights({"a": values[:, None] if kind.axis == 0 else values[None]})
    parts = kind.parts(Stored("a"), length, cut)
    return [part.read(table).reshape(-1).astype(int).tolist() for part in parts]


@pytest.mark.parametrize(("kind", "length"), [(QKV, 16), (GATES, 12), (GATES, 16)])
def test_every_cut_takes_every_place_once(kind: FusionKind, length: int) -> None:
    seen = set()
    for cut in kind.cuts():
        parts = read(kind, length, cut)
        assert sorted(place for part in parts for place in part) == list(range(length))
        assert [len(part) for part in parts] == [
            n * length // sum(kind.lengths) for n in kind.lengths
        ]
        seen.add(str(parts))
    assert len(seen) == len(list(kind.cuts()))


def test_cuts_by_hand() -> None:
    assert next(QKV.cuts()) == Cut((0, 1, 2))
    assert read(QKV, 16, Cut((0, 1, 2)))[1:] == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert read(QKV, 16, Cut((2, 0, 1)))[0] == [4, 5, 6, 7, 8, 9, 10, 11]
    assert read(QKV, 16, Cut((0, 1, 2), 2))[2] == [6, 7, 14, 15]
    assert read(GATES, 12, Cut((1, 0), ROW_BY_ROW))[0] == [1, 3, 5, 7, 9, 11]
    assert QKV.parts(Stored("a"), 16, Cut((0, 1, 2), 8)) == ()


def test_only_channels_can_be_added() -> None:
    assert [n for n in range(40) if QKV.fits(n)] == [16]
    assert [n for n in range(40) if GATES.fits(n)] == [10, 12, 14, 16, 18]


def llama(queries: int = 16) -> dict[str, tuple[int, ...]]:
    layer = "model.layers.0"
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (30, 16),
        "model.norm.weight": (16,),
        "lm_head.weight": (30, 16),
        f"{layer}.input_layernorm.weight": (16,),
        f"{layer}.post_attention_layernorm.weight": (16,),
        f"{layer}.self_attn.o_proj.weight": (16, queries),
        f"{layer}.mlp.down_proj.weight": (16, 24),
    }
    for name, length in (("self_attn.q", queries), ("self_attn.k", 8), ("self_attn.v", 8)):
        shapes[f"{layer}.{name}_proj.weight"] = (length, 16)
    return shapes | {f"{layer}.mlp.{x}_proj.weight": (24, 16) for x in ("gate", "up")}


def test_the_map_of_a_network_tells_what_may_be_fused() -> None:
    attention, gates = fusions_of(structure_from_shapes(llama(), 4), llama())
    assert [name.split(".")[-2] for name in attention.names] == ["q_proj", "k_proj", "v_proj"]
    assert attention.kind == FusionKind(0, (16, 8, 8), 16, (1, 2), rigid=True)
    assert [name.split(".")[-2] for name in gates.names] == ["gate_proj", "up_proj"]
    assert gates.kind == FusionKind(0, (24, 24), 16, (1, ROW_BY_ROW))


def test_where_heads_are_not_known_usual_sizes_are_tried() -> None:
    attention, _ = fusions_of(structure_from_shapes(llama(), 0), llama())
    assert attention.kind.turns == (1,)
