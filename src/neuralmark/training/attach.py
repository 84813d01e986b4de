"""`attach`: one line that puts a mark into a training loop."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from neuralmark import schemes
from neuralmark.errors import (
    InfeasibleError,
    NeuralMarkWarning,
    ParameterError,
    TooFewCarriersError,
    TriggerMismatchError,
    UnsuitableTensorError,
    UsageError,
)
from neuralmark.keys.key import Key
from neuralmark.marking.options import QUICK, USUAL, AttachOptions, Mode, Spread, Target, options_of
from neuralmark.marking.placement import Tensor, auto, listed, placement_of, select
from neuralmark.marking.reading import require_carriers
from neuralmark.training.activations import triggered_site
from neuralmark.training.derived import LORA_DELTA
from neuralmark.training.handle import LiveMark
from neuralmark.training.layout import require_agreement
from neuralmark.training.live import LiveModel, sources_of
from neuralmark.training.masters import adopt
from neuralmark.training.site import Settings, Site
from neuralmark.training.sources import SPARSE, Direct, WeightSource
from neuralmark.training.watch import register, warn_of_averages, watch_others


def attach(
    model: torch.nn.Module, optimizer: Any, key: Key, options: AttachOptions | None = None
) -> LiveMark:
    """Train the key's mark into a model: hooks on the optimizer's step do the rest.

    Args:
        model: The module that is trained, sharded or not.
        optimizer: The optimizer that steps it, or a wrapper of one.
        key: The key to mark it with.
        options: Which tensors, in which mode, how strong; see `AttachOptions`.

    Returns:
        The handle of the mark: it tells how the mark stands, and can stop it.

    Raises:
        ParameterError: A value is out of range, the key is raw, or the optimizer is not torch's.
        UsageError: The tensors cannot carry the mark in this mode.

    Examples:
        >>> mark = neuralmark.attach(network, optimizer, key)
        >>> loss = network(torch.ones(1, 128)).sum()
        >>> loss.backward()
        >>> optimizer.step()
        >>> mark.rate, mark.steps
        (1.0, 1)
    """
    options = options_of(AttachOptions, options)
    if isinstance(schemes.get(key.parameters.scheme), schemes.TriggerScheme):
        return attach_triggered(model, unwrap(optimizer), key, options)
    _refuse_triggers(options)
    site = locate(model, key, options.tensors, options.target)
    inner = unwrap(optimizer)
    scheme = schemes.of(site.mark)
    computed = any(name in site.model.derived for name in stored_names(site))
    settings = _settings(options, "gradient" if computed or not scheme.writes else "projection")
    mode = settings.mode
    require_agreement(site.model.peers(), {"settings": settings})
    if not scheme.marks:
        return LiveMark(site, settings)
    if mode != "loss":
        adopt(site.sources, inner, mode)
    live = LiveMark(site, settings)
    pools, bits = site.carriers.pools, len(site.mark.bits)
    if scheme.name != "neuralmark" and scheme.writes and bits >= 2 * (pools - 1):
        raise InfeasibleError(
            f"{site.placement[0][0]!r} gives {scheme.name} {pools} pools, too few for {bits} bits:"
            " name a larger tensor, or make a key with fewer bits"
        )
    if mode == "projection" and not scheme.writes:
        raise ParameterError(
            f'{scheme.name} cannot be projected, its read-out is not linear: use mode="gradient"'
        )
    if mode != "projection":
        _require_trainable(site, inner)
        _require_descent(site, inner, mode)
    elif computed:
        raise UnsuitableTensorError(
            "projection needs weights that can be written; LoRA products and parametrised weights"
            ' are computed: use mode="gradient"'
        )
    undo = register(live, site, inner)
    if mode != "loss":
        undo.append(watch_others(live, site, inner))
        warn_of_averages(site, stored_names(site))
    live.start(inner, undo)
    return live


def _refuse_triggers(options: AttachOptions) -> None:
    """Triggers, and what is done to them, are of no use to a mark in weights."""
    given = {"triggers=...": options.triggers, "augment=...": options.augment}
    names = " and ".join(name for name, value in given.items() if value is not None)
    if names:
        raise TriggerMismatchError(
            f"this key's scheme reads weights and has no triggers: leave {names} out"
        )


def attach_triggered(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, key: Key, options: AttachOptions
) -> LiveMark:
    """Train a mark into what a layer gives out for the triggers.

    The triggers go through the model by themselves before every step, in evaluation as they will be
    when the mark is read; the gradient of the embedding loss is added to that of the task.
    """
    if options.mode == "projection":
        raise ParameterError(
            f"{key.parameters.scheme} cannot be projected, activations are computed: use"
            ' mode="gradient"'
        )
    if options.target != "weights":
        raise ParameterError(
            f"{key.parameters.scheme} is read from activations, and target={options.target!r} is"
            " for marks in weights: leave target=... out"
        )
    if key.kind == "raw":
        raise ParameterError("a raw key can only be checked, never written: make a key first")
    site = triggered_site(model, key, options)
    settings = _settings(options, "gradient")
    live = LiveMark(site, settings)
    _require_trainable(site, optimizer)
    _require_descent(site, optimizer, settings.mode)
    undo = register(live, site, optimizer)
    if settings.mode != "loss":
        undo.append(watch_others(live, site, optimizer))
    live.start(optimizer, undo)
    return live


def _settings(options: AttachOptions, usual: Mode) -> Settings:
    """What was asked for, and the usual where nothing was."""
    mode = options.mode or usual
    if options.every > 1 and mode != "projection":
        raise ParameterError('every is for mode="projection" only')
    strength = USUAL[mode] if options.strength is None else float(options.strength)
    return Settings(mode, strength, options.every)


def locate(
    model: torch.nn.Module,
    key: Key,
    tensors: Sequence[str] | str = "auto",
    target: Target = "weights",
    spread: Spread = QUICK,
) -> Site:
    """The key's mark in a live model: tensors, carriers and sources.

    A training takes the few largest tensors: what a step costs counts.
    """
    if key.kind == "raw":
        raise ParameterError("a raw key can only be checked, never written: make a key first")
    names = listed(tensors)
    if isinstance(model, Mapping):
        raise ParameterError("a state dict cannot be marked live: give the module that it is of")
    live = LiveModel(model)
    require_agreement(live.peers(), {"key": key.fingerprint, "tensors": names})
    known = live.tensors()
    if target == "lora-delta":
        known = [tensor for tensor in known if tensor.name.endswith(LORA_DELTA)]
        if not known:
            raise UsageError(
                "this model has no LoRA layers; wrap it with peft.get_peft_model first"
            )
    if names is None:  # a mask or a statistic is not for us to change unasked
        trained = live.trained()
        known = [tensor for tensor in known if tensor.info.name in trained]
    chosen = _choose(known, key, names, target, spread)
    placement = placement_of(chosen)
    mark = key.at(placement)
    carriers = require_carriers(mark, placement)
    sources = sources_of(chosen, live, carriers)
    _warn_of_adapters(model, sources)
    return Site(live, key, placement, mark, carriers, sources, _owners(live, chosen))


def _warn_of_adapters(model: torch.nn.Module, sources: Sequence[WeightSource]) -> None:
    """Adapters are saved without the frozen weights below them, and so without this mark."""
    if not any(hasattr(module, "peft_config") for module in model.modules()):
        return
    frozen = [
        source.name
        for source in sources
        if isinstance(source, Direct) and not source.tensor.requires_grad
    ]
    if frozen:
        warnings.warn(
            f"{frozen[0]!r} is a frozen weight below an adapter: saving the adapter alone loses the"
            " mark; save the base model too, or merge first (merge_and_unload)",
            NeuralMarkWarning,
            stacklevel=4,
        )


def _owners(
    live: LiveModel, chosen: Sequence[Tensor]
) -> list[tuple[torch.nn.Module, str, torch.Tensor]]:
    owners = []
    for tensor in chosen:
        path, _, name = tensor.info.name.rpartition(".")
        if tensor.info.name in live.derived:
            continue
        owner = live.module.get_submodule(path)
        if name in owner._parameters:
            owners.append((owner, name, live.state[tensor.info.name]))
    return owners


def unwrap(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer that really steps, below Accelerate's and other wrappers."""
    if any(kind.__module__.startswith("deepspeed.") for kind in type(optimizer).__mro__):
        raise UsageError(
            "DeepSpeed steps flat float32 copies of the weights, which cannot be marked: train with"
            ' mode="loss" and the optimizer you gave DeepSpeed, or mark the finished file with'
            " 'neuralmark embed' (docs/distributed.md)"
        )
    inner, seen = optimizer, 0
    while "_optimizer_step_pre_hooks" not in getattr(inner, "__dict__", {}):
        inner, seen = getattr(inner, "optimizer", None), seen + 1
        if inner is None or seen > 8:
            raise ParameterError(
                f"{type(optimizer).__name__} is not an optimizer of torch, nor a wrapper of one"
            )
    if not isinstance(inner, torch.optim.Optimizer):
        raise ParameterError(f"{type(optimizer).__name__} is not an optimizer of torch")
    return inner


def _choose(
    known: Sequence[Tensor], key: Key, names: list[str] | None, target: Target, spread: Spread
) -> tuple[Tensor, ...]:
    if names is None:
        if target == "lora-delta":
            return (known[-1],)  # the last block's, as in the paper
        plain = [t for t in known if not t.name.endswith(LORA_DELTA)]
        chosen = auto(plain, key.parameters, spread).tensors
        if not chosen:
            why = [f" ({t.name!r}: {t.obstacle})" for t in plain if t.obstacle][:1]
            raise TooFewCarriersError(
                "no tensor of this model is suitable for a mark" + "".join(why)
            )
        return chosen
    if target == "lora-delta":
        names = [n if n.endswith(LORA_DELTA) else f"{n}.{LORA_DELTA}" for n in names]
    return select(known, names)


def _require_trainable(site: Site, optimizer: torch.optim.Optimizer) -> None:
    known = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
    for source in site.sources:
        trained = [t for t in source.parameters() if t.requires_grad]
        if not trained:
            raise UnsuitableTensorError(
                f'{source.name!r} is frozen: no gradient reaches it; use mode="projection", or'
                " unfreeze it"
            )
        if not any(id(tensor) in known for tensor in trained):
            raise UnsuitableTensorError(
                f"{source.name!r} is not among the optimizer's parameters: pass it to the"
                ' optimizer, or use mode="projection"'
            )


def _require_descent(site: Site, optimizer: torch.optim.Optimizer, mode: Mode) -> None:
    """Refuse what would train the mark away, or cannot take its gradient."""
    marked = {id(tensor) for source in site.sources for tensor in source.parameters()}
    for group in optimizer.param_groups:
        if group.get("maximize") and any(id(tensor) in marked for tensor in group["params"]):
            raise ParameterError(
                f'the optimizer has maximize=True, and mode="{mode}" would train the mark away: use'
                ' mode="projection", or minimise the negative loss'
            )
    for owner, _, tensor in site.owners:
        if getattr(owner, "sparse", False) is True and id(tensor) in marked and mode == "gradient":
            raise UnsuitableTensorError(f"{type(owner).__name__} has {SPARSE}")


def stored_names(site: Site) -> list[str]:
    """Names of the marked tensors as the module has them."""
    names = {tensor.name: tensor.info.name for tensor in site.model.tensors()}
    return [names[name] for name, _ in site.placement]
