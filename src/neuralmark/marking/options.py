"""What a user may choose when he marks a file or a training: frozen records, checked once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar, get_args

from neuralmark.anchors.heads import check_heads
from neuralmark.core.key import Parameters
from neuralmark.errors import ParameterError
from neuralmark.keys.key import Key

T = TypeVar("T")

Spread = Literal["wide", "quick", "all"]
"""How many tensors a mark takes: many of all depths, the few largest, or everything."""
WIDE: Final = "wide"
QUICK: Final = "quick"
ALL: Final = "all"
SPREADS: tuple[Spread, ...] = get_args(Spread)

Check = Callable[[Path], bool]
"""The owner's own evaluation of a candidate: a path in, pass or fail out."""

Mode = Literal["gradient", "projection", "loss"]
MODES: tuple[Mode, ...] = get_args(Mode)

Target = Literal["weights", "lora-delta"]
TARGETS: tuple[Target, ...] = get_args(Target)

USUAL: dict[Mode, float] = {"gradient": 1.0, "projection": 2.0, "loss": 1.0}
"""Strength where none is given: times the embedding loss, or margin in σz (docs/strength.md)."""


MAX_STRENGTH = 1e6


@dataclass(frozen=True)
class EmbedOptions:
    """How a finished checkpoint is marked; the defaults suit most models.

    By default the strength is 2, or what a change of 2 % buys, but at least 1.

    Attributes:
        tensors: Names of the tensors to mark; without, `spread` chooses them.
        spread: How many tensors are chosen, `wide` (many, of all depths), `quick` (the few largest)
            or `all`.
        strength: The margin of every bit, in units of the spread of unmarked logits.
        budget: The change of the marked weights in percent, instead of a strength.
        base: The public checkpoint that the model was fine-tuned from, for the mark to hide
            behind the fine-tuning.
        in_span: Whether to keep the mark inside the span of a merged adapter; needs `base`.
        check: Your own test of a candidate (its path in, True or False out); the strongest mark
            that passes is written.
        other_keys: Keys whose marks are verified before and after.
        anchor: Whether to write an anchor, a coarse and sealed copy of what is marked, and to bind
            the mark to it: then it is found again wherever the weights went.
        heads: How many attention heads the model has, where no config.json beside it tells; 0: not
            known.

    Raises:
        ParameterError: A value is out of range, or two exclude each other.

    Examples:
        >>> neuralmark.EmbedOptions(strength=1.5, spread="quick").strength
        1.5
    """

    tensors: Sequence[str] | str | None = None
    spread: Spread = WIDE
    strength: float | None = None
    budget: float | None = None
    base: str | Path | None = None
    in_span: bool = False
    check: Check | None = None
    other_keys: Sequence[Key] = ()
    anchor: bool = True
    heads: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be carried out on any model."""
        check_effort(self.strength, self.budget)
        check_heads(self.heads)
        if not isinstance(self.anchor, bool):
            raise ParameterError(f"anchor must be True or False, not {self.anchor!r:.60}")
        if self.in_span and self.budget is not None:
            raise ParameterError("a mark in an adapter's span takes a strength, not a budget")


def check_effort(strength: float | None, budget: float | None) -> None:
    """Refuse both at once, and what is out of range."""
    if strength is not None and budget is not None:
        raise ParameterError("give either a strength or a budget, not both")
    for name, value in (("strength", strength), ("budget", budget)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ParameterError(f"{name} must be a number, not {value!r:.60}")
    if strength is not None and not 0 < strength <= MAX_STRENGTH:
        raise ParameterError(
            f"strength must be above 0 and at most {MAX_STRENGTH:g}, not {strength}"
        )
    if budget is not None and not 0 < budget <= 100:
        raise ParameterError(f"budget must be a percentage above 0 and up to 100, not {budget}")


@dataclass(frozen=True)
class InspectOptions:
    """How a checkpoint is looked at.

    Attributes:
        parameters: The parameters to expect carriers for, where there is no key.
        strength: The strength that costs are told for.
        spread: How many tensors `auto` chooses, `wide`, `quick` or `all`.
        weights: Whether to read the chosen tensors, to say on which grid their values lie and
            whether a mark can hide in them.
        base: The public checkpoint that the model was fine-tuned from, to say what somebody who
            has it would find.

    Raises:
        ParameterError: The strength is out of range.

    Examples:
        >>> neuralmark.InspectOptions(weights=False).strength
        1.0
    """

    parameters: Parameters | None = None
    strength: float = 1.0
    spread: Spread = WIDE
    weights: bool = True
    base: str | Path | None = None

    def __post_init__(self) -> None:
        """Refuse a strength that no mark can have."""
        check_effort(self.strength, None)


@dataclass(frozen=True)
class AttachOptions:
    """How a mark is trained in; the defaults suit most trainings.

    Mode "projection" keeps every bit at the margin `strength` (in σz, default 2) by the smallest
    change after every `every`-th step; "gradient" adds strength · ∂(embedding loss)/∂w before each
    step, as published (default 1); "loss" hooks nothing: add `mark.loss_term()` to your own loss.

    Attributes:
        tensors: Names of the tensors to mark, or "auto" for the few largest.
        mode: How the mark is kept; by default projection where the weights can be written, else
            gradient.
        strength: The margin in σz for projection, else the weight of the embedding loss.
        every: After how many steps to project.
        target: What is marked, "weights" or "lora-delta" (the products of LoRA layers).

    Raises:
        ParameterError: A value is out of range.

    Examples:
        >>> neuralmark.AttachOptions(mode="projection", every=10).every
        10
    """

    tensors: Sequence[str] | str = "auto"
    mode: Mode | None = None
    strength: float | None = None
    every: int = 1
    target: Target = "weights"

    def __post_init__(self) -> None:
        """Refuse what no model can be trained with."""
        if self.mode is not None and self.mode not in MODES:
            raise ParameterError(f"mode must be one of {MODES}, not {self.mode!r}")
        if self.target not in TARGETS:
            raise ParameterError(f"target must be one of {TARGETS}, not {self.target!r}")
        if self.strength is not None and not 0 < self.strength < math.inf:
            raise ParameterError(f"strength must be a positive number, not {self.strength}")
        every = self.every
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ParameterError(f"every must be a whole number of steps, not {every!r}")


def options_of(kind: type[T], options: T | None) -> T:
    """The record that a caller passed, if it is one of this kind; the defaults where none was."""
    if options is not None and not isinstance(options, kind):
        raise ParameterError(f"options must be {kind.__name__}, not {type(options).__name__}")
    return options or kind()
