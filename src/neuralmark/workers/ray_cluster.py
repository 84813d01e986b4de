"""A Ray cluster that carries out one function, some calls at a time."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from neuralmark.errors import MissingExtraError

TRIES = 3
"""Workers that may die on one call before it counts as failed."""


class RayEnded(NamedTuple):
    """How a call ended: what it gave, or why it gave nothing."""

    tag: Any
    value: Any = None
    why: str = ""


class RayCluster:
    """The cluster that RAY_ADDRESS names, or one that is started here."""

    def __init__(self, function: Callable[..., Any], jobs: int | None, *, gpus: bool = False):
        """Join or start it; `jobs` calls at a time (None: as many as it has cores), a GPU each."""
        try:
            import ray
        except ImportError:
            raise MissingExtraError(
                "the Ray engine needs ray: pip install 'neuralmark[ray]'"
            ) from None
        self._ray: Any = ray
        self._ours = not ray.is_initialized()
        if self._ours:
            cores = None if os.environ.get("RAY_ADDRESS") else jobs  # a cluster has its own
            ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False)
        self._jobs = jobs or int(self._ray.cluster_resources().get("CPU", 1))
        one = 1 if gpus and self._ray.cluster_resources().get("GPU") else 0
        remote = ray.remote(num_cpus=1, num_gpus=one, max_retries=TRIES - 1, retry_exceptions=False)
        self._call = remote(function)
        self._running: dict[Any, Any] = {}

    def shared(self, value: Any) -> Any:
        """A value for many calls, sent to each machine once."""
        return self._ray.put(value)

    def free(self) -> int:
        """How many more calls can be begun now."""
        return self._jobs - len(self._running)

    def begin(self, tag: Any, *arguments: Any) -> None:
        """Send a call to the cluster; `tag` comes back with its end."""
        self._running[self._call.remote(*arguments)] = tag

    def wait(self) -> list[RayEnded]:
        """Those that ended; Ray itself tries again what a dead worker had."""
        ready, _ = self._ray.wait(list(self._running), num_returns=1)
        ended = []
        for future in ready:
            tag = self._running.pop(future)
            try:
                ended.append(RayEnded(tag, self._ray.get(future)))
            except self._ray.exceptions.RayError as error:
                ended.append(RayEnded(tag, why=str(error).strip().splitlines()[-1]))
        return ended

    def close(self) -> None:
        """Cancel what runs; a cluster that was there before stays."""
        for future in self._running:
            self._ray.cancel(future, force=True)
        if self._ours:
            self._ray.shutdown()
