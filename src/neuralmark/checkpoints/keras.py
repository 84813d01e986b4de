"""Files of Keras: `.keras` archives and `.weights.h5` of Keras 3, `.h5` models of Keras 2 and 3.

Names are those that Keras shows, with dots for slashes, so that prefixes and layers are told apart
as in every other format: `dense.kernel`. A weights file of Keras 3 numbers the variables of a
layer; those of the usual layers get their names back, others keep the number. Kernels keep their
shape, [in, out]: it is what Keras shows and what `set_weights` takes, and a claim of the other
shape is read with the matrices turned. The state of the optimizer is left out.
"""

import re
from collections.abc import Iterator

from neuralmark.checkpoints.contract import Checkpoint, StoredTensor, TensorInfo
from neuralmark.checkpoints.readers import zipped
from neuralmark.checkpoints.readers.dtypes import FLOATS, ITEMSIZE
from neuralmark.checkpoints.readers.hdf5 import (
    HEAD,
    HdfDecoder,
    HdfRange,
    HdfTensor,
    HdfTree,
    read_hdf,
)
from neuralmark.errors import MalformedError, UnknownFormatError
from neuralmark.storage.places import Place

WEIGHTS = "model.weights.h5"
MEMBERS = ("metadata.json", "config.json", WEIGHTS)
FIXED = (
    "a file of Keras can only be read: save the weights with numpy.savez under these names, mark"
    " that file, and put them back with model.set_weights"
)
STATES = {"optimizer", "optimizer_weights", "_optimizer"}
MODEL, TOP = "model_weights", "top_level_model_weights"
DTYPES = {
    **{"<f8": "F64", "<f4": "F32", "<f2": "F16", "|V2": "BF16", "|b1": "BOOL"},
    **{"<i8": "I64", "<i4": "I32", "<i2": "I16", "|i1": "I8"},
    **{"<u8": "U64", "<u4": "U32", "<u2": "U16", "|u1": "U8"},
}
_VARIABLES = {
    "embedding": ("embeddings",),
    "batch_normalization": ("gamma", "beta", "moving_mean", "moving_variance"),
    "layer_normalization": ("gamma", "beta"),
    "group_normalization": ("gamma", "beta"),
    "rms_normalization": ("scale",),
    **{f"separable_conv{n}d": ("depthwise_kernel", "pointwise_kernel", "bias") for n in (1, 2)},
    "cell": ("kernel", "recurrent_kernel", "bias"),
    "p_re_lu": ("alpha",),
}
"""Variables of layers, by the layer's class, in the order of their numbers."""


def matches(path: Place, head: bytes) -> bool:
    """An HDF5 file, or an archive that begins like one of Keras and holds its weights."""
    if head.startswith(HEAD):
        return True
    if not head.startswith(zipped.HEAD) or zipped.first_name(head) not in MEMBERS:
        return False
    try:
        return WEIGHTS in zipped.directory(path)
    except MalformedError:
        return True  # cut off: opening it says so


def open(path: Place) -> Checkpoint:  # noqa: A001 - the contract's verb
    """Find all variables."""
    part = _range(path)
    tree = read_hdf(part, STATES)
    tensors: dict[str, StoredTensor] = {}
    for name, tensor in _named(tree):
        if name in tensors:
            name = ".".join(tensor.path)  # two layers of one name: as it is stored
        if name in tensors:
            raise MalformedError(f"{path}: has two variables that are called {name[:80]!r}")
        tensors[name] = _stored(part, name, tensor)
    return Checkpoint(path, "keras", tensors)


def _range(path: Place) -> HdfRange:
    """Where the HDF5 file is: the file itself, or a member of the archive."""
    with path.open("rb") as file:
        if file.read(len(HEAD)) == HEAD:
            return HdfRange(path, 0, path.stat().st_size)
        record = zipped.directory(path).get(WEIGHTS)
        if record is None:
            raise UnknownFormatError(f"{path}: holds no {WEIGHTS}")
        if record.method != zipped.STORED:
            raise UnknownFormatError(
                f"{path}: its {WEIGHTS} is compressed: unpack it, and give that file"
            )
        return HdfRange(path, zipped.place(path, file, record).offset, record.size)


def _stored(part: HdfRange, name: str, tensor: HdfTensor) -> StoredTensor:
    dtype = DTYPES.get(tensor.descr, f"hdf5 {tensor.descr[:40]}")
    obstacle = tensor.obstacle or _why_not(tensor.descr, dtype)
    info = TensorInfo(name, dtype, tensor.shape, obstacle, fixed=FIXED)
    if obstacle is not None or tensor.offset is not None:
        return StoredTensor(info, part.place, tensor.offset or part.start)
    if dtype not in FLOATS:
        why = f"its integers are stored in {tensor.packing}"
        return StoredTensor(TensorInfo(name, dtype, tensor.shape, why), part.place, part.start)
    told = f"{dtype} ({tensor.packing})"
    info = TensorInfo(name, "F32", tensor.shape, stored=told, fixed=FIXED)
    return StoredTensor(info, part.place, part.start, decoder=HdfDecoder(part, tensor, dtype))


def _why_not(descr: str, dtype: str) -> str | None:
    if descr.startswith(">"):
        return "it is big-endian; save it on a usual machine"
    return None if dtype in ITEMSIZE else f"its dtype {descr[:40]!r} is not known"


def _named(tree: HdfTree) -> Iterator[tuple[str, HdfTensor]]:
    """The variables under the names that Keras shows."""
    groups: dict[tuple[str, ...], list[HdfTensor]] = {}
    for tensor in tree.tensors:
        groups.setdefault(tensor.path[:-1], []).append(tensor)
    old = (MODEL,) in tree.listed or () in tree.listed
    for group, members in groups.items():
        for tensor in members:
            if group and group[-1] == "vars":
                yield _by_number(tree, group[:-1], tensor, members), tensor
            else:
                yield _by_path(tensor.path, old), tensor


def _by_path(path: tuple[str, ...], old: bool) -> str:
    """A variable whose path is its name: Keras 2 puts it under its layer, whose name it has too."""
    parts = path[1:] if path[0] == MODEL else path
    if old and len(parts) > 1 and (parts[0] == TOP or len(parts) > 2):
        parts = parts[1:]
    return ".".join(re.sub(r":\d+$", "", part) for part in parts)


def _by_number(
    tree: HdfTree, layer: tuple[str, ...], tensor: HdfTensor, members: list[HdfTensor]
) -> str:
    """A numbered variable of a layer: Keras 3 keeps the layers' names beside them."""
    parts = [
        tree.names.get(layer[: i + 1], part).replace("/", ".")
        for i, part in enumerate(layer)
        if part != "layers" or layer[: i + 1] in tree.names
    ]
    return ".".join((*parts, _variable(layer, tensor, members)))


def _variable(layer: tuple[str, ...], tensor: HdfTensor, members: list[HdfTensor]) -> str:
    number = tensor.path[-1]
    if not layer or not number.isdecimal() or len(number) > 4:
        return number
    known = _VARIABLES.get(re.sub(r"_\d+$", "", layer[-1]))
    if known is None and _is_kernel(members):
        known = ("kernel", "bias")[: len(members)]
    return known[int(number)] if known and len(known) == len(members) > int(number) else number


def _is_kernel(members: list[HdfTensor]) -> bool:
    """Whether these are the kernel, and perhaps the bias, of a layer."""
    shapes = {each.path[-1]: each.shape for each in members}
    kernel, bias = shapes.get("0", ()), shapes.get("1")
    if len(kernel) < 2 or set(shapes) - {"0", "1"}:
        return False
    return bias is None or (len(bias) > 0 and bias == kernel[-len(bias) :])
