"""Networks of no known family: a live suspect tells which channels are one."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from neuralmark.anchors.locating import Located, LocatedWeights  # noqa: E402
from neuralmark.anchors.locating.suspect import SuspectWeights, TableWeights  # noqa: E402
from neuralmark.anchors.locating.views import Stored  # noqa: E402
from neuralmark.anchors.restoring import restore  # noqa: E402
from neuralmark.attacks.tools import changes  # noqa: E402
from neuralmark.structures import traced_structure  # noqa: E402
from neuralmark.training.live import LiveSuspect  # noqa: E402
from tests.support.anchored import anchor_of  # noqa: E402
from tests.support.traced import Choosing, Residual  # noqa: E402

NOISE = 0.6


def _network(seed: int) -> Any:
    torch.manual_seed(seed)
    return Residual(width=40).eval()


def _table(model: Any) -> dict[str, Any]:
    state = model.state_dict().items()
    return {name: value.numpy().copy() for name, value in state if value.is_floating_point()}


def _moved(model: Any) -> Any:
    """The same network with its channels in another order, and noise."""
    table, rng = _table(model), np.random.default_rng(2)
    structure = traced_structure(table, model)
    assert structure is not None
    for group in structure.groups:
        if group.movable:
            changes.permute(table, group, rng.permutation(group.size))
    for value in table.values():
        if value.ndim > 1:
            value += NOISE * value.std() * rng.standard_normal(value.shape).astype(np.float32)
    other = Residual(width=40).eval()
    other.load_state_dict({n: torch.from_numpy(v) for n, v in table.items()}, strict=False)
    return other


def _likeness(suspect: SuspectWeights, original: Any) -> list[float]:
    """Of the layers between the blocks' channels to the anchor, put in order."""
    restoration = restore(suspect, anchor_of(_table(original)))
    list(restoration.tensors())
    fates = restoration.record().tensors
    return [fate.restored for fate in fates if ".up." in fate.name or ".down." in fate.name]


def test_noise_that_hides_each_tensor_alone_does_not_hide_the_network() -> None:
    original = _network(1)
    suspect = _moved(original)
    alone = _likeness(TableWeights(_table(suspect)), original)
    together = _likeness(LiveSuspect(suspect).weights(), original)
    assert min(together) > 0.8  # 1 / sqrt(1 + 0.6²) = 0.86
    assert min(alone) < 0.6


def test_a_stranger_is_not_brought_near_by_its_map() -> None:
    assert max(_likeness(LiveSuspect(_network(7)).weights(), _network(1))) < 0.5


def test_the_map_is_told_in_the_names_of_the_anchor() -> None:
    weights = LiveSuspect(_network(1)).weights()
    located = {
        "theirs": Located(Stored("blocks.0.up.weight"), 1.0, direct=True),
        "also": Located(Stored("blocks.0.down.weight"), 1.0, direct=True),
    }
    found = LocatedWeights(weights, located).traced()
    assert found is not None
    (inner,) = [group for group in found.groups if group.name == "blocks.0.up"]
    assert [(side.tensor, side.axis) for side in inner.sides()] == [("theirs", 0), ("also", 1)]


def test_files_and_what_cannot_be_traced_have_no_map() -> None:
    assert LiveSuspect(Choosing()).weights().traced() is None
    assert LiveSuspect(Choosing().state_dict()).weights().traced() is None
    assert LocatedWeights(TableWeights(_table(_network(1))), {}).traced() is None
