"""Scans on a Ray cluster of this machine: two real workers, one killed on the way."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuralmark import ScanOptions, scan
from neuralmark.errors import SandboxError
from neuralmark.sandbox.limits import SandboxLimits
from neuralmark.scanning import cluster
from tests.support import hostile
from tests.support.cluster import TOKEN
from tests.support.models import gaussian_model
from tests.support.scans import ONE, by_name, keys_of, mark, models_in, same


@pytest.fixture(scope="module")
def plug(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cluster of two workers that find the hostile format; their token is ours."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("plug") / "plug"
        hostile.install(folder, patch)
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        import ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("plug")
def test_a_cluster_finds_what_this_machine_finds(tmp_path: Path) -> None:
    keys = keys_of("a", "b")
    models = models_in(tmp_path / "models", 5)
    marked = mark(models[1], keys["a.nmkey"])
    marked.rename(marked.with_name(os.fsdecode(b"latin\xfc.safetensors")))
    hostile.model(tmp_path / "models" / "loop.bin", "loop")
    limits = SandboxLimits(memory=1 << 30, seconds=4)
    local = scan(
        [tmp_path / "models"], keys, tmp_path / "here", options=ScanOptions(1, sandbox=limits)
    )
    there = ScanOptions(2, engine="ray", sandbox=limits)
    result = scan([tmp_path / "models"], keys, tmp_path / "there", options=there)
    assert same(result.rows()) == same(local.rows())
    assert result.protection is not None
    assert result.protection.whole
    assert by_name(result)["loop.bin"][0].error == "TimeLimitError"
    assert result.counts["verified"] == 1
    assert by_name(result)["latin\\xfc.safetensors"][0].status == "verified"


@pytest.mark.slow
@pytest.mark.usefixtures("plug")
def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    """The reader kills the process of the cluster that started it; Ray gives the errand on."""
    keys = keys_of("a")
    folder = tmp_path / "models"
    models = models_in(folder, 4)
    mark(models[2], keys["a.nmkey"])
    inner = gaussian_model(tmp_path / "inner.safetensors", 99)
    killer = hostile.model(folder / "kill.bin", "kill_once", f"{tmp_path / 'killed'} {inner}")
    there = ScanOptions(2, engine="ray", sandbox=None)
    result = scan([folder], keys, tmp_path / "out", options=there)
    assert (tmp_path / "killed").exists()
    assert result.counts == {"nothing": 4, "verified": 1}
    assert by_name(result)[killer.name][0].status == "nothing"
    again = scan([folder], keys, tmp_path / "again", options=ONE)
    assert [row["status"] for row in same(again.rows())] == [
        row["status"] for row in same(result.rows())
    ]


def test_a_cluster_that_cannot_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dead:
        def __init__(self, *_: object) -> None: ...

        def shared(self, value: object) -> object:
            return value

        def begin(self, *_: object) -> None: ...

        def wait(self) -> list[tuple[None, None, str]]:
            from neuralmark.workers.ray_cluster import RayEnded

            return [RayEnded(None, None, "no such machine")]

        def close(self) -> None: ...

    monkeypatch.setattr(cluster, "RayCluster", Dead)
    gaussian_model(tmp_path / "m.safetensors")
    with pytest.raises(SandboxError, match="no such machine"):
        scan(
            [tmp_path / "m.safetensors"],
            keys_of("a"),
            tmp_path / "out",
            options=ScanOptions(1, engine="ray"),
        )
