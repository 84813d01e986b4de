"""What the tests of text share."""

from typing import Any

import pytest

from neuralmark.text import gpt2
from tests.support.texts import write_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tokenizer of `write_tokenizer`, loaded."""
    return gpt2.load_tokenizer(write_tokenizer(tmp_path_factory.mktemp("tokens") / "gpt2"))
