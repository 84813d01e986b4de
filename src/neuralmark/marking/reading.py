"""One streaming pass over the marked tensors of a checkpoint: all that a read-out needs.

Memory is a few pieces of CHUNK_BYTES, whatever the size of the model.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BufferedReader
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import numpy.typing as npt

from neuralmark import schemes
from neuralmark.checkpoints import Checkpoint
from neuralmark.checkpoints.contract import CHUNK_BYTES
from neuralmark.checkpoints.readers.dtypes import ITEMSIZE, Raw, decode
from neuralmark.core import readout
from neuralmark.core.carriers import Carriers, Positions
from neuralmark.core.encoding import canonical_json
from neuralmark.core.key import Float, Mark, Placement
from neuralmark.errors import NonFiniteError, TooFewCarriersError
from neuralmark.marking.levelling import Rows, stored, turned
from neuralmark.marking.placement import Tensor, catalogue
from neuralmark.records import Digest, Gap
from neuralmark.records.parts import TensorMapping
from neuralmark.storage.places import Place
from neuralmark.structures.structure import Array, Indices

if TYPE_CHECKING:
    from neuralmark.anchors.locating.suspect import SuspectWeights

Progress = Callable[[str, int, int], None]
"""Called with what is being done, bytes done, bytes in all."""


@dataclass(frozen=True)
class Attempt:
    """One way of reading a suspect: the placement of the key, and what is read for each entry."""

    placement: Placement
    tensors: tuple[Tensor | None, ...]
    """None where the suspect has no such tensor: zeros stand for it."""
    mapping: TensorMapping
    transposed: bool = False
    by_rows: bool = False
    """Whether every output row is divided by its root mean square."""
    gaps: tuple[Gap, ...] = ()
    """The entries for which nothing is read, and why."""
    anchor: bytes = b""
    """Digest of the anchor that the key is derived with, or nothing."""

    @property
    def reading_of(self) -> tuple[object, ...]:
        """What is read for which key, and how: the same twice is one trial."""
        read = tuple(
            None if tensor is None else tensor.storage or tensor.info.name
            for tensor in self.tensors
        )
        return self.placement, read, self.transposed, self.by_rows, self.anchor

    def parts(self) -> Iterator[tuple[str, int, Tensor | None]]:
        """Name, start and tensor of each entry, laid end to end."""
        start = 0
        for (name, shape), tensor in zip(self.placement, self.tensors, strict=True):
            yield name, start, tensor
            start += math.prod(shape)

    def read_tensors(self) -> tuple[Tensor, ...]:
        """The tensors that are there."""
        return tuple(tensor for tensor in self.tensors if tensor is not None)


@dataclass(frozen=True)
class Reading:
    """What one pass found."""

    carriers: Carriers
    pooled: Float
    within: float
    """Deviation of the carriers around the mean of their pool: the mark does not change it."""
    norm: float
    digests: dict[str, str]

    @property
    def sigma_z(self) -> float:
        """The spread of the logits that these weights would have without a mark."""
        per_pool, pools = self.carriers.per_pool, self.carriers.pools
        if per_pool > 1 and self.within > 0:
            return self.within * math.sqrt(pools / per_pool)
        return float(readout.scatter_unit(self.pooled))


def require_carriers(mark: Mark, placement: Placement) -> Carriers:
    """The carriers of a mark in a placement; raises where a pool would be empty."""
    carriers = schemes.of(mark).carriers(mark, placement)
    if carriers.per_pool:
        return carriers
    parameters = mark.parameters
    names = ", ".join(f"{name} ({math.prod(shape):,})" for name, shape in placement[:4])
    names += ", …" if len(placement) > 4 else ""
    needed = 2 * parameters.pools * 2**parameters.rounds
    fits = f"use tensors of {needed:,} weights or more, or a key with fewer rounds or pools"
    raise TooFewCarriersError(
        f"too few carriers for this key: {names} have {carriers.survivors:,} carriers for"
        f" {parameters.pools} pools after {parameters.rounds} rounds; {fits}"
        " (the command 'neuralmark key new' can choose them for a model)"
    )


@np.errstate(over="ignore", invalid="ignore")  # what is not finite is found below, and named
def read_marked(
    checkpoint: Checkpoint,
    attempt: Attempt,
    carriers: Carriers,
    progress: Progress | None = None,
) -> Reading:
    """Read the tensors, laid end to end, and pool their carriers."""
    sums, squares, norm = np.zeros(carriers.pools), 0.0, 0.0
    digests: dict[str, str] = {}
    done, size = 0, sum(tensor.info.nbytes for tensor in attempt.read_tensors())
    room = np.empty(CHUNK_BYTES // 2, np.uint32)
    places = np.empty(CHUNK_BYTES, np.float32)
    checkpoint.expect(tensor.info.name for tensor in attempt.read_tensors())
    for name, start, tensor in attempt.parts():
        if tensor is None:
            continue  # zeros add nothing to any sum
        end = start + tensor.info.size
        rows = Rows.of(checkpoint, tensor.info, attempt.transposed) if attempt.by_rows else None
        with ThreadPoolExecutor(2) as others:
            ahead = _Ahead(carriers, others)
            for raw in _hashed(checkpoint, tensor, attempt.transposed, digests, others, name):
                count = len(raw) // ITEMSIZE[tensor.info.dtype]
                finding = ahead.between(start, start + count, end)
                values = decode(raw, tensor.info.dtype, None if attempt.transposed else room)
                if rows is not None:
                    values = rows.levelled(values)
                norm += _squared_norm(values)
                first, at = finding.result()
                chosen = _taken(values, at, places)
                carriers.sum_into(sums, first, chosen)
                squares += _squared_norm(chosen)
                start += len(values)
                done += len(raw)
                if progress:
                    progress("reading", done, size)
        if not (np.isfinite(sums).all() and math.isfinite(squares)):
            raise not_finite(tensor)
    pooled = sums / max(carriers.per_pool, 1)
    spread = squares - carriers.per_pool * float(pooled @ pooled)
    within = math.sqrt(max(spread, 0.0) / max(carriers.size - carriers.pools, 1))
    return Reading(carriers, pooled, within, math.sqrt(norm), digests)


def not_finite(tensor: Tensor) -> NonFiniteError:
    """The error for carriers that are not numbers; it knows the tensor's stored name."""
    return NonFiniteError(
        f"weights of {tensor.name!r} that carry the mark are NaN or infinite: no bit can be"
        " read from them; ask for an intact copy, or set them to 0 in one and say so",
        tensor.info.name,
    )


class Suspect(Protocol):
    """What a verdict can be given on: a checkpoint, or a live model."""

    @property
    def label(self) -> str:
        """What to call it in the verdict."""

    def tensors(self) -> list[Tensor]:
        """All its tensors, in its order."""

    def read(
        self, attempt: Attempt, carriers: Carriers, progress: Progress | None = None
    ) -> Reading:
        """Pool the carriers of the attempt's tensors, laid end to end."""

    def weights(self) -> "SuspectWeights":
        """Its weights by name, read when they are asked for; for the aligner."""

    def rows(self, name: str, rows: Indices) -> Array | None:
        """Some rows of a tensor by stored name; None where this process has a part of it only."""

    def digest(self, tensors: dict[str, str], *, full: bool = False) -> Digest:
        """Its digest, given those of the tensors read."""


@dataclass(frozen=True)
class FileSuspect:
    """A checkpoint under examination."""

    checkpoint: Checkpoint
    label: str

    def tensors(self) -> list[Tensor]:
        """All its tensors, in the order of the file."""
        return catalogue(self.checkpoint)

    def read(
        self, attempt: Attempt, carriers: Carriers, progress: Progress | None = None
    ) -> Reading:
        """Stream the tensors once."""
        return read_marked(self.checkpoint, attempt, carriers, progress)

    def weights(self) -> "SuspectWeights":
        """Straight from the file."""
        from neuralmark.anchors.locating.suspect import CheckpointWeights

        return CheckpointWeights(self.checkpoint)

    def rows(self, name: str, rows: Indices) -> Array | None:
        """Straight from the file."""
        return self.weights().read_rows(name, rows)

    def digest(self, tensors: dict[str, str], *, full: bool = False) -> Digest:
        """Headers, tensors read, and whole files on request."""
        return digest_of(self.checkpoint, tensors, full=full)


def digest_of(checkpoint: Checkpoint, tensors: dict[str, str], *, full: bool = False) -> Digest:
    """The digest that claims and verdicts carry."""
    headers = sorted(
        [info.name, info.stored or info.dtype, list(info.shape)]
        for info in (checkpoint.info(name) for name in checkpoint.names())
    )
    whole = {_short(checkpoint, f): _file_digest(f) for f in checkpoint.files()} if full else None
    return Digest(hashlib.sha256(canonical_json(headers)).hexdigest(), tensors, whole)


def _short(checkpoint: Checkpoint, file: Place) -> str:
    """The name of a file, with the folders below the checkpoint's that lead to it."""
    root = f"{checkpoint.path}/"
    return str(file).removeprefix(root) if str(file).startswith(root) else file.name


class _Ahead:
    """Finds the carriers of the next stretch in another thread while one is worked on."""

    def __init__(self, carriers: Carriers, others: ThreadPoolExecutor) -> None:
        self._carriers, self._others = carriers, others
        self._known: dict[tuple[int, int], Future[tuple[int, Positions]]] = {}

    def between(self, low: int, high: int, end: int) -> Future[tuple[int, Positions]]:
        """The carriers at positions low … high-1; the next stretch is begun, up to `end`."""
        finding = self._known.pop((low, high), None) or self._begun(low, high)
        self._known.clear()
        following = min(2 * high - low, end)
        if following > high:
            self._known[high, following] = self._begun(high, following)
        return finding

    def _begun(self, low: int, high: int) -> Future[tuple[int, Positions]]:
        return self._others.submit(self._carriers.between, low, high)


def _taken(
    values: npt.NDArray[np.floating], at: Positions, room: npt.NDArray[np.float32]
) -> npt.NDArray[np.floating]:
    """The values at these places, in the room given if they fit."""
    if values.dtype != room.dtype or len(at) > len(room):
        return values.take(at)
    return values.take(at, out=room[: len(at)], mode="clip")


def _hashed(
    checkpoint: Checkpoint,
    tensor: Tensor,
    transposed: bool,
    digests: dict[str, str],
    others: ThreadPoolExecutor,
    name: str,
) -> Iterator[Raw]:
    """Stored pieces of a tensor, hashed in another thread while the caller works on them.

    A transposed tensor is read whole and turned.
    """
    digest = hashlib.sha256()
    for piece in stored(checkpoint, tensor.info, transposed):
        hashing = others.submit(digest.update, piece.data)
        yield turned(piece, tensor.info) if transposed else piece
        hashing.result()  # the buffer is used again
    digests[name] = digest.hexdigest()


def _squared_norm(values: npt.NDArray[np.floating]) -> float:
    """Sum of squares; again in float64 where float32 overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(values @ values)
        return total if math.isfinite(total) else float(np.square(values, dtype=np.float64).sum())


def _file_digest(path: Place) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(cast(BufferedReader, file), "sha256").hexdigest()
