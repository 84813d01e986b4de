"""Several attacks, one after the other: each is given what the one before it left.

    neuralmark attack combine MODEL --steps "restructure all 8 + noise 0.3 + quantize int8"

A step is the name of an attack and its settings, in their order or as name=value.
"""

import re
from dataclasses import Field, dataclass, fields, replace
from typing import Any, ClassVar, get_type_hints

import numpy as np

from neuralmark.attacks import get, name_of
from neuralmark.attacks.contract import WEIGHTS, Attack, Outcome, Scene, Weights, option
from neuralmark.attacks.engine.subject import Subject
from neuralmark.errors import ParameterError

REBUILT = "restructure all 8"
ADAPTED = "adapt 0.1 + convert factor"
DAMAGE = ("noise 0.3", "prune 0.3", "quantize int8", "finetune")
_JOINT = re.compile(r"(?<!\S)\+(?!\S)")
_SWITCH = {"yes": True, "true": True, "no": False, "false": False}


@dataclass(frozen=True)
class Combine(Attack):
    """One attack after the other on the same model."""

    summary: ClassVar[str] = "several attacks, one after the other"
    expects: ClassVar[str] = (
        "with the anchor, what its damaging steps leave; else what rebuilding does"
    )

    steps: str = option(
        f"{REBUILT} + {DAMAGE[0]}",
        "the attacks in order, joined by ' + ': a name, then settings in order or as name=value",
    )

    def __post_init__(self) -> None:
        """Refuse steps that are no attacks on weights."""
        super().__post_init__()
        object.__setattr__(self, "steps", " ".join(self.steps.split()))
        _steps(self.steps)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """Damage before the network is rebuilt, and after; and the adaptive attacker's worst."""
        before = [f"{damage} + {REBUILT}" for damage in DAMAGE]
        after = [f"{REBUILT} + {damage}" for damage in DAMAGE]
        return tuple(cls(steps) for steps in (*before, *after, ADAPTED))

    @property
    def variant(self) -> str:
        """The steps."""
        return self.steps

    @property
    def parts(self) -> tuple[Attack, ...]:
        """The steps, as attacks."""
        return _steps(self.steps)

    @property
    def keeps_task(self) -> bool:
        """Whether all of them do."""
        return all(part.keeps_task for part in self.parts)

    def run(self, scene: Scene) -> Outcome:
        """Let each step attack what the last one left."""
        subject = Subject("the model", scene.weights, {}, scene.model)
        target, made = scene.target, []
        for step in self.parts:
            given = replace(scene, weights=subject.weights, model=subject.module, target=target)
            outcome = step.run(given)
            made.append((name_of(step), outcome))
            subject = subject.after(outcome)
            target = _targets(target, given.weights, subject)
        notes = [f"{name}: {outcome.note}" for name, outcome in made if outcome.note]
        figures = {f"{name} {n}": v for name, each in made for n, v in each.figures.items()}
        return Outcome(
            weights=subject.weights if subject.module is None else None,
            model=subject.module,
            gone=tuple(name for name in scene.weights if name not in subject.weights),
            steps=sum(outcome.steps for _, outcome in made),
            queries=sum(outcome.queries for _, outcome in made),
            note="; ".join(notes),
            figures=figures,
        )


def _targets(target: tuple[str, ...], former: Weights, subject: Subject) -> tuple[str, ...]:
    """The targets that are still there, and the matrices that came in."""
    left = [name for name in target if name in subject.weights]
    return (*left, *(name for name in subject.select(None) if name not in former))


def _steps(text: str) -> tuple[Attack, ...]:
    return tuple(_step(words.split()) for words in _JOINT.split(text.strip()))


def _step(words: list[str]) -> Attack:
    if not words:
        raise ParameterError("steps must be attacks joined by ' + ', as in 'prune 0.3 + noise 0.1'")
    attack = get(words[0])
    if attack.kind != WEIGHTS or attack is Combine:
        raise ParameterError(
            f"{words[0]!r} cannot be a step: it does not change the weights itself"
        )
    return attack(**_settings(attack, words[1:]))


def _settings(attack: type[Attack], words: list[str]) -> dict[str, Any]:
    """Values by name: those without one belong to the fields in their order."""
    own, types = {each.name: each for each in fields(attack)}, get_type_hints(attack)
    free, chosen = iter(own), dict[str, Any]()
    for word in words:
        name, is_named, value = word.rpartition("=")
        name = name.replace("-", "_") if is_named else next(free, "")
        if name not in own or name in chosen:
            raise ParameterError(
                f"{word!r} is no setting of {name_of(attack)!r}, or one too many: it has"
                f" {', '.join(own) or 'none'}"
            )
        chosen[name] = _value(own[name], types[name], value)
    return chosen


def _value(field: "Field[Any]", kind: Any, text: str) -> Any:
    """A word as a value of a setting's type; what is none of that type stays a word."""
    if kind is bool:
        return _SWITCH.get(text.lower(), text)
    if kind not in (int, float):
        return text
    try:
        return float(text) if kind is float else np.array(text, float).item()
    except ValueError:
        meaning = field.metadata.get("meaning", "")
        raise ParameterError(f"{field.name} must be a number, not {text!r} ({meaning})") from None
