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

from neuralmark.core.key import Parameters, Placement
from neuralmark.errors import ParameterError
from neuralmark.structures.structure import Array as Array
from neuralmark.structures.structure import Weights as Weights

if TYPE_CHECKING:
    import torch

    from neuralmark.keys.key import Key
    from neuralmark.storage.bookmark import Bookmark
    from neuralmark.triggers.triggers import Triggers

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
    """Labelled examples that an attacker has, for training and for testing.

    Attributes:
        inputs: What the model is trained on.
        labels: The class of each input.
        test_inputs: What accuracy is measured on.
        test_labels: The class of each test input.
        augmented: Gives the training inputs with these numbers, varied (crops, flips); None: as is.

    Examples:
        >>> import torch
        >>> Data(torch.zeros(4, 8), torch.arange(4), torch.zeros(2, 8), torch.arange(2)).classes
        4
    """

    inputs: "torch.Tensor"
    labels: "torch.Tensor"
    test_inputs: "torch.Tensor"
    test_labels: "torch.Tensor"
    augmented: "Callable[[torch.Tensor, torch.Generator], torch.Tensor] | None" = None

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(max(self.labels.max(), self.test_labels.max())) + 1


@dataclass(frozen=True, eq=False)
class Scene:
    """What the attacker holds. All arrays are read-only; the module is the attacker's own copy.

    Attributes:
        weights: The tensors of the model, by stored name.
        target: Stored names of the tensors to attack: by default every floating-point matrix.
        rng: Where everything random comes from.
        model: The model as a torch module, if there is one.
        data: Labelled examples, if the attacker has any.
        others: Other checkpoints of the same shape.
        placement: Where the mark is believed to be: the paper's attacker knows the layer.
        parameters: Scheme and parameters of the owner's key, which the paper's attacker knows too.
        progress: Called with what is being done, how much is done, and how much there is in all.
        bookmark: Where a long attack may save its progress; None: it saves nothing.
        heads: Attention heads that the model's configuration tells of; 0: not known.

    Examples:
        >>> scene = Scene({"a": np.ones((2, 2), np.float32)}, ("a",), np.random.default_rng(0))
        >>> scene.model is None
        True
    """

    weights: Weights
    target: tuple[str, ...]
    rng: np.random.Generator
    model: "torch.nn.Module | None" = None
    data: Data | None = None
    others: tuple[Weights, ...] = ()
    placement: Placement = ()
    parameters: Parameters | None = None
    progress: Callable[[str, int, int], None] | None = None
    bookmark: "Bookmark | None" = None
    heads: int = 0

    def tell(self, what: str, done: int, total: int) -> None:
        """Report progress, if anybody listens.

        Args:
            what: What is being done.
            done: How much of it is done.
            total: How much there is in all.

        Examples:
            >>> rng = np.random.default_rng(0)
            >>> Scene({}, (), rng, progress=print).tell("training", 1, 10)
            training 1 10
        """
        if self.progress is not None:
            self.progress(what, done, total)

    def targets(self) -> Iterable[tuple[str, Array]]:
        """The tensors to attack.

        Returns:
            The name and the values of each.

        Examples:
            >>> weights = {"a": np.ones(4, np.float32), "b": np.ones(4, np.float32)}
            >>> [name for name, _ in Scene(weights, ("b",), np.random.default_rng(0)).targets()]
            ['b']
        """
        return ((name, self.weights[name]) for name in self.target)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an attack made, and what it cost.

    Attributes:
        weights: The new tensors, by stored name; those that did not change may be left out.
        model: The new model, if the attack made one.
        key: The forged key, if the attack made one.
        placement: Where a forged key claims its mark to be.
        triggers: The inputs at which a forged key reads a live model, where it does.
        steps: How many training steps it took.
        queries: How often the model was asked.
        note: A remark on how it went.
        figures: Whatever else is worth a column: numbers by name.
        gone: Stored names of tensors that are no longer there.

    Examples:
        >>> Outcome(steps=100, figures={"zeros": 0.5}).weights is None
        True
    """

    weights: Weights | None = None
    model: "torch.nn.Module | None" = None
    key: "Key | None" = None
    placement: Placement = ()
    triggers: "Triggers | None" = None
    steps: int = 0
    queries: int = 0
    note: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    gone: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attack(ABC):
    """Base of all attacks. A frozen dataclass derives from it; its fields are the settings.

    Attributes:
        summary: What it does, in one line.
        expects: What should happen to a sound mark, in one line.
        kind: `weights` (makes other weights), `key` (forges a key) or `test` (only looks).
        needs: What it cannot do without: any of `model`, `data`, `others`.
        preserves: Whether the network still computes the same; checked where there is data.
        dial: The field that says how strong the attack is: the x axis of its sweep.

    Raises:
        ParameterError: A setting has the wrong type or is out of range.

    Examples:
        >>> prune = neuralmark.attacks.get("prune")
        >>> issubclass(prune, Attack), prune.kind, prune.dial
        (True, 'weights', 'share')
    """

    summary: ClassVar[str]
    expects: ClassVar[str]
    kind: ClassVar[AttackKind] = WEIGHTS
    needs: ClassVar[frozenset[Need]] = frozenset()
    preserves: ClassVar[bool] = False
    dial: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Refuse settings of another type or out of range; numpy's numbers become plain ones."""
        for each in fields(self):
            value = _plain(each, getattr(self, each.name))
            object.__setattr__(self, each.name, value)
            _check(each.name, value, each.metadata)

    @classmethod
    def sweep(cls) -> tuple["Attack", ...]:
        """The attacks of this class that the suite runs.

        Returns:
            The attacks, the weakest first; empty if it is not in the suite.

        Examples:
            >>> [noise.strength for noise in neuralmark.attacks.get("noise").sweep()][:3]
            [0.01, 0.02, 0.05]
        """
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
    def parts(self) -> tuple["Attack", ...]:
        """The attacks that it is made of: itself, unless it combines others."""
        return (self,)

    @property
    def keeps_task(self) -> bool:
        """Whether the model still solves the task that it was trained for."""
        return True

    @classmethod
    def unit(cls) -> str:
        """What the dial counts.

        Returns:
            A few words; empty if there is no dial.

        Examples:
            >>> neuralmark.attacks.get("prune").unit()
            'share of the weights set to zero'
        """
        each = next((each for each in fields(cls) if each.name == cls.dial), None)
        return str(each.metadata["meaning"]) if each else ""

    def settings(self) -> dict[str, Any]:
        """All settings of this attack.

        Returns:
            The values, by name.

        Examples:
            >>> neuralmark.attacks.get("prune")(share=0.9).settings()
            {'share': 0.9, 'how': 'magnitude'}
        """
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @abstractmethod
    def run(self, scene: Scene) -> Outcome:
        """Attack. Everything random comes from `scene.rng`.

        Args:
            scene: What the attacker holds.

        Returns:
            What it made, and what it cost.

        Raises:
            AttackError: It cannot be carried out on this model.

        Examples:
            >>> scene = Scene({"a": np.ones(4, np.float32)}, ("a",), np.random.default_rng(0))
            >>> neuralmark.attacks.get("prune")(share=0.5).run(scene).weights["a"]
            array([0., 0., 1., 1.], dtype=float32)
        """


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
