"""What a run is: a frozen specification. Its hash names its folder.

Five kinds: a `Training` makes a model (with a mark or without), a `TuningSpec` a language model, an
`ImprintSpec` writes a mark into the model of a clean training, an `Assault` attacks the model of a
training or an imprint, a `Probe` measures something that needs none. Everything that shapes the
numbers is in the specification; what does not (where files are, how many processes) is not.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

from neuralmark.core.encoding import canonical_json
from neuralmark.core.key import Filter
from neuralmark.errors import ParameterError
from neuralmark.marking.options import Mode

LAB_VERSION = 5
"""Changes when the same specification would give other numbers."""

Value = int | float | str
Settings = tuple[tuple[str, Value], ...]
"""Names and values, sorted."""
RunKind = Literal["training", "tuning", "imprint", "assault", "probe"]


def settings(**values: Value) -> Settings:
    """Settings from keywords.

    >>> settings(share=0.5, how="random")
    (('how', 'random'), ('share', 0.5))
    """
    return tuple(sorted(values.items()))


@dataclass(frozen=True)
class MarkingSpec:
    """A mark to train in: the scheme of its key, and how it is kept."""

    scheme: str = "neuralmark"
    mode: Mode = "gradient"
    strength: float = 1.0
    bits: int | None = None
    pools: int | None = None
    rounds: int | None = None
    filter: Filter | None = None
    """None: the architecture's (the published one); `stream` is what the product uses."""
    own: Settings = ()
    number: int = 0
    """Which key: keys are derived from the run's seed, its data and this number."""

    @property
    def label(self) -> str:
        """The scheme, and its filter if it is not the usual one."""
        return self.scheme if self.filter is None else f"{self.scheme} ({self.filter})"


@dataclass(frozen=True)
class Training:
    """A model trained from scratch, marked or clean."""

    kind: ClassVar[RunKind] = "training"

    architecture: str
    data: str
    epochs: int
    rate: float
    batch: int
    drops: tuple[int, ...] = ()
    """Epochs after which the rate falls to a tenth."""
    images: int | None = None
    """How many training images at most (None: all)."""
    test_images: int | None = None
    momentum: float = 0.9
    decay: float = 5e-4
    seed: int = 0
    mark: MarkingSpec | None = None
    tensors: tuple[str, ...] = ()
    """The marked tensors; empty: the architecture's own choice."""
    options: Settings = ()
    """Settings of the architecture."""

    @property
    def needs(self) -> tuple["Spec", ...]:
        """Runs that must be finished first."""
        return ()

    @property
    def label(self) -> str:
        """In a few words."""
        who = "clean" if self.mark is None else self.mark.label
        return f"train {self.architecture} on {self.data}, {who}, seed {self.seed}"


@dataclass(frozen=True)
class TuningSpec:
    """A language model trained on E2E and scored on what it says; marked or clean."""

    kind: ClassVar[RunKind] = "tuning"

    architecture: str
    epochs: int
    rate: float
    batch: int
    warm_up: int
    start: "TuningSpec | None" = None
    """Whose model is tuned; None: the architecture's published weights, or fresh ones."""
    adapted: bool = True
    """LoRA adapters only, or all weights."""
    split: str = "train"
    rows: int | None = None
    """How many rows at most, spread over the file (None: all)."""
    meanings: int | None = None
    """How many test meanings are put into words at most (None: all; 0: none)."""
    beams: int = 10
    seed: int = 0
    mark: MarkingSpec | None = None

    @property
    def needs(self) -> tuple["Spec", ...]:
        """The model that is tuned."""
        return () if self.start is None else (self.start,)

    @property
    def label(self) -> str:
        """In a few words."""
        who = "clean" if self.mark is None else self.mark.label
        how = "tune" if self.adapted else "train"
        return f"{how} {self.architecture} on e2e {self.split}, {who}, seed {self.seed}"


@dataclass(frozen=True)
class ImprintSpec:
    """A mark written at once into a trained clean model, at a set movement of the marked layer.

    Every scheme gets the same model and the same ‖Δw‖/‖w‖; what it makes of it is its own.
    """

    kind: ClassVar[RunKind] = "imprint"

    base: Training
    mark: MarkingSpec
    movement: float
    """‖Δw‖/‖w‖ of the marked tensors, as a share."""
    anchored: bool = False
    """Whether the mark is bound to an anchor of the clean model."""

    @property
    def needs(self) -> tuple["Spec", ...]:
        """The clean model."""
        return (self.base,)

    @property
    def architecture(self) -> str:
        """The clean model's."""
        return self.base.architecture

    @property
    def data(self) -> str:
        """The data set of the clean model, which the key follows."""
        return self.base.data

    @property
    def seed(self) -> int:
        """The clean model's, which the key follows."""
        return self.base.seed

    @property
    def label(self) -> str:
        """In a few words."""
        how = f"{100 * self.movement:g} %" + (", anchored" if self.anchored else "")
        what = f"{self.architecture} on {self.data}"
        return f"imprint {self.mark.label} into {what}, {how}, seed {self.seed}"


@dataclass(frozen=True)
class Assault:
    """An attack on the model of a training or of an imprint."""

    kind: ClassVar[RunKind] = "assault"

    victim: Training | ImprintSpec
    attack: str
    settings: Settings = ()
    data: str = ""
    """The attacker's data set; empty: the victim's own."""
    images: int | None = None
    tensors: tuple[str, ...] = ()
    """What the attack may touch; empty: every matrix."""
    seed: int = 0

    @property
    def needs(self) -> tuple["Spec", ...]:
        """The victim must be there."""
        return (self.victim,)

    @property
    def label(self) -> str:
        """In a few words."""
        with_ = ", ".join(f"{name} {value}" for name, value in self.settings)
        who = "clean" if self.victim.mark is None else self.victim.mark.label
        where = self.victim.data + (f" to {self.data}" if self.data else "")
        return f"{self.attack} on {who} ({where}){': ' + with_ if with_ else ''}"


@dataclass(frozen=True)
class Probe:
    """A measurement that needs no trained model: overlap, cost, forging."""

    kind: ClassVar[RunKind] = "probe"

    probe: str
    settings: Settings = ()
    seed: int = 0

    @property
    def needs(self) -> tuple["Spec", ...]:
        """Nothing."""
        return ()

    @property
    def label(self) -> str:
        """In a few words."""
        return f"{self.probe}: " + ", ".join(f"{name} {value}" for name, value in self.settings)


Victim = Training | ImprintSpec
"""What is attacked."""
Spec = Training | TuningSpec | ImprintSpec | Assault | Probe
_KINDS: dict[RunKind, type[Any]] = {
    cls.kind: cls for cls in (Training, TuningSpec, ImprintSpec, Assault, Probe)
}


def to_dict(spec: Spec) -> dict[str, Any]:
    """As it stands in a run's folder and in every row."""
    return {"kind": spec.kind, "lab": LAB_VERSION, **asdict(spec)}


def from_dict(data: dict[str, Any]) -> Spec:
    """Read back what `to_dict` gave."""
    given = dict(data)
    kind, version = given.pop("kind", None), given.pop("lab", None)
    if kind not in _KINDS or version != LAB_VERSION:
        raise ParameterError(f"a run of kind {kind!r} and version {version!r} is not known here")
    made: Spec = _built(_KINDS[kind], given)
    return made


def identity(spec: Spec) -> str:
    """The name of a run's folder: the same specification, the same name."""
    return hashlib.sha256(canonical_json(_plain(to_dict(spec)))).hexdigest()[:20]


def in_order(specs: Iterator[Spec] | list[Spec]) -> list[Spec]:
    """Each run once, and after all that it needs."""
    ordered: dict[str, Spec] = {}

    def add(spec: Spec) -> None:
        for needed in spec.needs:
            add(needed)
        ordered.setdefault(identity(spec), spec)

    for spec in specs:
        add(spec)
    return list(ordered.values())


def _built(cls: type[Any], given: dict[str, Any]) -> Any:
    known = {each.name for each in fields(cls)}
    if set(given) - known:
        raise ParameterError(f"{cls.__name__} has no {sorted(set(given) - known)[0]!r}")
    values = {name: _tupled(value) for name, value in given.items()}
    if isinstance(values.get("mark"), dict):
        values["mark"] = _built(MarkingSpec, values["mark"])
    if isinstance(values.get("start"), dict):
        values["start"] = _built(TuningSpec, values["start"])
    if isinstance(values.get("base"), dict):
        values["base"] = _built(Training, values["base"])
    if isinstance(victim := values.get("victim"), dict):
        values["victim"] = _built(ImprintSpec if "base" in victim else Training, victim)
    return cls(**values)


def _tupled(value: Any) -> Any:
    return tuple(_tupled(each) for each in value) if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    """As JSON gives it back: lists for tuples."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
