"""Clean: no mark at all, under the same contract, as the control of every comparison."""

from typing import ClassVar

from neuralmark.core.readout import Array, Known
from neuralmark.schemes.contract import Facts
from neuralmark.schemes.neuralmark import NeuralMark


class Clean(NeuralMark):
    """Reads like NeuralMark and writes nothing: what it finds is chance."""

    facts: ClassVar[Facts] = Facts(
        origin="control of every comparison",
        bit="what NeuralMark would read",
        needs="the weights",
        survives="nothing is there to survive",
        costs="nothing",
        proves="nothing",
    )
    theory: ClassVar[str] = "nothing is written, so every match is chance"
    marks: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    writes: ClassVar[bool] = False
    plain: ClassVar[bool] = False

    def loss(self, known: Known, pooled: Array, step: int = 0) -> Array:
        """Nothing to reach."""
        return 0.0 * pooled.sum()
