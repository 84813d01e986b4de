"""Which tensors of a model can carry a mark, and which `auto` chooses.

Everything here is a pure function of names, shapes and dtypes: owner and judge arrive at the same
list without telling each other anything.
"""

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

from neuralmark import schemes
from neuralmark.checkpoints import Checkpoint, TensorInfo, open_checkpoint
from neuralmark.checkpoints.readers.dtypes import FLOATS
from neuralmark.core.carriers import expected_per_pool
from neuralmark.core.key import PUBLISHED_ROUNDS, STREAM, TILED, Filter, Parameters, Placement
from neuralmark.core.names import canonical_name, natural
from neuralmark.errors import (
    ParameterError,
    TooFewCarriersError,
    UnknownTensorError,
    UnsuitableTensorError,
)
from neuralmark.marking.options import QUICK, WIDE, Spread, check_spread, is_list, shown

MIN_TENSOR = 8192
"""`auto` leaves smaller tensors alone: they add little room and are easily hurt."""

WEIGHTS_PER_POOL = {WIDE: 1 << 18, QUICK: 1 << 15}
"""`auto` adds tensors until it has this many weights for each pool (or no more tensors).

At 512 pools, wide is 134 million weights: strength 1 then moves each of them by 0.8 steps of
bfloat16, and verification reads them in about a second.
"""

MIN_PER_POOL = 8
"""Fewer carriers per pool than this make a mark costly and weak: warned about."""

SMALLER: tuple[tuple[int | None, int | None], ...] = (
    (256, 512),
    (256, 320),
    (160, 256),
    (160, 200),
)
"""Bits and pools to try for a small model, the usual ones first."""

# Layers that owners and thieves alike replace, resize or leave out: classifiers and other outputs
# at the top of the model, embeddings, positions, norms and adapters anywhere.
_HEADS = frozenset(
    (
        "fc",
        "linear",
        "head",
        "heads",
        "classifier",
        "lm_head",
        "score",
        "output",
        "logits",
        "shared",
    )
)
_EDGE = re.compile(
    r"\w*embed\w*|emb|wte|wpe|pos|pos_\w+|position\w*|\w*norm\w*|ln_\w+|bn\d*|lora_\w+"
)
_COMPANION = re.compile(
    r"(scales?|scale_inv|weight_scale\w*|input_scale\w*|qzeros|zeros|zero_points?|absmax|g_idx"
    r"|quant_map|nested_absmax|nested_quant_map|SCB|quant_state\S*|scale_weight|scale_input)$"
)
_SCALES = ("_scale_inv", "_scale", "_scales", ".scale", ".scales")
_SCALES_OF_LAYERS = (".scale_weight", ".weight_scale", ".weight_scale_inv")
_SCALES_OF_INTEGERS = (".scale", ".scales", ".weight_scales", ".SCB")
_INTEGERS = ("I8", "U8", "I32", "U32")


@dataclass(frozen=True)
class Tensor:
    """A tensor under its canonical name, with the reason why it cannot be marked, if any."""

    name: str
    info: TensorInfo
    tied: bool = False
    """Whether it shares its bytes with a tensor before it; `auto` leaves it alone."""
    storage: object = None
    """Where its bytes are: the same for all tensors that are one; None where it is not known."""

    @property
    def canonical(self) -> str:
        """Its canonical name, also where another tensor has the same."""
        return canonical_name(self.info.name)

    @property
    def obstacle(self) -> str | None:
        """Why it cannot carry a mark as it is stored, or None."""
        return self.info.obstacle

    @property
    def entry(self) -> tuple[str, tuple[int, ...]]:
        """Its entry in a placement."""
        return self.name, self.info.shape


@dataclass(frozen=True)
class Choice:
    """The tensors that `auto` takes, and why."""

    tensors: tuple[Tensor, ...]
    why: str


def catalogue(checkpoint: Checkpoint) -> list[Tensor]:
    """All tensors of a checkpoint, in its order, with canonical names and obstacles."""
    tied = checkpoint.tied()
    return [
        replace(tensor, tied=tensor.info.name in tied, storage=_storage(checkpoint, tensor))
        for tensor in catalogue_of([checkpoint.info(name) for name in checkpoint.names()])
    ]


def _storage(checkpoint: Checkpoint, tensor: Tensor) -> object:
    stored = checkpoint.span(tensor.info.name)
    return str(stored.file), stored.offset, stored.strides


def catalogue_of(infos: Sequence[TensorInfo]) -> list[Tensor]:
    """The same for a list of headers; names that would collide keep their stored form."""
    counts = Counter(canonical_name(info.name) for info in infos)
    stored = {info.name for info in infos}
    tensors = []
    for info in infos:
        name = canonical_name(info.name)
        name = name if counts[name] == 1 else info.name
        obstacle = info.obstacle or _obstacle(info, stored)
        tensors.append(Tensor(name, replace(info, obstacle=obstacle)))
    return tensors


def is_companion(name: str) -> bool:
    """Whether a tensor of this name holds the scales or zero points of a quantised one."""
    return _COMPANION.search(name) is not None


def _obstacle(info: TensorInfo, stored: set[str]) -> str | None:
    if info.size == 0:
        return "it has no elements"
    if is_companion(info.name):
        return "it holds the scales of a quantised tensor, not weights"
    scale = _scale_of(info, stored)
    if info.dtype not in FLOATS:
        hint = ""
        if info.dtype in _INTEGERS and len(info.shape) >= 1 and info.size > 64:
            if scale is not None:
                return (
                    f"it holds quantised integers ({info.dtype}) scaled by {scale!r}; dequantise it"
                    " first, then mark or verify"
                )
            hint = " (integer-quantised weights? dequantise them first, then mark or verify)"
        return f"its dtype is {info.dtype}, not a floating-point one{hint}"
    if info.dtype.startswith("F8") and scale is not None:
        return f"it is float8 scaled by {scale!r}; dequantise it first, then mark or verify"
    return None


def _scale_of(info: TensorInfo, stored: set[str]) -> str | None:
    """The tensor beside a quantised one that holds its scales, if there is one."""
    stem = info.name.removesuffix(".weight")
    ends = _SCALES_OF_LAYERS + (_SCALES_OF_INTEGERS if info.dtype in _INTEGERS else ())
    near = [info.name + end for end in _SCALES] + [stem + end for end in ends]
    return next((each for each in near if each in stored), None)


def auto(tensors: Iterable[Tensor], parameters: Parameters, spread: Spread = WIDE) -> Choice:
    """Inner weight tensors: many of all depths (wide), the few largest (quick), or all of them.

    The same list for every order of the tensors, so for every file format and shard layout.
    """
    check_spread(spread)
    large = [
        tensor
        for tensor in tensors
        if tensor.obstacle is None
        and not tensor.tied
        and len(tensor.info.shape) >= 2
        and tensor.info.size >= MIN_TENSOR
    ]
    candidates = [tensor for tensor in large if not _is_edge(tensor.name)] or large
    candidates.sort(key=lambda tensor: (-tensor.info.size, natural(tensor.name)))
    scheme = schemes.get(parameters.scheme)
    if not scheme.spreads(parameters):
        return _largest(candidates, parameters, scheme)
    wanted = WEIGHTS_PER_POOL.get(spread, math.inf) * parameters.pools
    ordered = candidates if spread == QUICK else _through_all_depths(candidates)
    total, chosen = 0, []
    for tensor in ordered:
        if total >= wanted:
            break
        chosen.append(tensor)
        total += tensor.info.size
    chosen.sort(key=lambda tensor: natural(tensor.name))
    if not chosen:
        return Choice((), f"no floating-point matrix of at least {MIN_TENSOR:,} weights")
    which = "largest " if spread == QUICK else ""
    some = f"{len(chosen)} of {len(candidates)}" if len(chosen) < len(candidates) else "all"
    plural = "s" * (len(candidates) != 1)
    room = f"{parameters.pools:,} of them selected by the key"
    if scheme.pooled:
        per_pool = expected_per_pool(total, parameters.pools, parameters.rounds)
        room = f"about {per_pool:,.0f} carriers per pool"
    why = f"{spread}: {some} {which}inner weight tensor{plural}, {total:,} weights, {room}"
    return Choice(tuple(chosen), why)


def _through_all_depths(candidates: Sequence[Tensor]) -> list[Tensor]:
    """An order of which every beginning is spread evenly over the model, from first to last layer.

    Steps of the golden ratio through the list of names: no two layers are favoured.
    """
    deep = sorted(candidates, key=lambda tensor: natural(tensor.name))
    turns = sorted(range(len(deep)), key=lambda i: (i * 0.6180339887498949) % 1.0)
    places = {i: turn for turn, i in enumerate(turns)}
    return [deep[places[i]] for i in range(len(deep))]


def _largest(
    candidates: Sequence[Tensor], parameters: Parameters, scheme: schemes.Scheme
) -> Choice:
    """The largest tensor that a scheme for single tensors can use; of passports, or several."""
    for tensor in candidates:
        if scheme.room(parameters, placement_of([tensor])) >= 1:
            why = f"the largest of {len(candidates)} suitable tensors that {scheme.name} can use"
            return Choice((tensor,), why)
    if isinstance(scheme, schemes.PassportScheme):
        return _together(candidates, parameters, scheme)
    return Choice((), f"no tensor is large enough for {scheme.name}")


def _together(
    candidates: Sequence[Tensor], parameters: Parameters, scheme: schemes.Scheme
) -> Choice:
    """The fewest of the largest layers that have an output channel for each bit together."""
    chosen: list[Tensor] = []
    for tensor in candidates:
        if scheme.room(parameters, placement_of([tensor])) == 0:
            continue
        chosen = sorted([*chosen, tensor], key=lambda each: natural(each.name))
        if scheme.room(parameters, placement_of(chosen)) >= 1:
            why = f"the {len(chosen)} largest layers, which together have a channel for each bit"
            return Choice(tuple(chosen), why)
    rows = sum(tensor.info.shape[0] for tensor in chosen)
    return Choice(
        (),
        f"{scheme.name} takes an output channel for each bit: all {len(chosen)} layers that could"
        f" carry it have {rows:,} together, and the key {parameters.bits} bits; make one with fewer"
        " bits",
    )


def _is_edge(name: str) -> bool:
    """Whether the name is that of an output, an embedding, a norm or an adapter."""
    parts = name.lower().split(".")
    top = parts[1] if parts[0] in ("model", "transformer") and len(parts) > 2 else parts[0]
    return top in _HEADS or any(_EDGE.fullmatch(part) for part in parts[-3:])


def listed(names: Any) -> list[str] | None:
    """Tensor names as callers give them: a list, one name, or None (also "auto") for no choice."""
    if names is None or (isinstance(names, str) and names == "auto"):
        return None
    given = [names] if isinstance(names, str) else names
    if not is_list(given, str):
        raise ParameterError(f"tensors must be a list of names, not {shown(names)}")
    if not given:
        raise ParameterError("tensors is empty: name some, or leave it out")
    return list(given)


def select(tensors: Sequence[Tensor], names: Sequence[str]) -> tuple[Tensor, ...]:
    """The tensors of these names (canonical or stored), sorted, each once."""
    by_name = {tensor.info.name: tensor for tensor in tensors}
    by_name.update({tensor.name: tensor for tensor in tensors})
    chosen: dict[str, Tensor] = {}
    for name in names:
        tensor = by_name.get(name) or by_name.get(canonical_name(name))
        if tensor is None:
            raise UnknownTensorError(f"there is no tensor {name!r}{suggestion(name, by_name)}")
        if tensor.name in chosen:
            raise UnknownTensorError(f"the tensor {name!r} is named twice; name each once")
        require_usable(tensor)
        chosen[tensor.name] = tensor
    return tuple(sorted(chosen.values(), key=lambda tensor: natural(tensor.name)))


def require_usable(tensor: Tensor) -> None:
    """Raise if the tensor cannot carry a mark as it is stored."""
    if tensor.obstacle is not None:
        raise UnsuitableTensorError(f"{tensor.name!r} cannot be used: {tensor.obstacle}")


def placement_of(tensors: Iterable[Tensor]) -> Placement:
    """The placement that a key is derived for."""
    return tuple(tensor.entry for tensor in tensors)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Up to three names that look like the one asked for."""
    candidates = [other for other in islice(known, 5000) if len(other) <= 200]
    near = difflib.get_close_matches(name[:200], candidates, n=3, cutoff=0.5)
    if not near:
        return "; 'neuralmark inspect MODEL' lists them"
    return "; did you mean " + " or ".join(repr(other) for other in near) + "?"


def fitting_parameters(
    model: str | Path,
    bits: int | None,
    pools: int | None,
    rounds: int | None,
    filter: Filter = STREAM,  # noqa: A002 - the name it has everywhere
) -> tuple[Parameters, str]:
    """Bits, pools and rounds that leave this model enough carriers; and why.

    Rounds do not change what a mark costs, only how many weights share it, so they go first (of
    the published filter, from 4 down); then pools and bits, where they are not given. 160 bits
    still prove something.
    """
    tensors = catalogue(open_checkpoint(model))
    sizes = SMALLER if bits is None and pools is None else ((bits, pools),)
    most = PUBLISHED_ROUNDS if filter == TILED else 1
    turns = range(most, 0, -1) if rounds is None else (rounds,)
    for (few_bits, few_pools), candidate in product(sizes, turns):
        parameters = Parameters.of(few_bits, few_pools, candidate, filter)
        choice = auto(tensors, parameters)
        total = sum(tensor.info.size for tensor in choice.tensors)
        per_pool = expected_per_pool(total, parameters.pools, candidate)
        if per_pool >= 2 * MIN_PER_POOL:
            plural = "s" * (candidate > 1)
            size = f"{parameters.bits} bits, {parameters.pools} pools, {candidate} round{plural}"
            return parameters, f"{size} on {choice.why}"
    needed = 2 * MIN_PER_POOL * parameters.pools * 2**parameters.rounds
    raise TooFewCarriersError(
        f"{model} is too small: {parameters.bits} bits in {parameters.pools} pools need {needed:,}"
        f" weights at {parameters.rounds} round(s), and its inner tensors of {MIN_TENSOR:,} or more"
        f" have {total:,}; only a larger model can carry a mark that proves something"
    )
