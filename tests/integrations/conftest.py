"""Tiny models run fastest on one thread, and always alike."""

from collections.abc import Iterator

import pytest
import torch
from tests.integrations.tiny import QUICK

from neuralmark import Key


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def key() -> Key:
    """The same secret in every run, so that what trains today trains tomorrow."""
    return Key(QUICK, salt=bytes(32), secret=bytes(range(32)))
