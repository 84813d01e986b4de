"""BLEU, NIST, METEOR, ROUGE-L and CIDEr as the official scorer of the E2E challenge gives them.

`python -m neuralmark.text.check DIR` holds them against that scorer's own numbers.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from neuralmark.errors import ParameterError
from neuralmark.text import _java
from neuralmark.text._extras import need

References = Sequence[Sequence[str]]
"""For each hypothesis, one reference sentence or more."""

NIST_ORDER = 5


@dataclass(frozen=True)
class Scores:
    """The five scores of a corpus, all as fractions but NIST and CIDEr, which have no upper end."""

    bleu: float
    nist: float
    meteor: float
    rouge_l: float
    cider: float


def score(hypotheses: Sequence[str], references: References) -> Scores:
    """All five; METEOR takes some seconds to load its tables."""
    check(hypotheses, references)
    tokens = tokenized(hypotheses, references)
    return Scores(
        bleu=bleu(hypotheses, references),
        nist=nist(hypotheses, references),
        meteor=_java.meteor(tokens.hypotheses, tokens.references),
        rouge_l=_caption_score("rouge.rouge", "Rouge", tokens),
        cider=_caption_score("cider.cider", "Cider", tokens),
    )


def bleu(hypotheses: Sequence[str], references: References) -> float:
    """Corpus BLEU-4 in lower case, tokens of mteval-v13a, no smoothing, 0 to 1."""
    check(hypotheses, references)
    most = max(map(len, references))
    columns = [[r[i] if i < len(r) else None for r in references] for i in range(most)]
    found = need("sacrebleu").corpus_bleu(
        list(hypotheses), columns, smooth_method="none", lowercase=True, tokenize="13a", force=True
    )
    return float(found.score / 100)


def nist(hypotheses: Sequence[str], references: References) -> float:
    """NIST-5 in lower case, tokens of mteval-v13a.

    A matched n-gram counts as many bits as its last word tells once the words before it are known,
    in all references; short texts lose by their length against the mean reference.
    """
    check(hypotheses, references)
    split = need("sacrebleu.tokenizers.tokenizer_13a").Tokenizer13a()
    said = [split(text.lower()).split() for text in hypotheses]
    wanted = [[split(text.lower()).split() for text in several] for several in references]
    known: Counter[tuple[str, ...]] = Counter()
    for words in (words for several in wanted for words in several):
        known[()] += len(words)
        for order in range(1, NIST_ORDER + 1):
            known.update(_grams(words, order))
    total = sum(_information(said, wanted, known, n) for n in range(1, NIST_ORDER + 1))
    mean = sum(sum(map(len, several)) / len(several) for several in wanted)
    ratio = min(1.0, sum(map(len, said)) / mean) if mean else 0.0
    if ratio == 0.0:
        return 0.0
    steepness = math.log(0.5) / math.log(1.5) ** 2  # two thirds of the length: half the score
    return total * math.exp(steepness * math.log(ratio) ** 2)


def meteor(hypotheses: Sequence[str], references: References) -> float:
    """METEOR 1.5 for English, 0 to 1 (needs Java)."""
    check(hypotheses, references)
    tokens = tokenized(hypotheses, references)
    return _java.meteor(tokens.hypotheses, tokens.references)


def rouge_l(hypotheses: Sequence[str], references: References) -> float:
    """Mean ROUGE-L (longest common subsequence, β = 1.2), 0 to 1; Java for the tokens only."""
    check(hypotheses, references)
    return _caption_score("rouge.rouge", "Rouge", tokenized(hypotheses, references))


def cider(hypotheses: Sequence[str], references: References) -> float:
    """CIDEr-D (n-grams up to 4, weighed by rarity, σ = 6), 0 to 10; Java for the tokens only."""
    check(hypotheses, references)
    return _caption_score("cider.cider", "Cider", tokenized(hypotheses, references))


@dataclass(frozen=True)
class Tokenized:
    """Sentences as the reference scorer's tokenizer leaves them."""

    hypotheses: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]


def tokenized(hypotheses: Sequence[str], references: References) -> Tokenized:
    """All sentences through one run of the tokenizer."""
    texts = [*hypotheses, *(text for several in references for text in several)]
    tokens = iter(_java.tokenize(texts))
    return Tokenized(
        tuple(next(tokens) for _ in hypotheses),
        tuple(tuple(next(tokens) for _ in several) for several in references),
    )


def check(hypotheses: Sequence[str], references: References) -> None:
    """Refuse what cannot be scored: nothing, unequal numbers, a hypothesis without a reference."""
    if isinstance(hypotheses, str) or any(isinstance(several, str) for several in references):
        raise ParameterError("give a list of hypotheses, and a list of references for each")
    if not hypotheses or len(hypotheses) != len(references):
        raise ParameterError(
            f"{len(hypotheses)} hypotheses and {len(references)} lists of references: give one"
            " list for each hypothesis, and at least one hypothesis"
        )
    for number, several in enumerate(references, start=1):
        if not any(text.strip() for text in several):
            raise ParameterError(f"hypothesis {number} has no reference: give at least one")


def _caption_score(module: str, name: str, tokens: Tokenized) -> float:
    """One of pycocoevalcap's scores, which are written in Python."""
    if not any(text for several in tokens.references for text in several):
        return 0.0
    said = {i: [text] for i, text in enumerate(tokens.hypotheses)}
    wanted = {i: list(several) for i, several in enumerate(tokens.references)}
    scorer = getattr(need(f"pycocoevalcap.{module}"), name)()
    return float(scorer.compute_score(wanted, said)[0])


def _grams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


def _information(
    said: Sequence[Sequence[str]],
    wanted: Sequence[Sequence[Sequence[str]]],
    known: Counter[tuple[str, ...]],
    order: int,
) -> float:
    """Bits of the matched n-grams of one order, a hypothesis' n-gram."""
    gained, made = 0.0, 0
    for words, several in zip(said, wanted, strict=True):
        most: Counter[tuple[str, ...]] = Counter()
        for reference in several:
            most |= _grams(reference, order)
        mine = _grams(words, order)
        made += mine.total()
        for gram, count in (mine & most).items():
            gained += count * math.log2(known[gram[:-1]] / known[gram])
    return gained / made if made else 0.0
