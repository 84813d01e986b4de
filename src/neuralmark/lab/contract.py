"""The contract of an experiment: which runs it needs, and what their rows become.

An experiment is one file in this folder with one class that derives from `Experiment`. `runs` is a
pure function of the preset; `tables` and `figures` are pure functions of the rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from neuralmark.attacks.engine.training import TuningScope
from neuralmark.lab.comparing import Cell, beside, percent
from neuralmark.lab.execution.store import Row
from neuralmark.lab.plan.columns import PUBLISHED, STREAM
from neuralmark.lab.plan.preset import Preset, TrainingScale
from neuralmark.lab.plan.spec import (
    Assault,
    ImprintSpec,
    MarkingSpec,
    Spec,
    Training,
    Value,
    Victim,
    identity,
    settings,
)

MARKS = PUBLISHED
SCHEMES = ("clean", *MARKS)
"""Those that the paper compares; runs may name any other (`MarkingSpec`)."""

STDM_SHARE = 0.01
"""ST-DM's published weight, where that of the others is 1."""


@dataclass(frozen=True)
class Table:
    """A table in the paper's form."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell | str, ...], ...]
    note: str = ""
    specs: tuple[Spec, ...] = ()
    """The runs it shows; needed only where an experiment has several tables."""
    left_out: tuple[str, ...] = ()
    """Cells that the paper has a rate in and this table has not: there was no mark to attack."""


@dataclass(frozen=True)
class Line:
    """A labelled line of a figure."""

    label: str
    points: tuple[tuple[float, float], ...]
    band: tuple[tuple[float, float], ...] = ()
    """Low and high for each point: the 95 % interval of the seeds."""


@dataclass(frozen=True)
class Figure:
    """A figure: lines over one axis."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    note: str = ""
    log: bool = False
    """Whether the x axis is logarithmic."""
    steps: bool = False
    """Whether the lines are histograms: points are the middles of bins."""
    boundary: float | None = None
    """The detection rate, in percent, that proves a mark: drawn as a rule."""
    traded: bool = False
    """Whether x is the detection rate, so that the lines show what removing it costs."""


class Results:
    """Rows by the run that made them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """All rows of a results folder."""
        self._rows = {row["run"]: row for row in rows}

    def of(self, specs: Sequence[Spec]) -> list[Row]:
        """The rows of these runs; those that are not finished are left out."""
        found = (self._rows.get(identity(spec)) for spec in specs)
        return [row for row in found if row is not None]

    def one(self, spec: Spec) -> Row | None:
        """The row of a run, or None."""
        return self._rows.get(identity(spec))

    def values(self, specs: Sequence[Spec], name: str) -> list[float]:
        """One figure of several runs (seeds): those that are there."""
        return [float(row[name]) for row in self.of(specs) if row.get(name) is not None]


class Experiment(ABC):
    """Base of all experiments."""

    answers: ClassVar[str]
    """The question it answers, in one line."""
    paper: ClassVar[str] = ""
    """Where the paper has it."""
    place: ClassVar[int] = 99
    """Its place in lists and reports: the paper's order, then our own by name."""

    @property
    def name(self) -> str:
        """The name under which it is found: that of its file."""
        return type(self).__module__.rpartition(".")[2].replace("_", "-")

    @abstractmethod
    def runs(self, preset: Preset) -> list[Spec]:
        """All runs that it needs at this scale."""

    def stages(self, preset: Preset) -> list[list[Spec]]:
        """The same in parts, the most important first: `all` takes them in turn."""
        return [self.runs(preset)]

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Its tables, from the rows that are there."""
        return []

    def figures(self, preset: Preset, results: Results) -> list[Figure]:
        """Its figures, from the rows that are there."""
        return []


def marking(
    scheme: str, preset: Preset, changes: Mapping[str, Any] | None = None
) -> MarkingSpec | None:
    """How a scheme's mark is trained in at this scale; None for Clean."""
    if scheme == "clean":
        return None
    if scheme == STREAM:
        return marking("neuralmark", preset, {"filter": "stream", **(changes or {})})
    strength = preset.training.strength
    if scheme == "greedymark":
        strength = preset.training.greedy_strength
    if scheme == "stdm":  # its slope is α·β times that of the others
        strength = strength * STDM_SHARE
    sizes: dict[str, Any] = dict(preset.key)
    if scheme != "neuralmark":  # the others have no pools and rounds of this kind
        sizes = {name: size for name, size in sizes.items() if name == "bits"}
    return replace(MarkingSpec(scheme, strength=strength, **sizes), **(changes or {}))


def training(
    preset: Preset,
    data: str,
    scheme: str,
    *,
    architecture: str = "",
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
) -> Training:
    """A model of the preset's scale; the same call gives the same run to all experiments."""
    scale = preset.training
    main = architecture or scale.main
    small = main in scale.zoo
    return Training(
        architecture=main,
        data=data,
        epochs=_epochs(scale, main),
        rate=scale.rate,
        batch=(small and scale.zoo_batch) or scale.batch,
        drops=scale.drops,
        images=(small and scale.zoo_images) or scale.images,
        test_images=scale.test_images,
        seed=seed,
        mark=_shared(marking(scheme, preset, changes), main),
        options=scale.options if main == scale.main else (),
    )


def _epochs(scale: TrainingScale, architecture: str) -> int:
    if architecture not in scale.zoo:
        return scale.epochs
    return int(dict(scale.zoo_longer).get(architecture, scale.zoo_epochs or scale.epochs))


def imprinted(
    preset: Preset, clean: Training, scheme: str, movement: float, *, anchored: bool = False
) -> ImprintSpec:
    """A scheme's mark in a clean model, at a set movement of its layer.

    Its strength is chosen for the movement; that in the specification is the unit of attackers.
    """
    mark = _shared(marking(scheme, preset, {"mode": "projection"}), clean.architecture)
    assert mark is not None
    return ImprintSpec(clean, mark, movement, anchored)


def _shared(mark: MarkingSpec | None, architecture: str) -> MarkingSpec | None:
    """The marking with its usual sizes left out, so that equal runs are the same run."""
    if mark is None or mark.scheme != "neuralmark":
        return mark
    from neuralmark import zoo

    usual = zoo.architecture(architecture).parameters
    sizes = {"bits": usual.bits, "pools": usual.pools, "rounds": usual.rounds}
    if (mark.bits or usual.bits) != usual.bits:
        del sizes["pools"]  # the usual number goes with the usual bits only
    left_out: dict[str, Any] = {n: None for n, size in sizes.items() if getattr(mark, n) == size}
    return replace(mark, **left_out)


def assault(
    preset: Preset,
    victim: Victim,
    attack: str,
    chosen: Mapping[str, Value],
    *,
    data: str = "",
    tensors: tuple[str, ...] = (),
) -> Assault:
    """An attack at the preset's scale; `chosen` are its settings."""
    return Assault(
        victim,
        attack,
        settings(**chosen),
        data=data,
        images=preset.attack.images,
        tensors=tensors,
        seed=victim.seed,
    )


def course(preset: Preset, rate: float | None = None) -> dict[str, Value]:
    """How long and how fast attackers train at this scale."""
    scale = preset.attack
    chosen = scale.rate if rate is None else rate
    return {"rate": float(chosen), "epochs": scale.epochs, "batch": scale.batch}


def tuning_course(preset: Preset, rate: float | None = None) -> dict[str, Value]:
    """The same for fine-tuning, which may last longer."""
    epochs = preset.attack.finetune_epochs or preset.attack.epochs
    return {**course(preset, rate), "epochs": epochs}


def mean_of(lists: Sequence[Sequence[float]]) -> list[float]:
    """Place by place, over seeds."""
    return [sum(values) / len(values) for values in zip(*lists, strict=False)]


def trained(results: Results, specs: Sequence[Victim], theirs: float | None) -> Cell:
    """Accuracy (rate) of trained models beside the paper's, whose own marks are all found in full.

    A rate that proves nothing contradicts it.
    """
    accuracies, rates = results.values(specs, "accuracy"), results.values(specs, "rate")
    ours = percent(accuracies) + (f" ({percent(rates)})" if rates else "")
    if theirs is None:
        return Cell(ours)
    if specs[0].mark is None:
        return Cell(ours, f"{theirs:.2f}")
    return beside(ours, f"{theirs:.2f} (100)", specs, rates)


def overwriting(
    preset: Preset, victim: Victim, data: str, *, weight: float = 1.0, rate: float | None = None
) -> Assault:
    """One overwriting attack on these data; its weight is in units of the owner's strength."""
    strength = 1.0 if victim.mark is None else victim.mark.strength
    chosen = {"weight": float(weight) * strength, **course(preset, rate)}
    if preset.attack.limit is not None:
        chosen["limit"] = preset.attack.limit
    return assault(preset, victim, "overwrite", chosen, data=data)


def finetuning(
    preset: Preset, victim: Victim, data: str, *, scope: TuningScope, rate: float
) -> Assault:
    """One fine-tuning attack on these data, with a new classifier."""
    tensors = marked_tensors(victim.architecture) if victim.mark is None else ()
    chosen = {"scope": scope, **tuning_course(preset, rate)}
    return assault(preset, victim, "finetune", chosen, data=data, tensors=tensors)


def trimming(preset: Preset, victim: Victim, reach: float) -> Assault:
    """The outliers of the marked layer clipped."""
    tensors = marked_tensors(victim.architecture)
    return assault(preset, victim, "trim", {"how": "clip", "reach": reach}, tensors=tensors)


def pruning(preset: Preset, victim: Victim, share: float) -> Assault:
    """A share of the marked layer set to zero at random."""
    tensors = marked_tensors(victim.architecture)
    return assault(preset, victim, "prune", {"how": "random", "share": share}, tensors=tensors)


def others(preset: Preset) -> list[str]:
    """The architectures of a preset beside its main one."""
    scale = preset.training
    return [name for name in (*scale.architectures, *scale.zoo) if name != scale.main]


def marked_tensors(architecture: str) -> tuple[str, ...]:
    """The tensors that an architecture marks by default."""
    from neuralmark import zoo

    return tuple(zoo.architecture(architecture).marked)
