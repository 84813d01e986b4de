"""TorchScript: an archive of torch with compiled code, a pickled module and constants.

Neither the code nor a pickle is run. Parameters have the names of the module they belong to. A
frozen model has none: its weights are constants, listed as `CONSTANTS.c0` and so on, as its code
calls them, and the mark is found in them by their content (with an anchor).
"""

from functools import partial

from neuralmark.checkpoints.contract import MAX_TENSORS, Checkpoint, StoredTensor
from neuralmark.checkpoints.readers import zipped
from neuralmark.checkpoints.readers.torch_archive import PICKLE, TorchArchive, pickles
from neuralmark.checkpoints.readers.torch_calls import tensor_of
from neuralmark.checkpoints.readers.torch_tables import rebuilt, tensor_calls
from neuralmark.errors import CheckpointError, MalformedError, UnsafeError
from neuralmark.storage.places import Place

CONSTANTS = "constants.pkl"


def matches(path: Place, head: bytes) -> bool:
    """Look for code, or constants beside the one pickle, in an archive of torch."""
    if not head.startswith(zipped.HEAD):
        return False
    try:
        names = zipped.directory(path)
    except CheckpointError:
        return False
    found = pickles(names)
    return len(found) == 1 and found[0].removesuffix(PICKLE) + CONSTANTS in names


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Read the module and the constants inertly, and find every tensor's bytes."""
    archive = TorchArchive(path)
    tensors = dict(_module(path, archive))
    for name, stored in _constants(path, archive).items():
        tensors.setdefault(name, stored)
    if not tensors:
        raise MalformedError(f"{path}: holds no tensors; save the model that it was made from")
    return zipped.ZipCheckpoint(path, "torch_script", tensors, archive.storages())


def _module(path: Place, archive: TorchArchive) -> dict[str, StoredTensor]:
    calls = tensor_calls(path, archive.pickle(), empty=True)
    return {name: archive.stored(name, call) for name, call in calls.items()}


def _constants(path: Place, archive: TorchArchive) -> dict[str, StoredTensor]:
    """What the code refers to as CONSTANTS.c0 …: all weights, in a frozen model."""
    values = archive.pickle(CONSTANTS)
    if not isinstance(values, tuple | list):
        raise MalformedError(f"{path}: its constants are not a list")
    if len(values) > MAX_TENSORS:
        raise UnsafeError(f"{path}: has over {MAX_TENSORS:,} constants")
    calls = {f"CONSTANTS.c{i}": tensor_of(value) for i, value in enumerate(values)}
    locate = partial(archive.locate, folder="constants/")
    return {name: rebuilt(path, name, call, locate) for name, call in calls.items() if call}
