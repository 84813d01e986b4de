"""Ours: fitting a key to a model without a mark, and the private filter's forgery."""

from typing import ClassVar

from neuralmark.lab.contract import Experiment, Results, Table
from neuralmark.lab.plan.preset import Preset
from neuralmark.lab.plan.spec import Probe, Spec, settings

SHAPE = "256x256x3x3"
CASES = {
    "fit, R=1, contiguous, k=512": settings(attack="forge-fit", shape=SHAPE),
    "fit, R=2, contiguous, k=512": settings(attack="forge-fit", shape=SHAPE, rounds=2),
    "fit, R=1, strided, k=4096": settings(
        attack="forge-fit", shape=SHAPE, pools=4096, pooling="strided"
    ),
    "fit, native key": settings(attack="forge-fit", shape=SHAPE, against="native"),
    "order of 128 tensors": settings(attack="forge-order", shape="64x64x3x3", count=128),
    "order, native key": settings(
        attack="forge-order", shape="64x64x3x3", count=128, against="native"
    ),
    "identity, private filter": settings(attack="forge-identity", shape=SHAPE),
    "identity, hashed filter": settings(attack="forge-identity", shape=SHAPE, filter="tiled"),
}


class ChosenKey(Experiment):
    """What the published verification lets through, and what native keys leave."""

    answers: ClassVar[str] = "can a key be fitted to a model that carries no mark?"
    paper: ClassVar[str] = "ours (and the paper's case for the hashed filter)"

    def runs(self, preset: Preset) -> list[Spec]:
        """One forger for each case."""
        return [Probe("forge", case, seed=1) for case in CASES.values()]

    def tables(self, preset: Preset, results: Results) -> list[Table]:
        """Bits, the boundary, and what verification says here."""
        rows = []
        for name, case in CASES.items():
            row = results.one(Probe("forge", case, seed=1))
            if row:
                passes = "passes" if row["matched"] >= row["boundary"] else "fails"
                rows.append((name, f"{row['matched']} of {row['bits']}", passes, row["status"]))
        heads = ("forger", "bits", "published check", "status here")
        return [Table("Forging on a layer without a mark", heads, tuple(rows))]
