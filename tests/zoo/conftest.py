"""torchvision is put right before anything else imports it; one thread, as tests share cores."""

from collections.abc import Iterator

import pytest
import torch

import neuralmark.torchvision_loading  # noqa: F401


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
