"""A live model at its triggers: what a layer gives out, to be read and to be trained.

The triggers go through the model in evaluation, so that looking changes nothing (no statistics, no
dropout), and what is trained is what is read. In the gradient, running statistics move along with
the weights (`training.statistics`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from neuralmark import schemes
from neuralmark.core.foreign import guarded
from neuralmark.core.key import Placement
from neuralmark.core.names import canonical_name
from neuralmark.errors import (
    NonFiniteError,
    ParameterError,
    TooFewCarriersError,
    TriggerMismatchError,
    UnknownTensorError,
    UnsuitableTensorError,
)
from neuralmark.keys.key import Key
from neuralmark.marking.attempts import check_claim
from neuralmark.marking.judging import Finding, Looked, judge
from neuralmark.marking.options import AttachOptions, VerifyOptions
from neuralmark.marking.placement import listed
from neuralmark.marking.reading import Attempt, Reading, require_carriers
from neuralmark.marking.verification import margins_of
from neuralmark.records import Claim, Coverage, TensorRead, Verdict
from neuralmark.registry import unknown
from neuralmark.training.derived import at_rest
from neuralmark.training.layout import Layout, is_dtensor
from neuralmark.training.live import LiveModel, LiveSuspect, require_values
from neuralmark.training.site import Site
from neuralmark.training.sources import Derived
from neuralmark.training.statistics import moving_along
from neuralmark.triggers.triggers import Triggers

Augment = Callable[[Any], Any]


def inputs_for(model: torch.nn.Module, triggers: Triggers) -> torch.Tensor:
    """The triggers where the model's parameters are, in their precision unless they are indices."""
    inputs = torch.from_numpy(np.array(triggers.inputs))
    first = next(model.parameters(), None)
    if first is None:
        return inputs
    return inputs.to(first) if inputs.is_floating_point() else inputs.to(first.device)


@contextmanager
def refusing(given: torch.Tensor) -> Iterator[None]:
    """Around a model that is run: whatever it says of these inputs becomes an error with a name."""
    shape = tuple(given.shape[1:])
    with guarded(
        "the model's code",
        lambda why: TriggerMismatchError(
            f"the model does not take these triggers, of shape {shape} each ({why}): give those"
            " that were made for it"
        ),
    ):
        yield


class LayerAtTriggers:
    """One layer of a live module, as the triggers make it answer."""

    def __init__(self, model: Any, layer: str, key: Key, triggers: Triggers) -> None:
        """Nothing is run yet; a layer that is not there is refused."""
        if not isinstance(model, torch.nn.Module):
            raise ParameterError(
                f"expected the live torch.nn.Module that is read, not {type(model).__name__}"
            )
        scheme = schemes.get(key.parameters.scheme)
        assert isinstance(scheme, schemes.TriggerScheme)
        self._scheme, self._parameters = scheme, key.parameters
        self._model = _alone(model)
        require_values(self._model)
        self.name, self._layer = _layer_of(self._model, layer)
        self._order = scheme.grouping(triggers.labels)
        self._triggers = triggers
        self._inputs: dict[torch.device, torch.Tensor] = {}

    def placement(self) -> Placement:
        """The layer, and how its outputs are arranged: found by looking at one trigger."""
        with torch.no_grad():
            width = self._features(self._given()[:1]).shape[1]
        return ((self.name, (*self._order.shape, width)),)

    def values(self, augment: Augment | None = None) -> torch.Tensor:
        """The features of all triggers, row after row of the arrangement, in one flat line."""
        given = self._given()
        if augment is not None:
            changed = augment(given)
            if not isinstance(changed, torch.Tensor) or changed.shape != given.shape:
                raise TriggerMismatchError(
                    f"augment must give a batch of the same shape, {tuple(given.shape)}"
                )
            given = changed
        features = self._features(given)
        order = torch.from_numpy(self._order.reshape(-1)).to(features.device)
        return features.index_select(0, order).reshape(-1)

    def parameters(self) -> list[torch.Tensor]:
        """The parameters that these features depend on."""
        every = [each for each in self._model.parameters() if each.requires_grad]
        if any(is_dtensor(each) for each in self._model.parameters()):
            raise UnsuitableTensorError(
                "the model is sharded, and activations are read where a process has all of it:"
                " gather it first"
            )
        with torch.enable_grad():
            total = self._features(self._given()[:1]).sum()
        if not every or not total.requires_grad:
            raise UnsuitableTensorError(
                f"no gradient reaches {self.name!r}: all before it is frozen; unfreeze a layer"
            )
        slopes = torch.autograd.grad(total, every, allow_unused=True)
        return [each for each, slope in zip(every, slopes, strict=True) if slope is not None]

    def _given(self) -> torch.Tensor:
        first = next(self._model.parameters(), None)
        device = torch.device("cpu") if first is None else first.device
        if device not in self._inputs:
            self._inputs[device] = inputs_for(self._model, self._triggers)
        return self._inputs[device]

    def _inner(self) -> str:
        """The sizes of a recurrent layer, as they would be written."""
        assert isinstance(self._layer, torch.nn.RNNBase)
        return f"{self._layer.input_size}, {self._layer.hidden_size}"

    def _features(self, given: torch.Tensor) -> torch.Tensor:
        found: list[Any] = []
        hook = self._layer.register_forward_hook(lambda _m, _i, output: found.append(output))
        try:
            with refusing(given), moving_along(self._model), at_rest(self._model):
                self._model(given)
        finally:
            hook.remove()
        output = found[0] if len(found) == 1 else None
        if isinstance(output, tuple) and isinstance(self._layer, torch.nn.RNNBase):
            raise UnsuitableTensorError(_RECURRENT.format(self.name, self._inner()))
        if not isinstance(output, torch.Tensor) or len(output) != len(given):
            raise UnsuitableTensorError(
                f"{self.name!r} does not give one tensor with a row for each input, once: name a"
                " layer that does"
            )
        features: torch.Tensor = self._scheme.features(self._parameters, output)
        return features


_RECURRENT = (
    "{0!r} is a plain recurrent layer, which gives a state beside its outputs: make it"
    " neuralmark.KeyedMemory.of(key, {1}), an LSTM whose outputs are one tensor (inputs, steps,"
    " units)"
)


def _alone(model: torch.nn.Module) -> torch.nn.Module:
    """The module below what spreads batches over devices and processes."""
    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    inner = model.module if isinstance(model, parallel) else model
    assert isinstance(inner, torch.nn.Module)
    return inner


def _layer_of(model: torch.nn.Module, layer: str) -> tuple[str, torch.nn.Module]:
    """The layer of this name, whatever wrappers added to it."""
    known = {canonical_name(name): module for name, module in model.named_modules() if name}
    wanted = canonical_name(layer)
    if wanted not in known:
        raise UnknownTensorError(f"the model has no layer {unknown(layer, list(known)[:40])}")
    return wanted, known[wanted]


def _one_layer(names: Sequence[str] | None) -> str:
    if names is None or len(names) != 1:
        raise ParameterError(
            "a mark in activations is read from one layer: name it (tensors=[...]), or give the"
            " claim (claim=...)"
        )
    return names[0]


def triggered_site(model: torch.nn.Module, key: Key, options: AttachOptions) -> Site:
    """A mark in what a layer gives out, as something that can be trained."""
    triggers = Triggers.given(options.triggers, key)
    layer = LayerAtTriggers(model, _one_layer(listed(options.tensors)), key, triggers)
    placement = layer.placement()
    _require_features(key, placement)
    mark = key.at(placement, triggers=triggers.digest)
    carriers = require_carriers(mark, placement)
    (_, shape), *_ = placement
    everything = np.arange(carriers.total, dtype=np.int64)
    source = Derived(
        layer.name,
        Layout(shape, (0,) * len(shape), shape),
        everything,
        lambda: layer.values(options.augment),
        layer.parameters(),
    )
    digest = triggers.digest
    return Site(LiveModel(model), key, placement, mark, carriers, [source], triggers=digest)


def _require_features(key: Key, placement: Placement) -> None:
    """Refuse more bits for each group than signs of its features can show.

    Of n projections of d numbers hardly any pattern of signs is reached where n > 2d (Cover 1965).
    """
    (name, (_, groups, width)), *_ = placement
    each = key.parameters.bits / groups
    if each > 2 * width:
        raise TooFewCarriersError(
            f"{name!r} gives {width} features, too few for {each:g} bits of a group of triggers:"
            " name a wider layer, use more groups, or make a key with fewer bits"
        )


def _refuse_for_weights(key: Key, options: VerifyOptions) -> None:
    """Refuse options that say how weights are found and put in order: nothing is done with them."""
    usual = VerifyOptions()
    given = {
        "anchor": options.anchor is not None,
        "effort": options.effort != usual.effort,
        "align_limit": options.align_limit != usual.align_limit,
        "base": options.base is not None,
        "example": options.example is not None,
    }
    told = " and ".join(f"VerifyOptions({name}=...)" for name, said in given.items() if said)
    if told:
        raise ParameterError(
            f"{key.parameters.scheme} is read from activations, and there are no weights to look"
            f" for: leave {told} out"
        )


def examine_activations(
    model: Any,
    key: Key,
    triggers: Triggers,
    *,
    claim: Claim | None = None,
    layers: Sequence[str] | None = None,
    options: VerifyOptions | None = None,
) -> Verdict:
    """Look for the key's mark in what a layer of a live model gives out for the triggers.

    One way of looking: the layer is named, and the triggers are committed to. It counts as often as
    there are looks that this is one of (`VerifyOptions.among`).
    """
    options = options or VerifyOptions()
    _refuse_for_weights(key, options)
    if claim is not None:
        check_claim(claim, key)
        if claim.triggers != triggers.digest.hex():
            raise TriggerMismatchError(
                "these triggers are not those of the claim: their digests differ; give the file"
                " that the mark was trained with"
            )
    named = layers if claim is None else [name for name, _ in claim.placement]
    layer = LayerAtTriggers(model, _one_layer(named), key, triggers)
    placement = layer.placement()
    if claim is not None and placement != claim.placement:
        raise TriggerMismatchError(
            f"{layer.name!r} is read as {placement[0][1]} (triggers of a group, groups, features),"
            f" and the mark was made for {claim.placement[0][1]}: give the model it was trained in"
        )
    mark = key.at(placement, triggers=triggers.digest)
    carriers = require_carriers(mark, placement)
    with torch.no_grad():
        values = layer.values().double().cpu().numpy()
    if not np.isfinite(values).all():
        raise NonFiniteError(f"{layer.name!r} gives NaN or infinity for the triggers")
    pooled = values.reshape(-1, carriers.pools).mean(0)
    suspect = LiveSuspect(model)
    reading = Reading(carriers, pooled, 0.0, float(np.linalg.norm(values)), suspect.digests())
    finding = Finding(Attempt(placement, (None,), "names"), mark, reading, margins_of(mark, pooled))
    weights = sum(tensor.info.size for tensor in suspect.tensors())
    looked = Looked(options.among, Coverage(weights, weights, weights))
    verdict = judge(finding, suspect, key, looked)
    (name, shape), *_ = placement
    return replace(
        verdict,
        tensors=(TensorRead(name, name, "F32", shape),),
        trigger_digest=triggers.digest.hex(),
    )
