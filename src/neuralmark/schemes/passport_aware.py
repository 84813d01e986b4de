"""Passport-aware normalisation (Zhang, Chen, Liao, Zhang, Feng, Hua and Yu 2020).

As DeepIPR's second version, with two changes. The private branch sends γ and β through one MLP
without biases (a quarter of the channels, LeakyReLU); the bits are the signs of γ *before* it. And
it counts means and variances of its own, so the deployed network is a plain one with batch norms.

The MLP belongs to the claimant, who may bring any: `forge-passport` takes one that gives the
deployed network's own γ and β for any signature, without data.
"""

from typing import ClassVar

from neuralmark.core.readout import Array
from neuralmark.schemes._passports import PassportScheme
from neuralmark.schemes.contract import Facts


class PassportAware(PassportScheme):
    """Signs of γ before an MLP of the owner's own."""

    facts: ClassVar[Facts] = Facts(
        origin="Zhang et al. 2020",
        bit="the factor that a passport gives an output channel, before the private MLP",
        needs="the weights; for the accuracy under passports a live model",
        survives="half pruned by size, noise, fine-tuning, a second mark, scaling; half pruned"
        " at random, 90 % by size or eight second marks with 512 bits only; rearranged"
        " channels with an anchor only; a trained passport is its layer's main direction"
        " and goes with it (deflate): take four rounds",
        costs="files in seconds; one output channel for each bit; a private branch doubles a"
        " training",
        proves="nothing as published: passports, MLP and bits are free, and found in closed form;"
        " with a derived key the exact bound, and a certified radius; accuracy proves nothing",
    )
    theory: ClassVar[str] = (
        "none as published: passports, the private MLP and the bits may be chosen freely; a key"
        " that derives the passports and hashes the bits last matches a foreign model like fair"
        " coins, and the MLP takes no part in the match"
    )
    hidden: ClassVar[int] = 4

    def pooled_over(self, weights: Array, windows: Array) -> Array:
        """The spatial mean."""
        return weights @ windows.mean(-1)
