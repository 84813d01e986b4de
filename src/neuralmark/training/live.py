"""A live module as something that can be examined and marked, sharded or not."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import torch

from neuralmark.anchors.locating.suspect import SuspectWeights, TableWeights
from neuralmark.checkpoints import TensorInfo, open_checkpoint
from neuralmark.core import readout
from neuralmark.core.carriers import Carriers
from neuralmark.core.encoding import canonical_json
from neuralmark.core.key import Float
from neuralmark.errors import NonFiniteError, ParameterError, UnsuitableTensorError
from neuralmark.keys.key import Key
from neuralmark.marking.beside import FROM_FILE
from neuralmark.marking.placement import Tensor, catalogue_of
from neuralmark.marking.reading import Attempt, Progress, Reading, digest_of
from neuralmark.records import Digest
from neuralmark.structures import traced_structure
from neuralmark.structures.structure import Array, Indices
from neuralmark.training.derived import Made, derived_of, parts_of
from neuralmark.training.layout import (
    Layout,
    Peers,
    add_up,
    is_dtensor,
    layout_of,
    local,
    peers_of,
    require_agreement,
)
from neuralmark.training.probing import Probed, probed
from neuralmark.training.sources import Direct, WeightSource

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def state_of(model: torch.nn.Module | Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors that saving the module would save, as they are (parameters included)."""
    if isinstance(model, Mapping):
        return _given_state(model)
    if not isinstance(model, torch.nn.Module):
        raise ParameterError(
            "expected a torch.nn.Module, its state dict or the path of a checkpoint, not"
            f" {type(model).__name__}"
        )
    if _of_kind(model, "FullyShardedDataParallel"):
        raise UnsuitableTensorError(
            "FullyShardedDataParallel (FSDP1) flattens the weights, and they cannot be marked:"
            " shard the model with torch.distributed.fsdp.fully_shard (FSDP2) instead"
        )
    if any(getattr(value, "ds_numel", 0) > value.numel() for value in model.parameters()):
        raise UnsuitableTensorError(
            "DeepSpeed's ZeRO-3 keeps no weight whole in any process: mark the finished file with"
            " neuralmark.embed (docs/distributed.md); to verify, gather the weights first with"
            " deepspeed.zero.GatheredParameters"
        )
    state = model.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def require_values(model: torch.nn.Module) -> None:
    """Refuse a module of which something is on the meta device: it has shapes, and no values."""
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.device.type == "meta":
            raise UnsuitableTensorError(
                f"{name!r} is on the meta device, where tensors have no values: load the weights"
                " first (load_state_dict(..., assign=True))"
            )


def _given_state(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """A state dict by itself: names and tensors, of torch or numpy."""
    tensors = {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in state.items()
        if isinstance(name, str) and isinstance(value, np.ndarray | torch.Tensor)
    }
    if not tensors:
        raise ParameterError("this state dict holds no tensors by name: give model.state_dict()")
    return tensors


def _of_kind(model: torch.nn.Module, name: str) -> list[Any]:
    """The wrappers of torch.distributed of this name; imports nothing that was not already."""
    return [
        module
        for module in model.modules()
        if any(
            kind.__name__ == name and kind.__module__.startswith("torch.")
            for kind in type(module).__mro__
        )
    ]


def sources_of(
    tensors: Iterable[Tensor], model: "LiveModel", carriers: Carriers
) -> list[WeightSource]:
    """Sources for tensors laid end to end."""
    sources: list[WeightSource] = []
    start = 0
    for tensor in tensors:
        sources.append(model.source(tensor, carriers, start))
        start += tensor.info.size
    return sources


class LiveModel:
    """A module's tensors by stored name: those it would save, and those computed from them."""

    def __init__(self, model: torch.nn.Module | Mapping[str, Any]) -> None:
        """The module (or a state dict) as it is now."""
        self.state = state_of(model)
        model = torch.nn.Module() if isinstance(model, Mapping) else model
        self.module = model
        self.derived = derived_of(model)
        self.group: Any = next(
            (module.process_group for module in _of_kind(model, "DistributedDataParallel")), None
        )
        """The processes over which DistributedDataParallel keeps the module equal."""

    def tensors(self) -> list[Tensor]:
        """Canonical names and obstacles, as for a file."""
        parts = parts_of(self.module)
        infos = [_info(name, value, parts.get(name)) for name, value in self.state.items()]
        infos += [
            TensorInfo(name, DTYPES[made.inputs[0].dtype], made.shape, _computed_obstacle(made))
            for name, made in self.derived.items()
        ]
        seen: set[int] = set()
        tied = {
            name
            for name, value in self.state.items()
            if id(value) in seen or seen.add(id(value))  # type: ignore[func-returns-value]
        }
        return [replace(t, tied=t.info.name in tied) for t in catalogue_of(infos)]

    def peers(self) -> tuple[Peers, ...]:
        """All processes that hold parts or replicas of this module."""
        device = next((value.device.type for value in self.state.values()), "cpu")
        found = [] if self.group is None else [Peers(self.group, device)]
        for value in self.state.values():
            found += peers_of(value).values()
        return tuple(dict.fromkeys(found))

    def trained(self) -> set[str]:
        """Stored names of the parameters, and of what is computed from them; no buffers."""
        return {
            name for name, value in self.state.items() if isinstance(value, torch.nn.Parameter)
        } | set(self.derived)

    def source(self, tensor: Tensor, carriers: Carriers, start: int) -> WeightSource:
        """The carriers of one tensor that begins at `start`."""
        name = tensor.info.name
        if name in self.derived:
            return self.derived[name].source(tensor.name, carriers, start)
        value = self.state[name]
        layout = layout_of(value, group=self.group)
        return Direct(tensor.name, value, layout, layout.carriers(carriers, start))

    def whole(self, name: str) -> torch.Tensor | None:
        """The tensor, or None where this process has only a part of it."""
        if name in self.derived:
            return self.derived[name].whole()
        value = self.state[name]
        return local(value.detach()) if not layout_of(value).sharded else None

    def arrays(self) -> dict[str, Array]:
        """All floating-point tensors as numpy has them; those in shards must be gathered first."""
        found: dict[str, Array] = {}
        for tensor in self.tensors():
            if tensor.obstacle is not None:
                continue
            whole = self.whole(tensor.info.name)
            if whole is None:
                raise UnsuitableTensorError(
                    f"{tensor.name!r} is sharded, and weights are put back in order only where a"
                    " process has them whole; gather the model, then verify"
                )
            found[tensor.info.name] = whole.float().cpu().numpy()
        return found


def _info(name: str, value: torch.Tensor, obstacle: str | None = None) -> TensorInfo:
    obstacle = "it is on the meta device: no values" if value.device.type == "meta" else obstacle
    return TensorInfo(name, DTYPES.get(value.dtype, str(value.dtype)), tuple(value.shape), obstacle)


def _computed_obstacle(made: Made) -> str | None:
    if any(is_dtensor(tensor) for tensor in made.inputs):
        return "it is computed from sharded parameters; mark the base weights instead"
    return None


@dataclass(frozen=True)
class Pools:
    """Pooled carriers, and the sum of their squares (taken from the values when asked for)."""

    pooled: torch.Tensor
    summed: torch.Tensor | None
    values: torch.Tensor | None = None

    @property
    def squares(self) -> torch.Tensor:
        """Sum of the squares of all carriers."""
        if self.summed is not None:
            return self.summed
        assert self.values is not None
        return self.values.square().sum()


def pool(
    sources: Sequence[WeightSource],
    carriers: Carriers,
    values: Sequence[torch.Tensor],
    *,
    gaps: bool = False,
) -> Pools:
    """Means of all pools, from this process's values and one sum over the others'.

    With gaps, the sources do not have all carriers; the rest count as zeros.
    """
    k = carriers.pools
    if not gaps and not any(source.layout.sharded for source in sources):
        together = values[0] if len(values) == 1 else torch.cat(list(values))
        return Pools(readout.pool(together, k, carriers.pooling), None, together)
    dtype = reduce(torch.promote_types, (given.dtype for given in values))
    parts: dict[tuple[Peers, ...], torch.Tensor] = {}
    for source, given in zip(sources, values, strict=True):
        fresh = torch.zeros(k + 1, dtype=dtype, device=values[0].device)
        partial = parts.setdefault(source.layout.reduce, fresh)
        owner = source.pools(k, carriers.per_pool, carriers.pooling)
        partial[:k].index_add_(0, owner, given.to(dtype))
        partial[k] += (given * given).sum()
    sums = _all(parts)
    return Pools(sums[:k] / carriers.per_pool, sums[k])


def _all(parts: dict[tuple[Peers, ...], torch.Tensor]) -> torch.Tensor:
    """The sum of all parts, each added up over its own peers, and over none more than once.

    What is sharded over more dimensions of a mesh joins the others once those that it has alone
    are added up: one message per dimension in all.
    """
    parts = dict(sorted(parts.items(), key=lambda part: -len(part[0])))
    total = torch.zeros_like(next(iter(parts.values())))
    while parts:
        peers = next(iter(parts))
        sums = parts.pop(peers)
        within = next((other for other in parts if set(other) <= set(peers)), ())
        add_up(sums, tuple(each for each in peers if each not in within))
        parts.get(within, total).add_(sums)
    return total


def shifted(found: Pools, shift: Float, per_pool: int) -> Pools:
    """What is pooled once `shift` was added to all carriers, pool by pool."""
    pooled = found.pooled + torch.from_numpy(shift).to(found.pooled)
    grown = pooled.square().sum() - found.pooled.square().sum()
    return Pools(pooled, found.squares + per_pool * grown)


class LiveSuspect:
    """A live module under examination; sharded modules are read from their shards."""

    def __init__(
        self, model: torch.nn.Module | Mapping[str, Any], example: Any | None = None
    ) -> None:
        """The module (or a state dict) as it is now; with an example, it is run and probed."""
        self._model = LiveModel(model)
        self._example = example
        self.probed: Probed | None = None
        """What probing gave, once the weights were asked for."""
        self._file: str | None = getattr(model, FROM_FILE, None)
        self.label = self._file or f"live {type(model).__name__}"

    def require_same(self, key: Key) -> None:
        """Every process that holds a part must look with the same key."""
        require_agreement(self._model.peers(), {"key": key.fingerprint})

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order of the state dict."""
        return self._model.tensors()

    @torch.no_grad()
    def read(
        self, attempt: Attempt, carriers: Carriers, progress: Progress | None = None
    ) -> Reading:
        """Pool the carriers in float64."""
        sources, norm = [], 0.0
        digests = {}
        for name, start, tensor in attempt.parts():
            if tensor is None:
                continue  # zeros add nothing to any sum
            source = self._source(tensor, attempt, carriers, start)
            sources.append(source)
            whole = self._model.whole(tensor.info.name)
            if whole is not None:
                digests[name] = _sha256(whole)
            norm += squared_norm(self._model, tensor.info.name, source.layout)
        values = [source.values().double() for source in sources]
        found = pool(sources, carriers, values, gaps=len(sources) < len(attempt.tensors))
        reading = reading_of(found, carriers)
        return replace(reading, digests=digests, norm=math.sqrt(norm))

    def weights(self) -> SuspectWeights:
        """Whole tensors by name, for the aligner."""
        arrays = self._model.arrays()
        if self._example is not None:
            self.probed = self.probed or probed(self._model.module, self._example)
            arrays = {**self.probed.weights, **arrays}
        return TableWeights(arrays, partial(traced_structure, arrays, self._model.module))

    def rows(self, name: str, rows: Indices) -> Array | None:
        """Some rows of a tensor that this process has whole."""
        whole = self._model.whole(name)
        return None if whole is None else whole[torch.from_numpy(rows)].float().cpu().numpy()

    def digest(self, tensors: dict[str, str], *, full: bool = False) -> Digest:
        """As for a file, which there is only if the module was loaded from one."""
        if self._file is not None:  # it was read whole, so its whole digest costs little more
            return digest_of(open_checkpoint(self._file), tensors, full=True)
        return digest_of_state(self._model.state, tensors)

    def digests(self) -> dict[str, str]:
        """SHA-256 of every tensor that this process has whole, by canonical name."""
        found = ((each.name, self._model.whole(each.info.name)) for each in self.tensors())
        return {name: _sha256(whole) for name, whole in found if whole is not None}

    def _source(
        self, tensor: Tensor, attempt: Attempt, carriers: Carriers, start: int
    ) -> WeightSource:
        if not (attempt.transposed or attempt.by_rows):
            return self._model.source(tensor, carriers, start)
        whole = self._model.whole(tensor.info.name)
        if whole is None:
            raise UnsuitableTensorError(
                f"{tensor.name!r} is sharded and must be read whole; gather the model, then verify"
            )
        if attempt.transposed:
            whole = whole.t().contiguous()
        if attempt.by_rows and whole.dim() > 1:
            whole = levelled(whole)
        layout = layout_of(whole)
        return Direct(tensor.name, whole, layout, layout.carriers(carriers, start))


def levelled(whole: torch.Tensor) -> torch.Tensor:
    """Every output row divided by its root mean square."""
    rows = whole.flatten(1).double()
    size = rows.square().mean(1, keepdim=True).sqrt()
    return torch.where(size == 0, 0.0, rows / size).reshape(whole.shape)


def reading_of(found: Pools, carriers: Carriers) -> Reading:
    """What the pools say, in numpy's terms; NaN and infinity are an error."""
    pooled: Float = found.pooled.detach().double().cpu().numpy()
    squares = float(found.squares)
    if not (np.isfinite(pooled).all() and math.isfinite(squares)):
        raise NonFiniteError("the weights that carry the mark hold NaN or infinity")
    spread = squares - carriers.per_pool * float(pooled @ pooled)
    within = math.sqrt(max(spread, 0.0) / max(carriers.size - carriers.pools, 1))
    return Reading(carriers, pooled, within, 0.0, {})


def digest_of_state(state: dict[str, torch.Tensor], tensors: dict[str, str]) -> Digest:
    """Headers as a safetensors file of this state dict would have them."""
    headers = sorted(
        [name, DTYPES.get(value.dtype, str(value.dtype)), list(value.shape)]
        for name, value in state.items()
    )
    return Digest(hashlib.sha256(canonical_json(headers)).hexdigest(), tensors)


def squared_norm(model: LiveModel, name: str, layout: Layout) -> float:
    """Of the whole tensor, added up over its shards."""
    part = model.whole(name)
    if part is None:
        part = local(model.state[name].detach())
    square = part.double().square().sum()
    add_up(square, layout.reduce)
    return float(square)


def _sha256(tensor: torch.Tensor) -> str:
    raw = tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(raw.data).hexdigest()
