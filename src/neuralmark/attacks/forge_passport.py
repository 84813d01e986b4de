"""Passports of one's own for a network that somebody else trained, in closed form, without data.

γ is linear in the passport, and a layer has more weights in a row than it has rows: so there is a
passport for any γ. With a private MLP (passport-aware) the signature is free, and the MLP that
turns its γ and β into those of the deployed network is solved for: the forged private branch *is*
the deployed network, with its accuracy to the last digit. Without an MLP (DeepIPR) the forger takes
a passport that gives the deployed network's own γ and β, and calls their signs his signature.
Trapdoor normalisation hashes the bits from the passport, and a native key derives it: there only
drawing is left for the bits. The MLP is solved for all the same: any passport has the right
accuracy.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from neuralmark import schemes
from neuralmark.attacks.contract import KEY, Attack, AttackKind, Outcome, Scene, option
from neuralmark.attacks.engine.subject import taking
from neuralmark.attacks.tools.forging import (
    AGAINST,
    Facing,
    Ground,
    best_drawn,
    chosen_weights,
    ground_at,
    summary,
)
from neuralmark.checkpoints.readers.memory import MemoryCheckpoint
from neuralmark.core.key import Float, Parameters, Placement, Terms
from neuralmark.core.passports import packed
from neuralmark.errors import AttackError, MissingNormError
from neuralmark.keys.key import Key
from neuralmark.marking.placement import auto, catalogue, placement_of
from neuralmark.schemes import PassportScheme

if TYPE_CHECKING:
    from neuralmark.training.passports import Passports

Forged = Literal["deepipr", "passport-aware", "trapdoor"]
FORGED: tuple[Forged, ...] = get_args(Forged)
_TRIES = 200


@dataclass(frozen=True)
class ForgePassport(Attack):
    """Solve for passports, and for the private MLP."""

    summary: ClassVar[str] = "solve for passports that fit the weights, without data"
    expects: ClassVar[str] = "free passports: 100 % where rows are longer than many; hashed: chance"
    kind: ClassVar[AttackKind] = KEY

    scheme: Forged = option("passport-aware", "whose verification is faced", choices=FORGED)
    against: Facing = option("published", "what the forger faces", choices=AGAINST)

    @classmethod
    def sweep(cls) -> tuple[Attack, ...]:
        """Each scheme as published, and native keys."""
        return (*(cls(scheme) for scheme in FORGED), cls(against="native"))

    @property
    def variant(self) -> str:
        """Whose verification, and what it takes."""
        return f"{self.scheme}, {self.against}"

    def run(self, scene: Scene) -> Outcome:
        """Solve; or draw honest keys, where nothing can be solved for."""
        scheme = schemes.get(self.scheme)
        assert isinstance(scheme, PassportScheme)
        ground = _ground(scene, scheme)
        bits = ground.parameters.bits
        if self.against == "native" or not scheme.linear:
            key, counts = best_drawn(scene, ground, _TRIES)
            figures, queries = summary(counts, bits), len(counts)
            branch = _branch(scene, key, ground) if scheme.hidden else None
        else:
            (key, branch), queries = self._solved(scene, scheme, ground), 0
            figures = {"best_rate": ground.matched(key) / bits}
        if branch is not None:
            figures |= _accuracies(scene, branch)
        return Outcome(key=key, queries=queries, figures=figures, placement=ground.placement)

    def _solved(
        self, scene: Scene, scheme: PassportScheme, ground: Ground
    ) -> "tuple[Key, Passports | None]":
        """Passports for the wanted factors, and the branch that they make in a live network."""
        bits = scene.rng.integers(0, 2, ground.parameters.bits, np.uint8)
        key = _key_for(scheme, ground, bits, _signed(ground, scheme, bits, scene.rng))
        branch = _branch(scene, key, ground)
        if branch is None or scheme.hidden:
            return key, branch
        own = [
            (norm.weight.detach().double().numpy(), norm.bias.detach().double().numpy())
            for norm in branch.plain_norms
        ]
        rows = np.concatenate([gamma for gamma, _ in own])
        at = key.at(ground.placement).extra["rows"]
        key = _key_for(scheme, ground, (rows[at] > 0).astype(np.uint8), own)
        return key, _branch(scene, key, ground)


def _branch(scene: Scene, key: Key, ground: Ground) -> "Passports | None":
    """The private branch of a key in a live network with norms, its MLPs solved for."""
    if scene.model is None:
        return None
    from neuralmark.attacks.tools.ambiguity import fit_private
    from neuralmark.training.passports import Passports

    try:
        branch = Passports(scene.model, key, [name for name, _ in ground.placement])
    except MissingNormError:
        return None
    fit_private(branch)
    return branch


Factors = list[tuple[Float, Float]]
"""γ and β of every layer."""


def _ground(scene: Scene, scheme: PassportScheme) -> Ground:
    """Where the owner's mark is, or the largest layer; bits as many as there is room for."""
    known = catalogue(MemoryCheckpoint(chosen_weights(scene)))
    owner = scene.parameters
    if scene.placement and owner is not None and owner.scheme == scheme.name:
        return ground_at(scene, scene.placement, owner)
    wanted = 256 if owner is None else owner.bits
    side = {"side": 4} if scheme.name == "trapdoor" else None
    for bits in (wanted, *(b for b in (256, 160, 128, 64, 32, 16, 8) if b < wanted)):
        parameters: Parameters = scheme.parameters(bits=bits, own=side)
        placement: Placement = placement_of(auto(known, parameters).tensors)
        if placement:
            return ground_at(scene, placement, parameters)
    raise AttackError("no layer of this model takes passports: nothing to forge on")


def _signed(
    ground: Ground, scheme: PassportScheme, bits: npt.NDArray[np.uint8], rng: np.random.Generator
) -> Factors:
    """Factors of ±1 with the signs of a signature; offsets at random."""
    shapes = scheme.shapes(ground.parameters, ground.placement)
    rows = sum(shape.rows for shape in shapes)
    gamma = np.ones(rows)
    gamma[_rows(scheme, ground)] = bits * 2.0 - 1.0
    beta = rng.standard_normal(rows)
    cuts = np.cumsum([shape.rows for shape in shapes])[:-1]
    return list(zip(np.split(gamma, cuts), np.split(beta, cuts), strict=True))


def _rows(scheme: PassportScheme, ground: Ground) -> npt.NDArray[np.int64]:
    terms = Terms(ground.parameters, ground.placement)
    found: npt.NDArray[np.int64] = scheme.derive(bytes(32), terms).extra["rows"]
    return found


def _key_for(
    scheme: PassportScheme, ground: Ground, bits: npt.NDArray[np.uint8], wanted: Factors
) -> Key:
    """A raw key whose passports give the wanted factors."""
    from neuralmark.attacks.tools.ambiguity import solved

    parameters, placement = ground.parameters, ground.placement
    blank = scheme.derive(bytes(32), Terms(parameters, placement)).matrix * 0
    trial = Key.chosen(parameters, blank, bits=bits).at(placement)
    numbers, start = [], 0
    for part, (gamma, beta) in zip(scheme.passports_of(trial, placement), wanted, strict=True):
        shape = part.shape
        layer = ground.weights[start : start + shape.size]
        layer = layer if part.mask is None else layer * part.mask
        weights = layer.reshape(shape.rows, shape.inputs, -1)
        single = replace(shape, inputs=1)
        every = np.eye(shape.side**2)
        windows = np.stack([single.windows(each).mean(1) for each in every], 1)
        for factors in (gamma, beta):
            numbers.append(solved(weights, windows, factors).reshape(-1))
        start += shape.size
    flat = np.concatenate(numbers).astype(np.float32)
    return Key.chosen(parameters, packed(flat, parameters.bits), bits=bits)


def _accuracies(scene: Scene, branch: "Passports") -> dict[str, float]:
    """Of the deployed network, and of the forged private branch."""
    if scene.data is None or scene.model is None:
        return {}
    import torch

    inputs, labels = scene.data.test_inputs, scene.data.test_labels
    scene.model.eval()
    with taking(inputs), torch.no_grad():
        public, private = scene.model(inputs), branch(inputs)
    found = {"public_accuracy": public, "private_accuracy": private}
    return {
        name: float((outputs.argmax(1) == labels).double().mean())
        for name, outputs in found.items()
    }
