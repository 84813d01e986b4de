"""The modifications of the robustness part of MPAI-NNW, and the attacks that make them here.

What the standard asks for is told in docs/attacks.md, with what of it could be confirmed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from neuralmark.attacks import get, name_of
from neuralmark.attacks.contract import Attack
from neuralmark.attacks.distill import Distill
from neuralmark.attacks.finetune import Finetune
from neuralmark.attacks.noise import Noise
from neuralmark.attacks.overwrite import Overwrite
from neuralmark.attacks.prune import MAGNITUDE, RANDOM, Prune
from neuralmark.attacks.quantize import INTEGERS, Quantize
from neuralmark.attacks.rewrite import Rewrite
from neuralmark.errors import AttackError

STANDARD = "MPAI-NNW V1.0 (IEEE 3304-2023)"
RANGES = (
    "the values are ours: the standard's table of modifications and ranges could not be read, so"
    " no range is confirmed"
)

OWN_MARGIN = 2.0
"""At which an attacker writes his marks: what `embed` gives an owner's."""


@dataclass(frozen=True)
class Modifying:
    """A modification as the standard names it, and an attack for each value of its parameter."""

    name: str
    parameter: str
    attacks: tuple[tuple[float, Attack], ...]

    @property
    def attack(self) -> str:
        """Name of the attack that makes it."""
        return name_of(self.attacks[0][1])


def modifications(only: Sequence[str] | None = None) -> list[Modifying]:
    """All modifications, or those that the named attacks make."""
    every = _every()
    if only is None:
        return every
    wanted = {name_of(get(name)) for name in only}
    known = list(dict.fromkeys(each.attack for each in every))
    strange = sorted(wanted - set(known))
    if strange:
        raise AttackError(
            f"the attack {strange[0]!r} makes none of the standard's modifications: choose among"
            f" {', '.join(known)}, or leave the standard out"
        )
    return [each for each in every if each.attack in wanted]


def _every() -> list[Modifying]:
    """Weak first; those that need data at the end."""
    levels = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
    shares = (0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
    few = (0.01, 0.05, 0.1, 0.2, 0.5)
    counts = (1, 2, 4)
    quantised = [(16.0, Quantize("fp16"))]
    quantised += [(float(bits), Quantize(to, group=0)) for to, bits in INTEGERS.items()]
    made: list[tuple[str, str, Sequence[tuple[float, Attack]]]] = [
        (
            "Gaussian noise addition",
            "deviation of the noise, in deviations of the tensor",
            [(level, Noise(level)) for level in levels],
        ),
        (
            "L1 pruning",
            "share of each tensor's weights set to zero, the smallest first",
            [(share, Prune(share, MAGNITUDE)) for share in shares],
        ),
        (
            "random pruning",
            "share of each tensor's weights set to zero, at random",
            [(share, Prune(share, RANDOM)) for share in few],
        ),
        ("quantisation", "bits per weight; integers with a scale for each channel", quantised),
        (
            "watermark overwriting",
            f"marks written over it at once, each at a margin of {OWN_MARGIN:g} σz",
            [(float(n), Rewrite(OWN_MARGIN, keys=n)) for n in (*counts, 8)],
        ),
        (
            "watermark overwriting, trained",
            "marks trained over it at λ=1, η=0.001, 2 epochs",
            [(float(n), Overwrite(keys=n, classifier="keep")) for n in counts],
        ),
        (
            "fine-tuning",
            "epochs over the data given, all layers, η=0.001",
            [(float(n), Finetune(epochs=n, classifier="keep")) for n in counts],
        ),
        (
            "knowledge distillation",
            "steps of a fresh student of the same architecture",
            [(float(Distill().steps), Distill())],
        ),
    ]
    return [Modifying(name, parameter, tuple(attacks)) for name, parameter, attacks in made]
