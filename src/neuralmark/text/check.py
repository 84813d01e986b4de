"""Hold our scores against those of the reference scorer: `python -m neuralmark.text.check DIR`.

DIR holds expected_scores.json ({"scores": {NAME: {"BLEU": …}}}) and for each name NAME_hyp.txt,
one hypothesis per line, and NAME_refs.txt, one reference per line, with an empty line between
hypotheses.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from neuralmark.errors import InputError, NeuralMarkError
from neuralmark.text import metrics

METRICS = {
    "BLEU": metrics.bleu,
    "NIST": metrics.nist,
    "METEOR": metrics.meteor,
    "ROUGE_L": metrics.rouge_l,
    "CIDEr": metrics.cider,
}
Metric = Callable[[Sequence[str], Sequence[Sequence[str]]], float]
DECIMALS = 4


@dataclass(frozen=True)
class ScoreComparison:
    """One score of one corpus, theirs and ours."""

    corpus: str
    metric: str
    expected: float
    ours: float

    @property
    def agrees(self) -> bool:
        """Whether the two are the same number of four decimals."""
        return f"{self.ours:.{DECIMALS}f}" == f"{self.expected:.{DECIMALS}f}"


def compare(folder: Path) -> list[ScoreComparison]:
    """Every score that the folder expects, beside ours."""
    found = []
    for corpus, expected in _expected(folder).items():
        hypotheses = _lines(folder / f"{corpus}_hyp.txt")
        references = groups(folder / f"{corpus}_refs.txt")
        for metric, value in expected.items():
            if metric not in METRICS:
                raise InputError(f"{folder} expects {metric!r}: known are {', '.join(METRICS)}")
            ours = METRICS[metric](hypotheses, references)
            found.append(ScoreComparison(corpus, metric, value, ours))
    return found


def groups(path: Path) -> list[list[str]]:
    """One reference per line; an empty line between the groups of two hypotheses."""
    found: list[list[str]] = [[]]
    for line in _lines(path):
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return found if found[-1] else found[:-1]


def table(found: Sequence[ScoreComparison]) -> str:
    """As text, a line a score."""
    lines = [f"{'corpus':12} {'metric':8} {'expected':>10} {'ours':>14}"]
    for row in found:
        verdict = "agrees" if row.agrees else "DIFFERS"
        lines.append(
            f"{row.corpus:12} {row.metric:8} {row.expected:10.4f} {row.ours:14.8f}  {verdict}"
        )
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Print the table; 0 if all agree, 1 if one differs, an error's code otherwise."""
    if len(words) != 1:
        print("usage: python -m neuralmark.text.check DIR", file=sys.stderr)
        return 2
    began = time.perf_counter()
    try:
        found = compare(Path(words[0]))
    except NeuralMarkError as error:
        print(f"neuralmark: {type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    print(table(found))
    agreed = sum(row.agrees for row in found)
    print(f"{agreed} of {len(found)} agree ({time.perf_counter() - began:.1f} s)")
    return 0 if agreed == len(found) else 1


def _expected(folder: Path) -> dict[str, dict[str, float]]:
    path = folder / "expected_scores.json"
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))["scores"]
        return {
            str(corpus): {str(name): float(value) for name, value in row.items()}
            for corpus, row in scores.items()
        }
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f'{path} is not {{"scores": {{NAME: {{METRIC: NUMBER}}}}}}') from None


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8") from None
    return text.removesuffix("\n").split("\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
