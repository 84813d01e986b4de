"""Copies of channels are found and joined, and nothing else is taken for one."""

import numpy as np

from neuralmark.anchors.aligning.joining import find_copies, joints_of
from neuralmark.anchors.moves import MISSING
from neuralmark.structures.structure import Group, Producer, Side
from tests.support.models import gaussian


def test_parts_of_a_channel_that_has_no_place_are_left_out() -> None:
    made = gaussian(4, 32).astype(np.float64)
    made = np.concatenate([made, made[:2] / 2, made[:1] / 4])
    units = made / np.linalg.norm(made, axis=1, keepdims=True)
    joints = joints_of(made, units @ units.T, 0.9)
    assert joints is not None
    assert joints.parts == 3
    order = np.arange(4)
    order[joints.whole[1]] = MISSING
    rounds = joints.others(order)
    found = {int(place) for places, _ in rounds for place in places if place != MISSING}
    assert found == {4, 6}


def test_channels_along_another_axis_are_not_looked_at_for_copies() -> None:
    values = np.repeat(gaussian(8, 16), 2, axis=1)
    for side in (Side("w", 1), Side("w", 0, offset=2)):
        group = Group("g", 8, (Producer((side,)),))
        assert find_copies(group, {"w": values}, {"w": gaussian(8, 32)}) is None
    group = Group("g", 8, (Producer((Side("w", 0),)),))
    found = find_copies(group, {"w": np.repeat(values, 2, axis=0)}, {"w": gaussian(8, 32)})
    assert found is not None
    assert found.parts == 8
