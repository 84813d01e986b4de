"""Rebuilding a network so that it computes the same with other weights.

Channels and heads change places, grow and shrink, turn their signs, gain dummies that do nothing,
become several that add up; residual streams and heads are rotated; tokens are numbered anew. None
of it needs data: a map of the model's structure, recognised from the names and shapes of its
tensors, says which tensors must change together. A mark that is read by position does not survive;
the owner undoes it by aligning the suspect with his anchor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, get_args

from neuralmark.attacks.contract import Attack, Outcome, Scene, option
from neuralmark.attacks.tools import rebuilding
from neuralmark.attacks.tools.rebuilding import Rebuilding, Touched
from neuralmark.errors import AttackError, ParameterError
from neuralmark.structures.attention import UNKNOWN
from neuralmark.structures.structure import Structure

Manner = Literal[
    "permute",
    "rescale",
    "flip",
    "dummy",
    "rotate",
    "split",
    "duplicate",
    "vocabulary",
    "equalise",
    "all",
]
"""What is done to channels, heads, streams and tokens."""
PERMUTE: Final = "permute"
RESCALE: Final = "rescale"
FLIP: Final = "flip"
DUMMY: Final = "dummy"
ROTATE: Final = "rotate"
SPLIT: Final = "split"
DUPLICATE: Final = "duplicate"
VOCABULARY: Final = "vocabulary"
EQUALISE: Final = "equalise"
ALL: Final = "all"

WAYS: dict[Manner, Callable[[Rebuilding, float], Touched]] = {
    PERMUTE: rebuilding.permute,
    RESCALE: rebuilding.rescale,
    FLIP: rebuilding.flip,
    DUMMY: rebuilding.dummy,
    ROTATE: rebuilding.rotate,
    SPLIT: rebuilding.split,
    DUPLICATE: rebuilding.duplicate,
    VOCABULARY: rebuilding.renumber,
    EQUALISE: rebuilding.equalise,
    ALL: rebuilding.everything,
}
HOW: tuple[Manner, ...] = get_args(Manner)
SHARES: tuple[Manner, ...] = (PERMUTE, FLIP, ROTATE, VOCABULARY, EQUALISE)
COUNTS: dict[Manner, int] = {DUMMY: 1, SPLIT: 1, DUPLICATE: 1, ALL: 0}
"""The fewest channels that each of these adds to a layer."""

_SWEEP: dict[Manner, tuple[float, ...]] = {
    PERMUTE: (0.1, 0.5, 1.0),
    FLIP: (0.1, 0.5, 1.0),
    RESCALE: (0.5, 1.0, 3.0),
    DUMMY: (1, 8),
    ROTATE: (0.5, 1.0),
    SPLIT: (1, 8),
    DUPLICATE: (1, 8),
    VOCABULARY: (0.5, 1.0),
    EQUALISE: (0.5, 1.0),
    ALL: (0, 8),
}

_WANTS = {
    PERMUTE: "hidden channels or heads",
    RESCALE: "ReLU or a batch norm behind its layers",
    FLIP: "a batch norm or a gated MLP",
    DUMMY: "hidden channels",
    ROTATE: "attention heads or a residual stream with RMSNorm",
    SPLIT: "hidden channels",
    DUPLICATE: "hidden channels",
    VOCABULARY: "a token embedding",
    EQUALISE: "ReLU, a batch norm or attention heads",
    ALL: "hidden channels or heads",
}

_RENUMBERED = "tokens have other numbers now: the tokenizer must be renumbered alike"


@dataclass(frozen=True)
class Restructure(Attack):
    """Change the weights so that the function stays: channels, heads, streams and tokens."""

    summary: ClassVar[str] = "rebuild the network: same outputs, other weights"
    expects: ClassVar[str] = (
        "mild rescaling is survived; the rest destroys the mark until the owner aligns the model"
    )
    dial: ClassVar[str] = "amount"
    preserves: ClassVar[bool] = True
    """`launch` compares outputs before and after when there is data."""

    how: Manner = option(PERMUTE, "what is done to channels, heads and streams", choices=HOW)
    amount: float = option(
        1.0,
        "share of channels or tokens (permute, flip, rotate, vocabulary), a of e^U(-a,a) (rescale),"
        " channels added to each layer (dummy, split, duplicate, all), share of the way to equal"
        " norms (equalise)",
        low=0,
        high=10_000,
    )
    heads: int = option(
        0, "attention heads (0: as the model's configuration or its width tells)", low=0
    )

    def __post_init__(self) -> None:
        """Refuse amounts that this way of rebuilding has no meaning for."""
        super().__post_init__()
        if self.how in SHARES and not 0 < self.amount <= 1:
            raise ParameterError(f"amount must be a share for {self.how}, over 0 and up to 1")
        fewest = COUNTS.get(self.how)
        if fewest is not None and (self.amount < fewest or self.amount != int(self.amount)):
            raise ParameterError(
                f"amount must be a whole number from {fewest} for {self.how}: channels per layer"
            )
        if self.how == RESCALE and not 0 < self.amount <= 10:
            raise ParameterError("amount must be over 0 and up to 10 for rescale: a of e^U(-a,a)")

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """Each way at a few strengths."""
        return tuple(cls(how, amount) for how, amounts in _SWEEP.items() for amount in amounts)

    @property
    def variant(self) -> str:
        """The way of rebuilding."""
        return self.how

    def run(self, scene: Scene) -> Outcome:
        """Recognise the structure, change what touches the targets."""
        work = Rebuilding.on(scene, self.heads)
        touched, channels = WAYS[self.how](work, self.amount)
        structure = work.structure
        if not touched:
            raise AttackError(_nothing(self.how, structure))
        what = "tokens" if self.how == VOCABULARY else "channels"
        notes = [f"{structure.family}: {touched} groups, {channels} {what}"]
        notes += [_RENUMBERED] if work.numbers else []
        figures = {"groups": float(touched), what: float(channels)}
        return work.outcome(scene, "; ".join((*notes, *structure.notes)), figures)


def _nothing(how: str, structure: Structure) -> str:
    """Why nothing could be done."""
    if UNKNOWN in structure.notes and "heads" in _WANTS[how]:
        return (
            f"{how} found nothing to change beside the tensors to attack, and the heads of this"
            f" {structure.family} are not known: give heads=..., or keep the model's config.json"
        )
    why = f" ({'; '.join(structure.notes)})" if structure.notes else ""
    return (
        f"{how} needs {_WANTS[how]} beside the tensors to attack, and this {structure.family} has"
        f" none there{why}: use another way, or attack all tensors"
    )
