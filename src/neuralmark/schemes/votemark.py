"""VoteMark (Li et al. 2024): VanillaMark under noise, read by majority. A reconstruction.

Only the idea is published in what we could read, so this is our reconstruction: in training, the
loss is the mean of T VanillaMark losses, each with fresh Gaussian noise on the averaged weights;
in reading, T noisy read-outs vote on every bit. The noise has `noise` times the deviation of the
averaged weights. In reading it follows from the key, so that everybody reads the same.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from neuralmark.core import readout
from neuralmark.core.key import Mark, Parameters, Terms, bell_matrix
from neuralmark.core.readout import Array, Known, namespace
from neuralmark.errors import ParameterError
from neuralmark.schemes.contract import Arrays, Facts
from neuralmark.schemes.vanillamark import VanillaMark

MAX_VOTES = 999


class VoteMark(VanillaMark):
    """VanillaMark with noise and majority voting (reconstructed)."""

    facts: ClassVar[Facts] = Facts(
        origin="Li et al. 2024",
        bit="the majority of T VanillaMark read-outs under noise",
        needs="the weights",
        survives="half pruned by size, quantisation, fine-tuning, scaling; half pruned at random"
        " and rearranged channels with an anchor only; 90 % pruned or second marks in"
        " its layer destroy it, noise may",
        costs="files in seconds; T read-outs at every step of a training",
        proves="nothing as published: matrix and bits are free; with a derived key the exact bound;"
        " no certified radius",
        reconstruction=True,
    )
    theory: ClassVar[str] = VanillaMark.theory
    linear: ClassVar[bool] = False
    plain: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, Any]] = {"noise": 0.5, "votes": 11}

    def check(self, parameters: Parameters) -> None:
        """Votes must be odd, so that there is a majority."""
        super().check(parameters)
        votes, noise = parameters.setting("votes"), parameters.setting("noise")
        if type(votes) is not int or not 1 <= votes <= MAX_VOTES or votes % 2 == 0:
            raise ParameterError(f"votes must be an odd number up to {MAX_VOTES}, not {votes!r}")
        if not 0 <= noise <= 100:
            raise ParameterError(f"noise must be from 0 to 100 deviations, not {noise!r}")

    def derive(self, secret: bytes, terms: Terms) -> Mark:
        """VanillaMark's, and the noise of the read-outs."""
        mark = super().derive(secret, terms)
        return _with_noise(mark, terms.transcript(b"neuralmark/noise/2", secret))

    def chosen(self, arrays: Arrays, terms: Terms) -> Mark:
        """The maker's arrays; the noise follows from them."""
        mark = super().chosen(arrays, terms)
        return _with_noise(mark, b"neuralmark/noise/raw/1" + arrays["matrix"].tobytes())

    def logits(self, known: Known, pooled: Array) -> Array:
        """The mean of T votes of ±1 on every bit."""
        z = _noisy(known, pooled, known.extra["noise"]) @ known.matrix
        return namespace(z).sign(z).mean(0)

    def loss(self, known: Known, pooled: Array, step: int = 0) -> Array:
        """The mean of T losses, under noise that is new at every step."""
        torch = namespace(pooled)
        generator = torch.Generator().manual_seed(step)
        shape = known.extra["noise"].shape
        noise = torch.randn(shape, generator=generator).to(pooled)
        return readout.loss(_noisy(known, pooled, noise) @ known.matrix, known.bits)


def _with_noise(mark: Mark, seed: bytes) -> Mark:
    rounds = mark.parameters.setting("votes")
    noise = bell_matrix(seed, rounds, len(mark.matrix))
    return Mark(mark.parameters, mark.matrix, mark.bits, {**mark.extra, "noise": noise})


def _noisy(known: Known, pooled: Array, noise: Array) -> Array:
    """The pooled weights T times, each under its own noise."""
    centred = pooled - pooled.mean()
    deviation = (centred * centred).mean() ** 0.5
    if hasattr(deviation, "detach"):
        deviation = deviation.detach()
    return pooled + known.settings["noise"] * deviation * noise
