"""Layers as passports see them."""

import pytest

from neuralmark.core.passports import layer_shape
from neuralmark.errors import UnsuitableTensorError


def test_convolutions_and_linear_layers_take_passports() -> None:
    conv = layer_shape("conv.weight", (8, 4, 3, 5), 6)
    assert (conv.rows, conv.inputs, conv.kernel, conv.side) == (8, 4, (3, 5), 6)
    linear = layer_shape("fc.weight", (8, 4), 6)
    assert (linear.kernel, linear.side) == ((1, 1), 1)


@pytest.mark.parametrize("shape", [(8,), (8, 4, 3), (8, 4, 3, 3, 3)])
def test_other_tensors_do_not(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsuitableTensorError, match=r"'odd' of shape .* takes no passport"):
        layer_shape("odd", shape, 6)
