"""Conversions that keep a layer's weight in parts: masks, norms, adapters, factors, folds."""

import re
from collections.abc import Callable, Iterator

import numpy as np

from neuralmark.attacks.contract import Array
from neuralmark.attacks.tools.changes import rotation
from neuralmark.attacks.tools.converting import Conversion, is_embedding
from neuralmark.errors import AttackError, UnknownFamilyError
from neuralmark.structures.structure import Norm, Producer

Parts = Callable[[str, Array], Iterator[tuple[str, Array]]]
"""What a tensor becomes: names and values."""

PRUNED = 0.3
"""Share of the weights that a mask sets to zero."""
ADAPTED = 0.1
"""Size of an adapter's update, as a share of the weights'."""

_READERS = (
    (r"input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), 1),
    (r"post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj"), 1),
    (r"ln_1", ("attn.c_attn",), 0),
    (r"ln_2", ("mlp.c_fc",), 0),
    (
        r"layernorm_before",
        ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
        1,
    ),
    (r"layernorm_after", ("intermediate.dense",), 1),
)
"""Norms, the layers that alone read them, and the axis along which those have their inputs."""


def mask(work: Conversion) -> dict[str, Array]:
    """Pruned by torch: weights and masks apart, nothing removed yet."""

    def parts(name: str, value: Array) -> Iterator[tuple[str, Array]]:
        kept = np.abs(value) >= np.quantile(np.abs(value), PRUNED)
        yield f"{name}_orig", value
        yield f"{name}_mask", kept.astype(np.float32)

    return _apart(work, parts)


def weight_norm(work: Conversion) -> dict[str, Array]:
    """Torch's weight_norm: directions (of any length) and lengths of the rows apart."""

    def parts(name: str, value: Array) -> Iterator[tuple[str, Array]]:
        rows = (len(value), *(1 for _ in value.shape[1:]))
        lengths = np.sqrt(np.square(value, dtype=np.float64).reshape(len(value), -1).sum(axis=1))
        factors = np.exp(work.rng.uniform(-1, 1, rows))
        yield f"{name}_g", lengths.reshape(rows).astype(np.float32)
        yield f"{name}_v", (value * factors).astype(np.float32)

    return _apart(work, parts)


def adapter(work: Conversion) -> dict[str, Array]:
    """LoRA as peft keeps it: every matrix beside an adapter that is not merged."""
    made: dict[str, Array] = {}
    for name, value in work.table.items():
        stem = f"base_model.model.{name}"
        if not _adaptable(work, name, value):
            made[stem] = value
            continue
        stem = stem.removesuffix(".weight")
        up, down = _low_rank(work, value)
        made[f"{stem}.base_layer.weight"] = value
        made[f"{stem}.lora_A.default.weight"] = down
        made[f"{stem}.lora_B.default.weight"] = up
    if not any("lora_A" in name for name in made):
        raise AttackError("the model has no matrix that an adapter could stand beside")
    return made


def merged_adapter(work: Conversion) -> dict[str, Array]:
    """The same with the adapters merged."""

    def change(name: str, value: Array) -> Array | None:
        if not _adaptable(work, name, value):
            return None
        up, down = _low_rank(work, value)
        return value + up @ down

    return work.each(change)


def factor(work: Conversion) -> dict[str, Array]:
    """Every target as two layers one after the other, W = A·B exactly."""

    def parts(name: str, value: Array) -> Iterator[tuple[str, Array]]:
        stem = name.removesuffix(".weight")
        one, two = factored(value, work.rng)
        yield f"{stem}.0.weight", two
        yield f"{stem}.1.weight", one

    made = _apart(work, parts)
    for name in list(made):
        stem = name.removesuffix(".bias")
        if stem != name and f"{stem}.1.weight" in made:
            made[f"{stem}.1.bias"] = made.pop(name)
    return made


def factored(value: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Two kernels whose product is this one: outputs x inner, and inner x inputs."""
    flat = value.reshape(len(value), -1).astype(np.float64)
    left, sizes, right = np.linalg.svd(flat, full_matrices=False)
    turn = rotation(rng, len(sizes))
    one = (left * np.sqrt(sizes)) @ turn
    two = turn.T @ (np.sqrt(sizes)[:, None] * right)
    ones = (1,) * (value.ndim - 2)
    return (
        one.reshape(*one.shape, *ones).astype(np.float32),
        two.reshape(-1, *value.shape[1:]).astype(np.float32),
    )


def fold(work: Conversion) -> dict[str, Array]:
    """Batch norms into the layers before them, gains of layer norms into those that read them."""
    made = dict(work.table)
    for producer in _normed(work):
        _fold_batch_norm(made, producer)
    for name in work.table:
        for norm, readers, axis in _READERS:
            match = re.fullmatch(rf"(.*\.)?{norm}\.weight", name)
            if match:
                _fold_gains(made, name, [f"{match[1] or ''}{each}" for each in readers], axis)
    if all(made.get(name) is value for name, value in work.table.items()):
        raise AttackError("the model has no norm that could be folded into the layers beside it")
    return made


def _normed(work: Conversion) -> Iterator[Producer]:
    from neuralmark.structures import structure_of

    try:
        groups = structure_of(work.table).groups
    except UnknownFamilyError:
        return
    for group in groups:
        yield from (each for each in group.producers if each.norm and each.norm.direct)


def _fold_batch_norm(made: dict[str, Array], producer: Producer) -> None:
    norm: Norm | None = producer.norm
    if norm is None or norm.gamma not in made:
        return
    weight = next(side.tensor for side in producer.sides if made[side.tensor].ndim > 1)
    stem = weight.removesuffix(".weight")
    gamma, beta, mean, var = (
        made.pop(each).astype(np.float64) for each in (norm.gamma, norm.beta, norm.mean, norm.var)
    )
    made.pop(f"{norm.gamma.removesuffix('.weight')}.num_batches_tracked", None)
    factors = gamma / np.sqrt(var + norm.eps)
    bias = made.get(f"{stem}.bias", np.zeros(len(factors), np.float32))
    rows = factors.reshape(-1, *(1 for _ in made[weight].shape[1:]))
    made[weight] = (made[weight] * rows).astype(np.float32)
    made[f"{stem}.bias"] = (beta + (bias - mean) * factors).astype(np.float32)


def _fold_gains(made: dict[str, Array], norm: str, readers: list[str], axis: int) -> None:
    names = [f"{reader}.weight" for reader in readers]
    gain = made[norm]
    if not all(name in made and made[name].shape[axis] == len(gain) for name in names):
        return
    shift = made.get(norm.removesuffix("weight") + "bias")
    for reader, name in zip(readers, names, strict=True):
        weight = made[name]
        if shift is not None:
            added = shift @ weight if axis == 0 else weight @ shift
            bias = made.get(f"{reader}.bias", np.zeros(len(added), np.float32))
            made[f"{reader}.bias"] = (bias + added).astype(np.float32)
        made[name] = weight * (gain[:, None] if axis == 0 else gain)
    made[norm] = np.ones_like(gain)
    if shift is not None:
        made[norm.removesuffix("weight") + "bias"] = np.zeros_like(shift)


def _adaptable(work: Conversion, name: str, value: Array) -> bool:
    fits = value.ndim == 2 and min(value.shape) >= 2 * work.rank
    return name in work.target and fits and name.endswith(".weight") and not is_embedding(name)


def _low_rank(work: Conversion, value: Array) -> tuple[Array, Array]:
    """Two factors of an update, of a size that fine-tuning has."""
    up = work.rng.standard_normal((len(value), work.rank))
    down = work.rng.standard_normal((work.rank, value.shape[1]))
    size = ADAPTED * np.linalg.norm(value) / np.linalg.norm(up @ down)
    return (up * size).astype(np.float32), down.astype(np.float32)


def _apart(work: Conversion, parts: Parts) -> dict[str, Array]:
    made: dict[str, Array] = {}
    for name, value in work.table.items():
        if name in work.target and value.ndim > 1 and not is_embedding(name):
            made |= dict(parts(name, value))
        else:
            made[name] = value
    if made.keys() == work.table.keys():
        raise AttackError("none of the tensors to attack is a layer's weight: name others")
    return made
