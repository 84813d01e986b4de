"""Whether statistics of the weights betray a mark: AUC by statistic and strength.

    python -m benchmarks.detect --data DATA [--strengths 0.5,1,2,4] [--count 24] [--json]

DATA holds `weights/*resnet20*.th` and `weights/*resnet56*.th` (akamaster/pytorch_resnet_cifar10);
without it only Gaussian tensors are tried. Tensors are cut from all large convolutions: 64·64·3·3
(default parameters), and, for more of them, 32·32·3·3 (160 bits, 320 pools, 1 round). Half of them
are the attacker's clean references, the rest are marked with a fresh key each. AUC 0.5: the
statistic says nothing; the peer of every row is the same tensor without the mark. `unison` and
`sparse` are for somebody with the model before and after. Must be reached: `nothing` (a maker that
changes nothing) at exactly 0.5, and unison at least 0.8. It is not always 1: a key that has one
carrier per pool only (3 of 220 in 64·64·3·3) moves no two weights alike.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import neuralmark
from benchmarks._common import Report, parser
from neuralmark.attacks.detect import STATISTICS, Maker, study
from neuralmark.attacks.engine.subject import read_weights
from neuralmark.checkpoints.readers.memory import MemoryCheckpoint
from neuralmark.marking.drafting import draft, plan

Array = npt.NDArray[np.float32]
NAME = "layer.weight"


@dataclass(frozen=True)
class Size:
    """Shape of the tensors, and the parameters of the keys that fit it."""

    shape: tuple[int, ...]
    parameters: neuralmark.Parameters

    @property
    def label(self) -> str:
        """For headings."""
        return "·".join(map(str, self.shape))


SIZES = (
    Size((64, 64, 3, 3), neuralmark.Parameters()),
    Size((32, 32, 3, 3), neuralmark.Parameters(bits=160, pools=320, rounds=1)),
)


def marked(size: Size, strength: float, changes: list[float]) -> Maker:
    """A maker that writes a fresh key's mark at this strength and notes the relative change."""

    def make(tensor: Array, rng: np.random.Generator) -> Array:
        del rng  # keys are never drawn from a seed
        checkpoint = MemoryCheckpoint({NAME: tensor})
        drafted = draft(
            plan(checkpoint, neuralmark.Key.new(size.parameters), [NAME]), strength=strength
        )
        changes.append(drafted.change_norm / float(np.linalg.norm(tensor)))
        raw = b"".join(drafted.edits()[NAME]())
        return np.frombuffer(raw, "<f4").reshape(tensor.shape).astype(np.float32)

    return make


def untouched(tensor: Array, rng: np.random.Generator) -> Array:
    """A maker that does nothing."""
    del rng
    return tensor


def cut(folder: Path, shape: tuple[int, ...]) -> list[Array]:
    """Pieces of this shape from every convolution of the real networks that is large enough."""
    pieces: list[Array] = []
    size = int(np.prod(shape))
    for pattern in ("*resnet56*.th", "*resnet20*.th"):
        weights = read_weights(next((folder / "weights").glob(pattern)))
        for value in weights.values():
            flat = value.reshape(-1) if value.ndim == 4 else np.empty(0, np.float32)
            whole = len(flat) // size
            pieces += [p.reshape(shape).copy() for p in flat[: whole * size].reshape(-1, size)]
    return pieces


def gaussian(count: int, shape: tuple[int, ...]) -> list[Array]:
    """Weights of no network."""
    rng = np.random.default_rng(7)
    return [np.float32(0.03) * rng.standard_normal(shape, dtype=np.float32) for _ in range(count)]


def measure(
    report: Report, name: str, size: Size, tensors: list[Array], strengths: Sequence[float]
) -> None:
    """One table: strengths down, statistics across."""
    label = f"{name} {size.label}"
    rng = np.random.default_rng(0)
    order = rng.permutation(len(tensors))
    references = [tensors[i] for i in order[: len(order) // 2]]
    tested = [tensors[i] for i in order[len(order) // 2 :]]
    changes: dict[str, list[float]] = {f"{strength:g}": [] for strength in strengths}
    makers: dict[str, Maker] = {"nothing": untouched}
    makers |= {
        f"{strength:g}": marked(size, strength, changes[f"{strength:g}"]) for strength in strengths
    }
    found = study(makers, tested, rng, references=references)
    columns = [*STATISTICS, "unison", "sparse"]
    rows = []
    for maker, scores in found.items():
        change = f"{100 * np.mean(changes[maker]):.1f} %" if maker in changes else "0 %"
        rows.append([maker, change, *(f"{scores[column]:.3f}" for column in columns)])
    head = ["strength", "change", *columns]
    report.table(head, rows, f"{label}: {len(tested)} marked, {len(references)} references")
    count = len(tested)
    error = ((2 * count + 1) / (12 * count * count)) ** 0.5
    report.note(f"  scatter of an AUC of {count} against {count} that says nothing: {error:.3f}")
    odd = max(abs(found["nothing"][name] - 0.5) for name in STATISTICS)
    report.target(f"{label}, nothing: largest |AUC - 0.5|", odd, "0", passed=odd == 0)
    least = min(found[f"{strength:g}"]["unison"] for strength in strengths)
    report.target(f"{label}, unison: least AUC", least, "at least 0.8", passed=least >= 0.8)


def numbers(text: str) -> list[float]:
    """Comma-separated numbers."""
    return [float(part) for part in text.split(",") if part]


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--data", type=Path, help="folder with the networks' weights")
    options.add_argument("--strengths", type=numbers, default=[0.5, 1.0, 2.0, 4.0])
    options.add_argument("--count", type=int, default=48, help="how many Gaussian tensors")
    chosen = options.parse_args(arguments)
    report = Report("whether statistics betray a mark (AUC)", chosen.json)
    for size in SIZES:
        if chosen.data is not None:
            pieces = cut(chosen.data, size.shape)
            measure(report, "CIFAR ResNets", size, pieces, chosen.strengths)
        measure(report, "Gaussian", size, gaussian(chosen.count, size.shape), chosen.strengths)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
