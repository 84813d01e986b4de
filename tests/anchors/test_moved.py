"""Networks that were rebuilt, all of them, and converted besides: still found."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.locating.suspect import TableWeights
from neuralmark.anchors.restoring import restore
from tests.support.anchored import Table, converted
from tests.support.moved import HEADS_OF, moved


def found(suspect: Table, anchor: Anchor) -> float:
    """The share of the marked weights that is found and put back in order."""
    restoration = restore(TableWeights(suspect), anchor)
    for _ in restoration.tensors():
        pass
    return restoration.record().found


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "insert") for name in ("llama", "vit", "residual")),
        *((name, "flatten") for name in ("chain", "residual")),
        *((name, "conv1d") for name in ("bert words", "vit")),
        *((name, how) for name in ("llama", "vit") for how in ("factor", "stack-layers")),
    ],
)
def test_found_where_it_was_converted_besides(name: str, how: str) -> None:
    anchor, suspect = moved(name)
    other = converted(suspect, how, heads=HEADS_OF.get(name, 0))
    assert found(other, anchor) > 0.9 * found(suspect, anchor) > 0.8
