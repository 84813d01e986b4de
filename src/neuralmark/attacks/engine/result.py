"""What came of an attack: its cost, the verdicts before and after, and whether the mark held."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralmark.attacks.contract import KEY, AttackKind, Weights
from neuralmark.keys.key import Key
from neuralmark.records import Verdict

if TYPE_CHECKING:
    import torch

    from neuralmark.triggers.triggers import Triggers


@dataclass(frozen=True, eq=False)
class Result:
    """An attack, what it cost, and what verification says before and after.

    Attributes:
        attack: Name of the attack.
        kind: `weights`, `key` or `test`.
        settings: Its settings, by name.
        strength: How strong it was: the value of its dial.
        variant: What tells this sweep from others of the same attack.
        before: The verdict before; None without a key.
        after: The verdict afterwards, by position; on the forged key if there is one; None if there
            is none.
        unreadable: Why there is no verdict afterwards: the marked tensors are gone.
        seconds: What the attack took, all parts of an interrupted one together.
        steps: How many training steps it took.
        queries: How often the model was asked.
        change: ‖Δw‖/‖w‖ of the attacked tensors (with a new task: of the marked ones); infinite
            when most changed shape.
        earlier: How many of its seconds passed before it was last interrupted.
        accuracy_before: Accuracy on the test data before; None without data.
        accuracy_after: The same afterwards.
        note: A remark of the attack on how it went.
        figures: Whatever else the attack measured, by name.
        weights: The new tensors, if it made any.
        model: The new model, if it made one.
        key: The forged key, if it made one.
        triggers: The inputs at which the forged key reads the model, where it reads activations.
        anchored: Whether the copy was read with an anchor too, after it was put back in order.
        aligned: The verdict with the anchor, by position and aligned; None if there is none.

    Examples:
        >>> prune = neuralmark.attacks.get("prune")(share=0.2)
        >>> result = neuralmark.attacks.launch(prune, "marked.safetensors", key)
        >>> result.attack, result.before.status, result.held
        ('prune', 'verified', True)
    """

    attack: str
    kind: AttackKind
    settings: Mapping[str, Any]
    strength: float
    variant: str
    before: Verdict | None
    after: Verdict | None
    unreadable: str
    seconds: float
    steps: int
    queries: int
    change: float
    earlier: float = 0.0
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    note: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    weights: Weights | None = field(default=None, repr=False)
    model: "torch.nn.Module | None" = field(default=None, repr=False)
    key: Key | None = field(default=None, repr=False)
    triggers: "Triggers | None" = None
    anchored: bool = False
    aligned: Verdict | None = None

    @property
    def survived(self) -> bool:
        """Whether the mark still is what it was before: proven, or (for raw keys) matching."""
        before, after = self.before, self.after
        return before is not None and after is not None and after.status == before.status

    @property
    def survived_aligned(self) -> bool | None:
        """The same of the verdict with the anchor; None where there is no anchor."""
        if not self.anchored or self.before is None:
            return None
        return self.aligned is not None and self.aligned.status == self.before.status

    @property
    def held(self) -> bool:
        """Whether the owner is as well off as before; without a key, nothing was asked."""
        if self.kind == KEY:
            return self.after is None or not self.after.verified
        return self.before is None or self.survived

    def to_dict(self) -> dict[str, Any]:
        """For JSON; weights, model and key are left out.

        Returns:
            Plain values, by name.

        Examples:
            >>> noise = neuralmark.attacks.get("noise")(0.1)
            >>> neuralmark.attacks.launch(noise, "marked.safetensors", key).to_dict()["settings"]
            {'amount': 0.1}
        """
        return {
            "attack": self.attack,
            "kind": self.kind,
            "settings": dict(self.settings),
            "strength": self.strength,
            "variant": self.variant,
            "survived": self.survived,
            "held": self.held,
            "survived_aligned": self.survived_aligned,
            "before": _brief(self.before),
            "after": _brief(self.after),
            "aligned": _brief(self.aligned),
            "unreadable": self.unreadable,
            "seconds": self.seconds,
            "steps": self.steps,
            "queries": self.queries,
            "change": self.change if np.isfinite(self.change) else None,
            "accuracy_before": self.accuracy_before,
            "accuracy_after": self.accuracy_after,
            "note": self.note,
            "figures": dict(self.figures),
        }


def _brief(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "status": verdict.status,
        "verified": verdict.verified,
        "matched": verdict.matched,
        "bits": verdict.bits,
        "rate": verdict.rate,
        "boundary": verdict.boundary,
        "bound_log2": verdict.bound_log2,
        "bound_holds": verdict.bound_holds,
        "certified_radius_relative": verdict.certified_radius_relative,
    }
