"""Whether a trained mark can be found without the key, and erased: published filter and stream.

    python -m benchmarks.expose --data DIR [--work DIR] [--json]

DIR holds CIFAR-10; networks that are missing in the work folder are trained first (one or two
minutes each). The attack `expose` knows source, parameters and layer, but no key. Its peers: clean
networks, and erasing with a b that is not the key's. Must be reached: under the published (tiled)
filter at least 250 of the 256 bits of b are read off the weights, and erasing leaves fewer
than 227 bits at a loss of at most 2 points; under the stream filter the scores by residue and by
period find the carriers with an AUC of at most 0.55, and at least 227 bits are left. Scores that
look for something else than the filter (outliers above all) are told without a target, and so is
what a neighbouring release without the mark shows.
"""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import _networks
from benchmarks._common import Report, parser
from benchmarks._networks import NAME, Network, Setting
from neuralmark import attacks
from neuralmark.attacks import Data, Result
from neuralmark.attacks.engine.subject import subject_of
from neuralmark.attacks.expose import Expose
from neuralmark.attacks.tools.locating import erase, locate, two_sided_auc
from neuralmark.attacks.tools.tracing import Guess, positions_under, row_scales
from neuralmark.checkpoints.readers.memory import MemoryCheckpoint
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Mark
from neuralmark.errors import NeuralMarkWarning
from neuralmark.marking.reading import FileSuspect
from neuralmark.marking.verification import examine

Array = npt.NDArray[Any]

RECOVERED, BOUNDARY, LOSS, HIDDEN = 250, 227, 0.02, 0.55
FILTER = ("residues", "period")
"""The scores that follow the filter."""
OTHERS = ("outliers", "spectral", "margins", "kurtosis", "ks", "low_bits")
"""Scores that follow something else in the file."""
BESIDE = ("base", "moved")
"""Scores that need a network without the mark beside it."""
STRANGER = 7
"""Number of a key that marked nothing."""
SETTINGS = (
    *_networks.TILED,
    *_networks.GRADIENT[1:],
    _networks.PROJECTION[1],
    *_networks.STREAM4,
    *_networks.AGAIN,
)


@dataclass(frozen=True, eq=False)
class Case:
    """One network, what `expose` made of it, and what the truth says of its guesses."""

    setting: Setting
    result: Result
    recovered: int
    """Bits of the guessed b that are those of the key; 128 by chance."""
    wrong: int
    """Bits left after erasing with a stranger's b."""
    scores: dict[str, float]
    """AUC of each score for the true carriers."""

    @property
    def left(self) -> int:
        """Bits after the attack."""
        return 0 if self.result.after is None else self.result.after.matched

    @property
    def loss(self) -> float:
        """Share of the test images lost."""
        return (self.result.accuracy_before or 0.0) - (self.result.accuracy_after or 0.0)


def guess_of(mark: Mark) -> Guess:
    """What the attacker knows of the mark."""
    p = mark.parameters
    return Guess(p.bits, p.pools, (p.rounds,))


def recovered(scores: Array, mark: Mark) -> int:
    """How many bits of b the sizes of the weights tell; a score above 1 is a supposed carrier."""
    guessed = np.zeros(len(mark.bits), np.uint8)
    guessed[np.flatnonzero(scores > 1) % len(guessed)] = 1
    return int((guessed == mark.bits).sum())


def after_stranger(setting: Setting, network: Network, w: Array) -> int:
    """Bits left when the carriers of another b are levelled: what erasing does by itself."""
    other = Setting("tiled", setting.rounds, number=STRANGER).key
    assert other is not None
    assert network.key is not None
    p = other.parameters
    bits = other.at(((NAME, w.shape),)).bits
    at = positions_under(bits, p.rounds, w.size, p.pools)
    made = erase(w, at, p.pools, scales=row_scales(w).reshape(-1))
    weights = {**subject_of(network.model).weights, NAME: made}
    suspect = FileSuspect(MemoryCheckpoint(weights), "erased by a stranger's b")
    return examine(suspect, network.key, claim=network.claim).matched


def attack(network: Network, data: Data) -> Result:
    """Let `expose` look at the marked layer."""
    return attacks.launch(
        Expose(),
        network.model,
        network.key,
        options=attacks.LaunchOptions(tensors=[NAME], demand=False),
        claim=network.claim,
        data=data,
    )


def measure(setting: Setting, network: Network, data: Data, beside: Sequence[Network]) -> Case:
    """Attack one network, then compare its guesses with the key."""
    assert network.key is not None
    w = network.weight.numpy()
    mark = network.key.at(((NAME, w.shape),))
    carriers = Carriers.of(mark, w.size).positions()
    guess = guess_of(mark)
    found = {name: locate(name, w, guess=guess) for name in (*FILTER, *OTHERS)}
    scores = {name: two_sided_auc(each, carriers) for name, each in found.items()}
    for number, other in enumerate(beside):
        for name in BESIDE:
            moved = locate(name, w, other.weight.numpy(), guess)
            scores[f"{name} {number}"] = two_sided_auc(moved, carriers)
    result = attack(network, data)
    read = recovered(found["residues"], mark)
    return Case(setting, result, read, after_stranger(setting, network, w), scores)


def percent(share: float | None) -> str:
    """A share of the test images."""
    return "-" if share is None else f"{100 * share:.2f} %"


def tell(report: Report, cases: Sequence[Case], clean: dict[str, Result]) -> None:
    """What was attacked and what is left; where each score looks."""
    head = ["network", "b read", "bits", "after", "wrong b", "accuracy", "after", "change"]
    head += ["residue z", "pool z", "period z", "what stood out"]
    rows = []
    for case in cases:
        assert case.result.before is not None
        rows.append(
            [
                case.setting.label,
                case.recovered,
                case.result.before.matched,
                case.left,
                case.wrong,
                *figures(case.result),
            ]
        )
    rows += [[label, "-", "-", "-", "-", *figures(result)] for label, result in clean.items()]
    report.table(head, rows, "expose: find the carriers, erase what is found")
    for title, names in (
        ("AUC of scores that follow the filter, for the true carriers", FILTER),
        ("AUC of other scores", OTHERS),
        (
            "AUC with a clean network of the same seed beside (0: as old, 1: an epoch longer)",
            [f"{name} {number}" for name in BESIDE for number in (0, 1)],
        ),
    ):
        rows = [[c.setting.label, *(f"{c.scores[name]:.3f}" for name in names)] for c in cases]
        report.table(["network", *names], rows, title)


def figures(result: Result) -> list[str]:
    """The cells that clean networks have too."""
    told = result.figures
    return [
        percent(result.accuracy_before),
        percent(result.accuracy_after),
        f"{100 * result.change:.1f} %",
        *(f"{told.get(name, np.nan):.1f}" for name in ("residue_z", "pool_z", "period_z")),
        result.note.removeprefix("stood out: ").split(":")[0],
    ]


def judge(report: Report, case: Case) -> None:
    """The targets of one network."""
    label, left = case.setting.label, case.left
    if case.setting.filter == "stream":
        seen = max(case.scores[name] for name in FILTER)
        report.target(
            f"{label}: AUC by the filter", seen, f"at most {HIDDEN}", passed=seen <= HIDDEN
        )
        report.target(f"{label}: bits left", left, f"at least {BOUNDARY}", passed=left >= BOUNDARY)
        return
    read, loss = case.recovered, 100 * case.loss
    report.target(
        f"{label}: bits of b read", read, f"at least {RECOVERED}", passed=read >= RECOVERED
    )
    report.target(f"{label}: bits left", left, f"below {BOUNDARY}", passed=left < BOUNDARY)
    report.target(
        f"{label}: points lost", loss, f"at most {100 * LOSS:g}", passed=case.loss <= LOSS
    )


def main(arguments: list[str] | None = None) -> int:
    chosen = _networks.options(parser(__doc__)).parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", NeuralMarkWarning)
    report = Report("finding trained marks without the key", chosen.json)
    folder: Path = chosen.data
    data = _networks.examples(folder)
    clean = {
        each.label: _networks.network(folder, each, chosen.work)
        for each in (_networks.CLEAN, _networks.LONGER)
    }
    cases = [
        measure(
            setting,
            _networks.network(folder, setting, chosen.work),
            data,
            list(clean.values()),
        )
        for setting in SETTINGS
    ]
    tell(report, cases, {label: attack(each, data) for label, each in clean.items()})
    for case in cases:
        judge(report, case)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
