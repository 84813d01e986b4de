"""The Ray engine on a cluster of this machine: real workers, a real kill."""

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neuralmark.lab.execution.engines import Ray
from neuralmark.lab.execution.runner import DONE, FAILED, carry_out
from neuralmark.lab.execution.store import Store
from neuralmark.lab.plan.spec import identity
from tests.support.cluster import TOKEN
from tests.support.commands import PYTHON
from tests.support.paths import ROOT
from tests.support.processes import PATIENCE
from tests.support.runs import begun, count, first_dies, probes, refuse

JOIN = """
import sys
from functools import partial
from tests.support.runs import count, probes
from neuralmark.lab.execution.engines import Ray
from neuralmark.lab.execution.runner import DONE, carry_out
from neuralmark.lab.execution.store import Store
store = Store.open(sys.argv[1])
print(carry_out(probes(3), store, Ray(partial(count, store.root), 2)).count(DONE), "done")
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two workers, ended with the module; their token is ours, so none is written at home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        import ray

        joined: Any = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield joined.address_info["gcs_address"]
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


def test_another_process_joins_a_cluster_and_leaves_it_running(
    tmp_path: Path, cluster: str
) -> None:
    done = subprocess.run(
        [PYTHON, "-c", JOIN, str(tmp_path / "r")],
        env={**os.environ, "RAY_ADDRESS": cluster},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout.endswith("3 done\n"), done.stderr[-2000:]
    again = carry_out(probes(4), Store.open(tmp_path / "r"), Ray(partial(count, tmp_path / "r"), 2))
    assert again.count(DONE) == 4
