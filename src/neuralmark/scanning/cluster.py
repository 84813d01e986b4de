"""Workers of a Ray cluster: each of its processes keeps a sandboxed one, which reads for it.

Every machine must see the targets under the names that they have here, and have this package. Keys
go to the machines of the cluster in memory: use one that is yours.
"""

from neuralmark.checkpoints import place_of
from neuralmark.errors import NeuralMarkError, SandboxError
from neuralmark.sandbox import child
from neuralmark.sandbox.confined import Confined, Protection, error_of
from neuralmark.sandbox.limits import SandboxLimits
from neuralmark.sandbox.served import PlaceServer
from neuralmark.scanning import work
from neuralmark.scanning.contract import Errand, ScanOptions, ScanTerms
from neuralmark.scanning.keyring import Keyring
from neuralmark.scanning.readers import Readers, Returned, returned, started
from neuralmark.workers.ray_cluster import RayCluster

_readers: dict[str, tuple[Confined, PlaceServer]] = {}
"""In a process of the cluster: the one that reads for it, by the keys that it knows."""


class RayReaders(Readers):
    """Processes of a cluster."""

    def __init__(self, keyring: Keyring, terms: ScanTerms, options: ScanOptions) -> None:
        """Join the cluster, and send it the keys once."""
        self._cluster = RayCluster(_carry_out_remotely, options.jobs)
        self._keyring = self._cluster.shared(keyring)
        self._terms, self._limits = terms, options.sandbox
        self.protection = Protection()
        try:
            self.protection = Protection(**self._first(keyring))
        except BaseException:
            self.close()
            raise

    def _first(self, keyring: Keyring) -> dict[str, str]:
        """What protects a worker there, asked before anything is read."""
        self._cluster.begin(None, self._keyring, self._limits, self._terms, None)
        (ended,) = self._cluster.wait()
        told = ended.value or {"error": {"message": ended.why}}
        if "error" in told:
            why = told["error"]["message"]
            raise SandboxError(f"the cluster cannot read anything ({why})")
        protection: dict[str, str] = told["protection"]
        return protection

    def free(self) -> int:
        """Cores without an errand."""
        return self._cluster.free()

    def begin(self, errand: Errand) -> None:
        """Send it to the cluster."""
        self._cluster.begin(errand, self._keyring, self._limits, self._terms, errand)

    def wait(self) -> list[Returned]:
        """What ended; Ray itself tries again what a dead worker had."""
        found = []
        for errand, value, why in self._cluster.wait():
            error: NeuralMarkError | None = None
            if value is None:
                error = SandboxError(f"the worker died: {why}")
            elif "error" in value:
                error = error_of(value["error"])
            found.append(returned(errand, (value or {}).get("outcomes"), error))
        return found

    def close(self) -> None:
        """Cancel what runs; a cluster that was there before stays."""
        self._cluster.close()


def _carry_out_remotely(
    keyring: Keyring, limits: SandboxLimits | None, terms: ScanTerms, errand: Errand | None
) -> dict[str, object]:
    """In a process of the cluster: have its reader carry out an errand."""
    name = f"{keyring.digest} {limits} {terms.remote}"
    try:
        if name not in _readers:
            for old in list(_readers):
                _readers.pop(old)[0].close()
            server = PlaceServer(lambda target: place_of(target, terms.remote))
            _readers[name] = started(keyring, limits, server), server
        reader, server = _readers[name]
        if errand is None:
            return {"protection": vars(reader.protection)}
        server.allow(todo.target for todo in errand.todo)
        reader.begin(work.carry_out, errand.stage, errand.todo, terms, models=len(errand.todo))
        ended = reader.ended()
    except NeuralMarkError as error:
        return {"error": child.told(error)}
    if ended.dead:
        _readers.pop(name)[0].close()
    return {"error": child.told(ended.error)} if ended.error else {"outcomes": ended.value}
