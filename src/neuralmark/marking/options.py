"""What a user may choose when marking a file or a training: frozen records, checked once."""

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

import numpy as np

from neuralmark.anchors.coarse import USUAL_BITS, check_bits
from neuralmark.anchors.effort import ALIGN_LIMIT, AlignOptions
from neuralmark.anchors.heads import check_heads
from neuralmark.core.key import Parameters
from neuralmark.errors import ParameterError
from neuralmark.keys.key import Key
from neuralmark.sandbox.limits import SandboxLimits
from neuralmark.triggers.triggers import Triggers

if TYPE_CHECKING:
    from neuralmark.anchors.anchor import Anchor
    from neuralmark.storage.places import Place

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
MAX_AMONG = 1 << 62
MOST_BITS = 8
"""Of a weight in an anchor."""


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
            the mark to it: then it is found again wherever the weights went. Or the anchor file of
            an earlier release: then this one gets the same mark, and their difference shows none.
        heads: How many attention heads the model has, where no config.json beside it tells; 0: not
            known.
        anchor_bits: Bits that the anchor keeps of each weight, 2 to 8. More make it larger and let
            it undo larger changes in directions that a layer does not use.

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
    anchor: bool | str | Path = True
    heads: int = 0
    anchor_bits: int = USUAL_BITS

    def __post_init__(self) -> None:
        """Refuse what cannot be carried out on any model."""
        check_names(self.tensors)
        check_spread(self.spread)
        check_effort(self.strength, self.budget)
        check_path("base", self.base)
        if self.check is not None and not callable(self.check):
            raise ParameterError(f"check must be a function, not {shown(self.check)}")
        check_list("other_keys", self.other_keys, "keys", Key)
        check_heads(self.heads)
        check_bits(self.anchor_bits)
        if not isinstance(self.anchor, bool | str | Path):
            raise ParameterError(
                "anchor must be True, False or the anchor file of an earlier release, not"
                f" {self.anchor!r:.60}"
            )
        if self.anchor is not True and self.anchor_bits != USUAL_BITS:
            raise ParameterError(
                "anchor_bits is for a new anchor: one of an earlier release keeps its own"
                if self.anchor
                else "anchor_bits is for an anchor, and anchor=False writes none"
            )
        if self.in_span and self.budget is not None:
            raise ParameterError("a mark in an adapter's span takes a strength, not a budget")


@dataclass(frozen=True)
class CopyOptions:
    """How the copies of buyers are marked; the defaults suit most models.

    The owner's mark and the buyer's each have the strength that is given; by default 2, or what a
    change of 2 % buys, but at least 1.

    Attributes:
        tensors: Names of the tensors to mark; without, `spread` chooses them.
        spread: How many tensors are chosen, `wide` (many, of all depths), `quick` (the few largest)
            or `all`.
        strength: The margin of every bit, in units of the spread of unmarked logits. The larger,
            the more buyers who mix their copies are named.
        budget: The change of the marked weights by each mark in percent, instead of a strength.
        heads: How many attention heads the model has, where no config.json beside it tells; 0: not
            known.
        anchor_bits: Bits that the anchor keeps of each weight, 2 to 8. Buyers who mix their copies
            are read against the anchor, so its rounding decides how many of them are named.
        cover: Whether the other weights of the marked tensors move as well, at random and as far.
            Otherwise half of them are the same in any two copies, and what most copies agree on is
            what the weights were without a buyer's mark. Costs 1.4 times the change.

    Raises:
        ParameterError: A value is out of range, or two exclude each other.

    Examples:
        >>> neuralmark.CopyOptions(strength=3).anchor_bits
        8
    """

    tensors: Sequence[str] | str | None = None
    spread: Spread = WIDE
    strength: float | None = None
    budget: float | None = None
    heads: int = 0
    anchor_bits: int = MOST_BITS
    cover: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be carried out on any model."""
        check_names(self.tensors)
        check_spread(self.spread)
        check_effort(self.strength, self.budget)
        check_heads(self.heads)
        check_bits(self.anchor_bits)


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
class VerifyOptions:
    """How a suspect is looked at; the defaults suit most.

    Attributes:
        anchor: The anchor of the mark: its file, the unmarked original, or an `Anchor`; by default
            it is sought beside the claim.
        effort: Share of the marked weights that is looked for where weights are put back in order,
            fixed before anything is read; the rest is filled from the anchor.
        align_limit: The most entries that a table of likenesses may have; larger axes are not put
            in order.
        full_digest: Whether to take the SHA-256 of whole files, which `sha256sum` prints, for
            `Verdict.sha256`. None: if they have at most 64 MiB in all, since reading all of a
            large model can take longer than looking for the mark.
        base: Where the suspect is a PEFT adapter: the model that it was trained on. What is read is
            the base with the adapter merged into it. By default a folder beside the adapter that
            has the base's name.
        among: How many looks this is one of, at other models or with other keys: the bound is
            corrected for all of them, as `scan` does.
        sandbox: What a process may use that reads the model in our place, and can do nothing
            else; None: it is read here.
        example: For a live module: an input that it takes (a tensor or an array), or the shape of
            one. With the anchor, layers that the module stores in a way of its own are then read by
            probing: what they answer to zero and to the basis of their inputs. This runs the code
            of the module.

    Raises:
        ParameterError: A value is out of range.

    Examples:
        >>> neuralmark.VerifyOptions(effort=0.25).full_digest is None
        True
    """

    anchor: "Anchor | str | Path | None" = None
    effort: float = 1.0
    align_limit: int = ALIGN_LIMIT
    full_digest: bool | None = None
    base: str | Path | None = None
    among: int = 1
    sandbox: SandboxLimits | None = None
    example: Any | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        self.aligning()
        check_path("base", self.base)
        if type(self.among) is not int or not 1 <= self.among <= MAX_AMONG:
            raise ParameterError(f"among must be a count of looks, not {shown(self.among)}")
        if self.sandbox is not None and not isinstance(self.sandbox, SandboxLimits):
            raise ParameterError(f"sandbox must be SandboxLimits, not {shown(self.sandbox)}")
        check_example(self.example)

    def aligning(self) -> AlignOptions:
        """What of it the aligner needs.

        Returns:
            How much is done, and up to which size.

        Examples:
            >>> neuralmark.VerifyOptions(effort=0.25).aligning().effort
            0.25
        """
        return AlignOptions(self.effort, self.align_limit)


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
            has it would find. A PEFT adapter is shown merged into it instead.

    Raises:
        ParameterError: A value is out of range.

    Examples:
        >>> neuralmark.InspectOptions(weights=False).strength
        1.0
    """

    parameters: Parameters | None = None
    strength: float = 1.0
    spread: Spread = WIDE
    weights: bool = True
    base: "str | Place | None" = None

    def __post_init__(self) -> None:
        """Refuse what no model can be looked at with."""
        if self.parameters is not None and not isinstance(self.parameters, Parameters):
            raise ParameterError(f"parameters must be Parameters, not {shown(self.parameters)}")
        if self.strength is None:
            raise ParameterError("strength must be a number, not None")
        check_effort(self.strength, None)
        check_spread(self.spread)
        check_path("base", self.base)


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
        triggers: For schemes that read activations, which take one layer's name as `tensors`: the
            triggers, or the path of their file.
        augment: What is done to the triggers at every step (a batch in, a batch out), so that the
            mark is read from changed ones too; by default nothing.

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
    triggers: Triggers | str | Path | None = None
    augment: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        """Refuse what no model can be trained with."""
        if self.mode is not None and self.mode not in MODES:
            raise ParameterError(f"mode must be one of {MODES}, not {self.mode!r}")
        if self.target not in TARGETS:
            raise ParameterError(f"target must be one of {TARGETS}, not {self.target!r}")
        check_names(self.tensors)
        if self.strength is not None and not _is_positive(self.strength):
            raise ParameterError(f"strength must be a positive number, not {shown(self.strength)}")
        every = self.every
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ParameterError(f"every must be a whole number of steps, not {every!r}")
        if self.triggers is not None and not isinstance(self.triggers, Triggers | str | Path):
            raise ParameterError(
                "triggers must be Triggers or the path of their file, not"
                f" {type(self.triggers).__name__}"
            )
        if self.augment is not None and not callable(self.augment):
            raise ParameterError(f"augment must be a function, not {shown(self.augment)}")


def _is_positive(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return 0 < float(value) < math.inf
    except OverflowError:  # a whole number beyond all of them
        return False


def check_spread(spread: Any) -> None:
    """Refuse what is not the name of a spread."""
    if spread not in SPREADS:
        raise ParameterError(f"spread must be one of {', '.join(SPREADS)}, not {shown(spread)}")


def check_example(example: Any) -> None:
    """Refuse what is neither a tensor nor the shape of one; None is no example."""
    if example is None or hasattr(example, "shape"):
        return
    if not is_list(example, int) or not example or min(example) < 1:
        raise ParameterError(f"example must be a tensor or a shape, not {shown(example)}")


def check_path(name: str, path: Any) -> None:
    """Refuse what names no file; None is no file."""
    if path is not None and not isinstance(path, str | os.PathLike):
        raise ParameterError(f"{name} must be a path, not {shown(path)}")


def check_names(tensors: Any) -> None:
    """Refuse what is neither a name nor a list of them; None is no choice."""
    if tensors is not None and not isinstance(tensors, str):
        check_list("tensors", tensors, "names", str)


def check_list(name: str, values: Any, of: str, kind: type = object) -> None:
    """Refuse what does not hold several of a kind: one alone, a table, what is gone once read."""
    if not is_list(values, kind):
        raise ParameterError(f"{name} must be a list of {of}, not {shown(values)}")


def is_list(values: Any, kind: type = object) -> bool:
    """Whether this holds values of a kind, and holds them still when it is read again."""
    several = isinstance(values, Collection) and not isinstance(values, str | bytes | Mapping)
    return several and all(isinstance(value, kind) for value in values)


def shown(value: Any) -> str:
    """A value that somebody gave, for a message: one short line."""
    return f"{' '.join(repr(value).split()):.60}"


def options_of(kind: type[T], options: T | None) -> T:
    """The record that a caller passed, if it is one of this kind; the defaults where none was."""
    if options is not None and not isinstance(options, kind):
        raise ParameterError(f"options must be {kind.__name__}, not {type(options).__name__}")
    return options or kind()
