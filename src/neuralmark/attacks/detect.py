"""Looking for traces of a mark without the key, and measuring how well that works.

Who can tell marked weights from clean ones knows what to attack. The statistics: how the weights
are distributed, their singular values, and, where the same model before and after is at hand,
whether weights moved in unison. `study` says how well each tells marked tensors from clean ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, get_args

import numpy as np

from neuralmark.attacks.contract import (
    TEST,
    Array,
    Attack,
    AttackKind,
    Outcome,
    Scene,
    Weights,
    option,
)
from neuralmark.attacks.engine.subject import require_finite
from neuralmark.attacks.tools.statistics import (
    STATISTICS,
    Statistic,
    auc,
    edge,
    excess_kurtosis,
    ks_between,
    ks_gaussian,
    marchenko_pastur,
    spectral_between,
    spectrum,
    update,
)
from neuralmark.core.names import canonical_name
from neuralmark.errors import AttackError, DataMismatchError, MissingDataError, ParameterError

__all__ = [
    "STATISTICS",
    "Detect",
    "Maker",
    "Statistic",
    "auc",
    "edge",
    "excess_kurtosis",
    "ks_between",
    "ks_gaussian",
    "marchenko_pastur",
    "spectral_between",
    "spectrum",
    "study",
    "update",
]

Yardstick = Literal["clean", "before"]
CLEAN: Final = "clean"
BEFORE: Final = "before"
_SMALLEST = 64

Maker = Callable[[Array, np.random.Generator], Array]
"""Puts a mark into a tensor: gives the marked one."""


@dataclass(frozen=True)
class Detect(Attack):
    """Score the tensors of a checkpoint by everything that might betray a mark."""

    summary: ClassVar[str] = "look for traces of a mark in the weights, without the key"
    expects: ClassVar[str] = (
        "weak marks look nearly like clean weights; whoever has the model from before sees the mark"
    )
    kind: ClassVar[AttackKind] = TEST

    given: Yardstick = option(
        CLEAN,
        "what the other checkpoints are: clean ones, or (the first) the same model before",
        choices=get_args(Yardstick),
    )

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """One look."""
        return (cls(),)

    def run(self, scene: Scene) -> Outcome:
        """Figures by statistic: the mean over the tensors, and of the clean ones beside them."""
        if self.given == BEFORE and not scene.others:
            raise MissingDataError(
                "to look at the update, give the checkpoint before as the first of others"
            )
        names = _chosen(scene)
        require_finite(scene.weights, names, "the model")
        clean = scene.others[1:] if self.given == BEFORE else scene.others
        figures = _scores(scene.weights, names, clean)
        if self.given == BEFORE:
            figures |= _moves(scene.others[0], scene.weights, names)
        return Outcome(note=f"{len(names)} tensors, {len(clean)} clean references", figures=figures)


def study(
    makers: Mapping[str, Maker],
    tensors: Sequence[Array],
    rng: np.random.Generator,
    *,
    references: Sequence[Array] = (),
    statistics: Mapping[str, Statistic] = STATISTICS,
) -> dict[str, dict[str, float]]:
    """How well each statistic tells marked tensors from clean ones: an AUC by maker and statistic.

    Each maker marks every tensor (which it gets read-only); the clean ones are the tensors
    themselves. `references` are clean tensors that the attacker has; they should not be among
    those marked. 0.5 says nothing; below it, the statistic falls with the mark, and tells as much
    as above. `unison` and `sparse` are for somebody with the weights before and after: steps that
    coincide, and weights that did not move, against Gaussian steps of the same size.
    """
    if not tensors:
        raise ParameterError("a study needs tensors")
    tensors = [_frozen(tensor) for tensor in tensors]
    clean = {n: [score(t, references) for t in tensors] for n, score in statistics.items()}
    found: dict[str, dict[str, float]] = {}
    for maker, make in makers.items():
        marked = [make(tensor, rng) for tensor in tensors]
        found[maker] = {
            name: auc([score(tensor, references) for tensor in marked], clean[name])
            for name, score in statistics.items()
        }
        found[maker] |= _update_aucs(tensors, marked, rng)
    return found


def _frozen(tensor: Array) -> Array:
    """Read-only, so that no maker marks the clean tensors too."""
    view = tensor.view()
    view.flags.writeable = False
    return view


def _update_aucs(
    tensors: Sequence[Array], marked: Sequence[Array], rng: np.random.Generator
) -> dict[str, float]:
    """Updates against plain training steps of the same size on the same weights."""
    ours, theirs = [], []
    for tensor, made in zip(tensors, marked, strict=True):
        step = float(np.std(made - tensor))
        plain = tensor + np.float32(step) * rng.standard_normal(tensor.shape, dtype=np.float32)
        ours.append(update(tensor, made))
        theirs.append(update(tensor, plain))
    return {
        "unison": auc([each["unison"] for each in ours], [each["unison"] for each in theirs]),
        "sparse": auc([-each["changed"] for each in ours], [-each["changed"] for each in theirs]),
    }


def _chosen(scene: Scene) -> list[str]:
    """The tensors believed to be marked, else all that are large enough to say something."""
    marked = {name for name, _ in scene.placement}
    known = [name for name in scene.target if canonical_name(name) in marked]
    found = known or [
        name
        for name in scene.target
        if scene.weights[name].ndim >= 2 and scene.weights[name].size >= _SMALLEST
    ]
    if not found:
        raise AttackError("there is no matrix to look at among the tensors to attack")
    return found


def _scores(weights: Weights, names: Sequence[str], clean: Sequence[Weights]) -> dict[str, float]:
    """Mean scores of the checkpoint; `clean_…` of the references, each against the others."""
    figures = {}
    for statistic, score in STATISTICS.items():
        ours, theirs = [], []
        for name in names:
            others = [_beside(table, name, weights[name]) for table in clean]
            ours.append(score(weights[name], others))
            theirs += [score(other, others[:i] + others[i + 1 :]) for i, other in enumerate(others)]
        figures[statistic] = float(np.mean(ours))
        if len(clean) > 1 or (clean and statistic not in ("ks", "spectrum")):
            figures[f"clean_{statistic}"] = float(np.mean(theirs))
    return figures


def _moves(before: Weights, after: Weights, names: Sequence[str]) -> dict[str, float]:
    """Mean over the tensors of what the update looks like."""
    found = [update(_beside(before, name, after[name]), after[name]) for name in names]
    return {f"update_{key}": float(np.mean([each[key] for each in found])) for key in found[0]}


def _beside(table: Weights, name: str, like: Array) -> Array:
    """The tensor of this name in another checkpoint."""
    plain = canonical_name(name)
    other = table.get(name)
    if other is None:
        other = next((v for n, v in table.items() if canonical_name(n) == plain), None)
    if other is None or other.shape != like.shape:
        raise DataMismatchError(
            f"the other checkpoint has no {name!r} of shape {like.shape}: give one of the same"
            " architecture"
        )
    require_finite({name: other}, [name], "the other checkpoint")
    return other
