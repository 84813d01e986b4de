"""A suspicion from outside: what a network says to triggers whose labels a key drew.

DeepIPR's third version. The labels follow from the key, the layers that take its passports and the
digest of the triggers; of the suspect nothing but its answers is looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from neuralmark import schemes
from neuralmark.core.key import Placement, Terms
from neuralmark.core.suspicion import hashed_labels, luck_log2
from neuralmark.errors import (
    LiveModelError,
    NonFiniteError,
    ParameterError,
    TriggerMismatchError,
    UnknownTensorError,
)
from neuralmark.keys.key import Key
from neuralmark.marking.attempts import check_claim
from neuralmark.marking.evidence import evidence_near
from neuralmark.marking.placement import Tensor, listed, placement_of, select
from neuralmark.records import Claim
from neuralmark.training.activations import inputs_for, refusing
from neuralmark.training.derived import at_rest
from neuralmark.training.live import LiveModel, require_values
from neuralmark.triggers.triggers import Triggers

MOST_CLASSES = 1 << 32
"""Up to here every label is as likely as the others (but for 2^-96)."""


@dataclass(frozen=True)
class Suspicion:
    """What a network says to triggers whose labels a key drew: reason to look inside.

    Attributes:
        matched: Triggers that get the key's label.
        triggers: How many there are.
        classes: How many labels each could get.
        luck_log2: log2 of the chance of as many by luck, exactly.

    Examples:
        >>> Suspicion(2, 2, 4, -4.0).rate
        1.0
    """

    matched: int
    triggers: int
    classes: int
    luck_log2: float

    @property
    def rate(self) -> float:
        """Share of the triggers that get the key's label."""
        return self.matched / self.triggers


def require_asking(key: Key) -> None:
    """Refuse a key that draws no labels: of another scheme or version, or raw."""
    scheme = schemes.get(key.parameters.scheme)
    if not isinstance(scheme, schemes.PassportScheme) or not scheme.asks(key.parameters):
        version = dict(key.parameters.own).get("version")
        raise ParameterError(
            "labels for triggers are drawn by keys of DeepIPR's third version, and this key is of"
            f" {scheme.name}{'' if version is None else f', version {version}'}: make one of the"
            " scheme deepipr with own={'version': 3}"
        )
    if key.secret is None:
        raise ParameterError("a raw key has no secret to draw labels with: make a key first")


def drawn_labels(
    key: Key, placement: Placement, triggers: Triggers, classes: int
) -> npt.NDArray[np.int64]:
    """The labels that a key gives triggers, hashed last: nobody can choose them."""
    require_asking(key)
    whole = isinstance(classes, int | np.integer) and not isinstance(classes, bool)
    if not whole or not 2 <= classes <= MOST_CLASSES:
        raise ParameterError(
            f"classes must be a whole number of two or more, how many the model tells apart, not"
            f" {classes!r}"
        )
    assert key.secret is not None
    terms = Terms(key.parameters, placement, key.content, triggers=triggers.digest)
    seed = terms.transcript(f"neuralmark/labels/1/{int(classes)}".encode(), key.secret)
    return hashed_labels(seed, len(triggers), int(classes))


def raised_suspicion(
    model: Any, key: Key, placement: Placement, triggers: Triggers | str | Path, classes: int
) -> Suspicion:
    """Ask a network for the labels of the triggers; see `Passports.suspicion`."""
    if not isinstance(model, torch.nn.Module):
        raise LiveModelError(
            "a suspicion is raised by what a network answers, and a checkpoint does not say how it"
            " runs: load it into its module in Python, and give that"
        )
    require_asking(key)
    known = Triggers.given(triggers, key)
    labels = drawn_labels(key, placement, known, classes)
    answers = _answers(model, known, int(classes))
    matched = int((answers.argmax(1).cpu().numpy() == labels).sum())
    chance = luck_log2(len(known), matched, int(classes))
    return Suspicion(matched, len(known), int(classes), chance)


def suspicion_of(
    model: Any,
    key: Key,
    triggers: Triggers | str | Path,
    classes: int,
    *,
    claim: Claim | str | Path | None = None,
    tensors: Sequence[str] | None = None,
) -> Suspicion:
    """The same without the owner's network: the layers are those of the claim, or are named.

    Args:
        model: The suspect, a live torch module.
        key: A key of DeepIPR's third version.
        triggers: The inputs, or the path of their file.
        classes: How many labels there are.
        claim: Of the mark, whose layers the labels are bound to; by default the claim of this key
            beside the file that the network was loaded from.
        tensors: Names of these layers in the suspect instead, where it is built as the marked one.

    Returns:
        How many it gives as the key drew them, and the exact chance of that.

    Raises:
        LiveModelError: The model is no live module.
        ParameterError: The key draws no labels, or nothing says which layers they are bound to.
        TriggerMismatchError: It does not take the triggers, or has other classes.
        NonFiniteError: It answers with NaN or infinity.

    Examples:
        >>> layers = [torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64)]
        >>> ending = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
        >>> model = torch.nn.Sequential(*layers, *ending)
        >>> asking = neuralmark.schemes.parameters("deepipr", bits=64, own={"version": 3})
        >>> triggers = neuralmark.Triggers.of(torch.ones(5, 3, 4, 4))
        >>> suspicion_of(model, neuralmark.Key.new(asking), triggers, 64, tensors=["0"]).triggers
        5
    """
    if tensors and claim is not None:
        raise ParameterError("a claim names the layers already: give claim=... or tensors=[...]")
    placement: Placement = ()
    if isinstance(model, torch.nn.Module):
        require_asking(key)
        placement = _bound_to(model, key, claim, tensors)
    return raised_suspicion(model, key, placement, triggers, classes)


def _bound_to(
    model: torch.nn.Module, key: Key, claim: Any, tensors: Sequence[str] | None
) -> Placement:
    if tensors:
        return layers_in(LiveModel(model).tensors(), tensors)
    found = Claim.given(claim) if claim is not None else evidence_near(model, key).claim
    if found is None:
        raise ParameterError(
            "the labels are bound to the layers that take the key's passports: give the claim"
            " (claim=...), or name them (tensors=[...])"
        )
    check_claim(found, key)
    return found.placement


def layers_in(known: Sequence[Tensor], layers: Sequence[str]) -> Placement:
    """The weights of layers in order, as `attach` lays them out."""
    stored = {tensor.info.name for tensor in known} | {tensor.name for tensor in known}
    wanted = [name if name in stored else f"{name}.weight" for name in listed(layers) or ()]
    for name in wanted:
        if not name.endswith("weight"):
            raise UnknownTensorError(f"{name!r} is no layer's weight: name layers")
    return placement_of(select(known, wanted))


def _answers(model: torch.nn.Module, triggers: Triggers, classes: int) -> torch.Tensor:
    """A score for each class, trigger by trigger; whatever the network's code raises is named."""
    require_values(model)
    given = inputs_for(model, triggers)
    with torch.no_grad(), refusing(given), at_rest(model):
        answers = model(given)
    tensor = isinstance(answers, torch.Tensor) and not answers.is_complex()
    if not tensor or answers.shape != (len(given), classes):
        what = tuple(answers.shape) if tensor else f"a {type(answers).__name__}"
        raise TriggerMismatchError(
            f"the model answers {len(given)} triggers with {what}, not with a score for each"
            f" of {classes} classes: give a classifier, and as many classes as it has"
        )
    scores: torch.Tensor = answers.float()
    if scores.isnan().any() or scores.isposinf().any():
        raise NonFiniteError("the model answers the triggers with NaN or infinity")
    return scores
