"""Tiny models run fastest on one thread, and always alike; frameworks leave settings behind."""

import os
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

from neuralmark import Key
from tests.support.models import QUICK


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """One thread, and what the Trainer writes into the environment is taken back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with mock.patch.dict(os.environ):
        yield
    torch.set_num_threads(threads)
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def key() -> Key:
    """The same secret in every run, so that what trains today trains tomorrow."""
    return Key(QUICK, salt=bytes(32), secret=bytes(range(32)))
