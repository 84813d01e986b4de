"""Fixtures and hooks; what tests call is in `tests.support`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from neuralmark import Key, embed
from tests.support.models import gaussian_model, plain_key
from tests.support.serving import own_certificate, serving


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An unmarked model."""
    return gaussian_model(tmp_path / "model.safetensors")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A key file without a passphrase."""
    return plain_key(tmp_path / "plain.nmkey")


@pytest.fixture
def marked(model: Path, key: Path, tmp_path: Path) -> Path:
    """The model with the key's mark, its claim beside it."""
    out = tmp_path / "marked.safetensors"
    embed(model, Key.load(key), out)
    return out


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """The address of an https server that this process trusts, and the folder it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    certificate = own_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(folder, certificate) as address:
        yield address, folder


SLOW = (
    *("attacks", "benchmarks", "demo", "disputes", "distributed", "docs", "examples", "hostile"),
    *("integrations", "lab", "notebooks", "storage", "text", "training", "zoo"),
)
"""Folders whose tests train, launch processes or run for long: `make quick` leaves them out."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow."""
    for item in items:
        folder = item.path.parent
        if folder.name in SLOW and folder.parent.name == "tests":
            item.add_marker(pytest.mark.slow)
