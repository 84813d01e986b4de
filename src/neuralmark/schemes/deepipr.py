"""DeepIPR (Fan, Ng and Chan 2019; with Xu and Yang 2021): passports in the place of norms.

γ and β of a norm are the spatial means of conv(W, s), W the convolution before it. Three versions:
in the first, passports ship with the network and are used whenever it runs. In the second, the
deployed network has norms as usual, and passports are a second branch over the same weights, kept
by the owner; means and variances are shared, so group norms are advised. The third adds triggers
with labels of the owner's own, to raise a suspicion from outside (`Passports.suspicion`).

A claimant who chooses passports and bits has no bound: `forge-passport` finds both in closed form.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from neuralmark.core.key import Parameters
from neuralmark.core.readout import Array
from neuralmark.errors import ParameterError
from neuralmark.schemes._passports import PassportScheme
from neuralmark.schemes.contract import Facts

VERSIONS = (1, 2, 3)


class DeepIPR(PassportScheme):
    """Signs of γ, the mean of a convolution over its passport."""

    facts: ClassVar[Facts] = Facts(
        origin="Fan et al. 2019 and 2021, versions 1 to 3",
        bit="the factor that a passport gives an output channel",
        needs="the weights; for the accuracy under passports a live model",
        survives="half pruned by size, noise, fine-tuning, a second mark, scaling; half pruned"
        " at random, 90 % by size or eight second marks with 512 bits only; rearranged"
        " channels with an anchor only; a trained passport is its layer's main direction"
        " and goes with it (deflate): take four rounds",
        costs="files in seconds; one output channel for each bit; a private branch doubles a"
        " training",
        proves="nothing as published: passports and bits are free, and found in closed form; with"
        " a derived key the exact bound, and a certified radius; accuracy proves nothing",
    )
    theory: ClassVar[str] = (
        "none as published: passports and bits may be chosen freely, and passports that fit are"
        " found in closed form for any model; a key that derives the passports and hashes the bits"
        " last matches a foreign model like fair coins"
    )
    settings: ClassVar[Mapping[str, Any]] = {"side": 8, "version": 2}
    own_statistics: ClassVar[bool] = False
    asking: ClassVar[str] = "own={'version': 3}"

    def check(self, parameters: Parameters) -> None:
        """One of the three versions."""
        super().check(parameters)
        if parameters.setting("version") not in VERSIONS:
            raise ParameterError(f"version must be 1, 2 or 3, not {parameters.setting('version')}")

    def asks(self, parameters: Parameters) -> bool:
        """The third version does."""
        return bool(parameters.setting("version") == 3)

    def ships(self, parameters: Parameters) -> bool:
        """The first version's passports do."""
        return bool(parameters.setting("version") == 1)

    def pooled_over(self, weights: Array, windows: Array) -> Array:
        """The spatial mean."""
        return weights @ windows.mean(-1)
