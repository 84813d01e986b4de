"""The contract of an attack: its author writes `run`; the base checks, copies, times and judges.

An attack is one file in this folder; the file's name is the attack's name. It holds one frozen
dataclass that derives from `Attack`. Its fields are its settings (`option` says what each means
and what it may be); the command line makes options of them. `run` gets a `Scene`, never the
owner's key, and gives an `Outcome`: new weights, a new model, or a forged key, and what it cost.
It must not change what it is given, and it never grades itself: `neuralmark.attacks.launch` does.
"""

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from neuralmark.core.key import Parameters, Placement
from neuralmark.errors import ParameterError

if TYPE_CHECKING:
    import torch

    from neuralmark.keys.key import Key
    from neuralmark.storage.bookmark import Bookmark

Array = npt.NDArray[np.float32]
Weights = Mapping[str, Array]
"""Tensors by stored name. Those of a scene are read-only."""

AttackKind = Literal["weights", "key", "test"]
"""Whether an attack makes other weights, forges a key, or only looks."""
WEIGHTS: Final = "weights"
KEY: Final = "key"
TEST: Final = "test"

Need = Literal["model", "data", "others"]
"""What an attack may not do without."""


def option(
    default: Any,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
) -> Any:
    """A setting of an attack: its default, what it means, and what it may be.

    Args:
        default: The value where none is given.
        meaning: What it is, in a few words.
        low: The smallest value allowed.
        high: The largest value allowed.
        choices: The words allowed, for a setting that is a word.

    Returns:
        A field of the attack's dataclass.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Blur(Attack):
        ...     width: int = option(3, "weights that are averaged", low=1)
        ...     def run(self, scene):
        ...         return Outcome()
        >>> Blur().width
        3
        >>> Blur(width=0)
        Traceback (most recent call last):
        neuralmark.errors.ParameterError: width must be from 1, not 0 (weights that are averaged)
    """
    limits = {"meaning": meaning, "low": low, "high": high, "choices": tuple(choices)}
    return field(default=default, metadata=limits)


@dataclass(frozen=True, eq=False)
class Data:
    """Labelled examples that an attacker has: inputs and labels for training, and for testing."""

    inputs: "torch.Tensor"
    labels: "torch.Tensor"
    test_inputs: "torch.Tensor"
    test_labels: "torch.Tensor"
    augmented: "Callable[[torch.Tensor, torch.Generator], torch.Tensor] | None" = None
    """Training inputs of these numbers as the attacker varies them (crops, flips); None: as is."""

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(max(self.labels.max(), self.test_labels.max())) + 1


@dataclass(frozen=True, eq=False)
class Scene:
    """What the attacker holds. All arrays are read-only; the module is his own copy."""

    weights: Weights
    target: tuple[str, ...]
    """Stored names of the tensors to attack: by default every floating-point matrix."""
    rng: np.random.Generator
    model: "torch.nn.Module | None" = None
    data: Data | None = None
    others: tuple[Weights, ...] = ()
    """Other checkpoints of the same shape."""
    placement: Placement = ()
    """Where he believes the mark to be (the paper's attacker knows the layer, not the key)."""
    parameters: Parameters | None = None
    """Scheme and parameters of the owner's key, which the paper's attacker knows too."""
    progress: Callable[[str, int, int], None] | None = None
    """Called with what is being done, how much is done, how much there is in all."""
    bookmark: "Bookmark | None" = None
    """Where an attack that takes long may keep how far it is; None: it keeps nothing."""

    def tell(self, what: str, done: int, total: int) -> None:
        """Report progress, if anybody listens."""
        if self.progress is not None:
            self.progress(what, done, total)

    def targets(self) -> Iterable[tuple[str, Array]]:
        """Names and values of the tensors to attack."""
        return ((name, self.weights[name]) for name in self.target)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an attack made, and what it cost. Unchanged tensors may be left out of `weights`."""

    weights: Weights | None = None
    model: "torch.nn.Module | None" = None
    key: "Key | None" = None
    placement: Placement = ()
    """Where a forged key claims to be."""
    steps: int = 0
    queries: int = 0
    note: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Whatever else is worth a column: numbers by name."""


@dataclass(frozen=True)
class Attack(ABC):
    """Base of all attacks; see the module's text."""

    summary: ClassVar[str]
    """What it does, in one line."""
    expects: ClassVar[str]
    """What should happen to a sound mark, in one line."""
    kind: ClassVar[AttackKind] = WEIGHTS
    """`weights` (makes other weights), `key` (forges a key) or `test` (only looks)."""
    needs: ClassVar[frozenset[Need]] = frozenset()
    """What it cannot do without: any of `model`, `data`, `others`."""
    preserves: ClassVar[bool] = False
    """Whether the network computes what it did: checked where there is data to see it on."""
    dial: ClassVar[str] = ""
    """The field that says how strong the attack is: the x axis of its sweep."""

    def __post_init__(self) -> None:
        """Refuse settings of another type or out of range; numpy's numbers become plain ones."""
        for each in fields(self):
            value = _plain(each, getattr(self, each.name))
            object.__setattr__(self, each.name, value)
            _check(each.name, value, each.metadata)

    @classmethod
    def sweep(cls) -> tuple["Attack", ...]:
        """The attacks of this kind that the suite runs, weak ones first; none: not in the suite."""
        return ()

    @property
    def strength(self) -> float:
        """How strong it is: the value of the dial."""
        return float(getattr(self, self.dial)) if self.dial else 0.0

    @property
    def variant(self) -> str:
        """What tells this sweep from others of the same attack, in a word or two."""
        return ""

    @property
    def keeps_task(self) -> bool:
        """Whether the model still solves the task that it was trained for."""
        return True

    @classmethod
    def unit(cls) -> str:
        """What the dial counts."""
        each = next((each for each in fields(cls) if each.name == cls.dial), None)
        return str(each.metadata["meaning"]) if each else ""

    def settings(self) -> dict[str, Any]:
        """All settings, by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @abstractmethod
    def run(self, scene: Scene) -> Outcome:
        """Attack. Everything random comes from `scene.rng`."""


_TYPES: dict[Any, tuple[type, str]] = {
    **dict.fromkeys((bool, "bool"), (bool, "True or False")),
    **dict.fromkeys((int, "int"), (int, "a whole number")),
    **dict.fromkeys((float, "float"), (float, "a number")),
    **dict.fromkeys((str, "str"), (str, "a text")),
}
"""What a field's annotation (or its text) asks for; other annotations are the attack's own."""


def _plain(each: "Field[Any]", value: Any) -> Any:
    """The value of a setting as a plain Python one, if it is of the right type."""
    if isinstance(value, np.generic):
        value = value.item()
    kind, words = _TYPES.get(each.type, (None, ""))
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # 1e6 means a million
    number = kind is float and isinstance(value, int)
    fits = kind is None or isinstance(value, kind) or number
    if not fits or (isinstance(value, bool) and kind in (int, float)):
        meaning = each.metadata.get("meaning", "")
        note = f" ({meaning})" if meaning else ""
        raise ParameterError(f"{each.name} must be {words}, not {value!r}{note}")
    return value


def _check(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    choices = limits.get("choices", ())
    if choices and value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ParameterError(f"{name} must be one of {', '.join(choices)}, not {value!r}{hint}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        _check_range(name, value, limits)


def _check_range(name: str, value: float, limits: Mapping[str, Any]) -> None:
    low, high = limits.get("low"), limits.get("high")
    below = low is not None and value < low
    above = high is not None and value > high
    if not (below or above or not math.isfinite(value)):
        return
    reach = "a finite number"
    if high is not None:
        reach = f"from {low or 0:g} to {high:g}"
    elif low is not None:
        reach = f"from {low:g}"
    note = limits.get("meaning", "")
    raise ParameterError(f"{name} must be {reach}, not {value:g}{f' ({note})' if note else ''}")


def checked_seed(seed: Any) -> int:
    """The seed as a plain int, if it is one that every generator takes."""
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not whole or not 0 <= seed < 1 << 64:
        raise ParameterError(f"seed must be a whole number from 0 to 2^64-1, not {seed!r}")
    return int(seed)
