"""The Ray engine on a cluster of this machine: real workers, a real kill."""

import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.lab.test_runner import begun, first_dies, probes, refuse

from neuralmark.lab.engines import Ray
from neuralmark.lab.runner import DONE, FAILED, carry_out
from neuralmark.lab.spec import identity
from neuralmark.lab.store import Store


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two workers, ended with the module; their token is ours, so none is written at home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        import ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "r")
    specs = probes(4)
    perform = partial(first_dies, store.root, identity(specs[0]))
    board = carry_out(specs, store, Ray(perform, 2))
    assert board.count(DONE) == 4, board.failures()
    assert (store.folder(specs[0]) / "half").exists()  # it was killed
    assert [begun(store, spec) for spec in specs] == [1] * 4
    assert len(list(store.rows())) == 4


@pytest.mark.usefixtures("cluster")
def test_failures_are_named(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "r")
    board = carry_out(probes(1), store, Ray(partial(refuse, store.root), 2))
    assert board.count(FAILED) == 1
    assert "ParameterError: no such thing" in board.failures()[0].why
