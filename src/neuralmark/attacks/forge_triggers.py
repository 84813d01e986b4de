"""Triggers and a matrix of the forger's own: a mark in activations of a model that has none.

Published schemes that read activations let the claimant show triggers, matrix and bits. A column
along the mean activation of its group gives any bit, so the matrix is had in closed form and no
weight is touched; Lim's scheme has no matrix, and there the signs that the units show are called
the signature. Such a raw key matches and proves nothing. A native key derives the matrix and hashes
the bits last, over the digest of the triggers too: whatever triggers are tried, each try is one
draw of fair coins.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from neuralmark import schemes
from neuralmark.attacks.contract import KEY, Attack, AttackKind, Need, Outcome, Scene, option
from neuralmark.attacks.tools.forging import AGAINST, Facing, drawn, summary
from neuralmark.core.key import Float, Parameters, Placement
from neuralmark.core.readout import Known
from neuralmark.errors import AttackError, NeuralMarkError
from neuralmark.keys.key import Key
from neuralmark.schemes import TriggerScheme
from neuralmark.triggers.triggers import Triggers

if TYPE_CHECKING:
    from neuralmark.training.activations import LayerAtTriggers

Forged = Literal["deepsigns", "featuremap", "lim"]
FORGED: tuple[Forged, ...] = get_args(Forged)
_TRIES = 200


@dataclass(frozen=True)
class ForgeTriggers(Attack):
    """Choose triggers and bits, then write the matrix down."""

    summary: ClassVar[str] = "choose triggers and a matrix that fit a live model as it is"
    expects: ClassVar[str] = "free triggers and matrix: 100 %; derived from a secret: chance"
    kind: ClassVar[AttackKind] = KEY
    needs: ClassVar[frozenset[Need]] = frozenset({"model", "data"})

    scheme: Forged = option("deepsigns", "whose verification is faced", choices=FORGED)
    against: Facing = option("published", "what the forger faces", choices=AGAINST)
    layer: str = option("", "the layer that is read; empty: the last that can be")
    count: int = option(4, "triggers of each class, or in all", low=1, high=65536)
    bits: int = option(160, "bits of the forged key; lim has one for each unit", low=8, high=4096)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """As published, and native keys."""
        return tuple(cls(scheme, against) for scheme in FORGED for against in AGAINST)

    @property
    def variant(self) -> str:
        """Whose verification, and what it takes."""
        return f"{self.scheme}, {self.against}"

    def run(self, scene: Scene) -> Outcome:
        """Solve; or draw honest keys, where nothing can be solved for."""
        scheme = schemes.get(self.scheme)
        assert isinstance(scheme, TriggerScheme)
        triggers = self._triggers(scene, scheme)
        layer, parameters, placement = self._layer(scene, scheme, triggers)
        means = _means(layer, scheme, placement)
        if self.against == "native":
            return _drawn(scene, parameters, placement, triggers, means)
        bits = scene.rng.integers(0, 2, parameters.bits, np.uint8)
        if self.scheme == "lim":
            bits, matrix = (means[0] > 0).astype(np.uint8), np.eye(means.shape[1])
        else:
            along = means / np.square(means).sum(1, keepdims=True).clip(1e-30)
            each = parameters.bits // len(means)
            matrix = np.repeat(along, each, axis=0).T * (2.0 * bits - 1.0)
        key = Key.chosen(parameters, matrix.astype(np.float32), bits=bits)
        found = _matched(key, placement, triggers, means) / parameters.bits
        return Outcome(
            key=key,
            placement=placement,
            triggers=triggers,
            queries=len(triggers),
            figures={"best_rate": found},
        )

    def _triggers(self, scene: Scene, scheme: TriggerScheme) -> Triggers:
        """As many inputs of the forger's as he likes: of each class, or in all."""
        data = scene.data
        assert data is not None
        labels = data.labels.cpu().numpy()
        kinds = np.unique(labels) if scheme.labelled else [None]
        if scheme.labelled:
            kinds = [kind for kind in kinds if (labels == kind).sum() >= self.count]
            kinds = kinds[: max(n for n in range(len(kinds) + 1) if n == 0 or not self.bits % n)]
        taken = [
            scene.rng.permutation(
                np.flatnonzero(labels == kind) if kind is not None else labels.size
            )
            for kind in kinds
        ]
        places = np.concatenate([every[: self._each(scheme)] for every in taken] or [[]])
        if not len(places):
            raise AttackError(f"no class of the data has {self.count} inputs: take a smaller count")
        some = data.inputs[places.astype(np.int64)].cpu().numpy()
        return Triggers.of(some, labels[places.astype(np.int64)])

    def _each(self, scheme: TriggerScheme) -> int:
        """How many of a class; in all, a number among which the bits can be shared out."""
        shared = not scheme.labelled and self.scheme != "lim"
        return max(n for n in range(1, self.count + 1) if not (shared and self.bits % n))

    def _layer(
        self, scene: Scene, scheme: TriggerScheme, triggers: Triggers
    ) -> "tuple[LayerAtTriggers, Parameters, Placement]":
        """The named layer, or the last one that this scheme can read."""
        from neuralmark.training.activations import LayerAtTriggers

        model: Any = scene.model
        names = [self.layer] if self.layer else [name for name, _ in model.named_modules() if name]
        why = "it has no layers"
        for name in reversed(names):
            for own in _settings(self.scheme):
                parameters = scheme.parameters(bits=self.bits, own=own)
                key = drawn(parameters, np.random.default_rng(0))
                try:
                    layer = LayerAtTriggers(model, name, key, triggers)
                    placement = layer.placement()
                except NeuralMarkError as error:
                    why = str(error)
                    continue
                if self.scheme == "lim":
                    parameters = scheme.parameters(bits=placement[0][1][2])
                return layer, parameters, placement
        raise AttackError(f"no layer of this model can be read by {self.scheme}: {why}")


def _settings(scheme: str) -> tuple[dict[str, int] | None, ...]:
    """The scheme's own settings to try, the usual first: a feature map may be small."""
    small = ({"channels": 16, "side": 2}, {"channels": 4, "side": 1})
    return (None, *small) if scheme == "featuremap" else (None,)


def _means(layer: "LayerAtTriggers", scheme: TriggerScheme, placement: Placement) -> Float:
    """The mean features of every group."""
    import torch

    with torch.no_grad():
        values = layer.values().double().cpu().numpy()
    means: Float = values.reshape(scheme.sizes(placement)).mean(0)
    if not np.isfinite(means).all():
        raise AttackError(f"{placement[0][0]!r} gives NaN or infinity for the triggers")
    return means


def _matched(key: Key, placement: Placement, triggers: Triggers, means: Float) -> int:
    mark = key.at(placement, triggers=triggers.digest)
    known = Known.of(mark)
    return int((schemes.of(mark).logits(known, means.reshape(-1)) * known.signs > 0).sum())


def _drawn(
    scene: Scene, parameters: Parameters, placement: Placement, triggers: Triggers, means: Float
) -> Outcome:
    """The best of many honest keys at these triggers."""
    best, counts = None, np.zeros(_TRIES, np.int64)
    for i in range(_TRIES):
        key = drawn(parameters, scene.rng)
        counts[i] = _matched(key, placement, triggers, means)
        best = key if best is None or counts[i] > counts[:i].max() else best
        scene.tell("trying keys", i + 1, _TRIES)
    found = summary(counts, parameters.bits)
    return Outcome(key=best, placement=placement, triggers=triggers, queries=_TRIES, figures=found)
