"""Sentences from a trained model: beam search as in the paper, and their scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuralmark.errors import ParameterError
from neuralmark.text._extras import hugging_face
from neuralmark.text.e2e import E2ERow, group, linearise
from neuralmark.text.gpt2 import prompt
from neuralmark.text.metrics import Scores, score


@dataclass(frozen=True)
class Search:
    """Beam search as the LoRA paper does it for E2E; `length` is the most tokens of a sentence."""

    beams: int = 10
    length_penalty: float = 0.8
    no_repeat_ngram: int = 4
    length: int = 64
    batch: int = 4

    def __post_init__(self) -> None:
        if min(self.beams, self.length, self.batch) < 1 or self.no_repeat_ngram < 0:
            raise ParameterError("beams, length and batch must be at least 1, no_repeat_ngram 0")


@dataclass(frozen=True)
class Assessment:
    """What a model said of each meaning, and how near that is to what people say."""

    meanings: tuple[str, ...]
    hypotheses: tuple[str, ...]
    scores: Scores


def assess(
    model: Any, tokenizer: Any, rows: Sequence[E2ERow], search: Search | None = None
) -> Assessment:
    """Put every meaning among the rows into words and score them against all its references."""
    cases = group(rows)
    said = generate(model, tokenizer, [linearise(case.meaning) for case in cases], search)
    found = score(said, [case.references for case in cases])
    return Assessment(tuple(case.meaning for case in cases), tuple(said), found)


def generate(
    model: Any, tokenizer: Any, contexts: Sequence[str], search: Search | None = None
) -> list[str]:
    """One sentence for each context (a meaning through `linearise`), by beam search."""
    search = search or Search()
    prompts = [prompt(tokenizer, context) for context in contexts]
    positions = int(model.config.n_positions)
    longest = max(map(len, prompts), default=0)
    if longest >= positions:
        raise ParameterError(f"a context takes {longest} tokens, and the model has {positions}")
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    found = [""] * len(prompts)
    model.eval()
    for i in range(0, len(order), search.batch):
        some = order[i : i + search.batch]
        said = _continue(model, tokenizer, [prompts[number] for number in some], search)
        for number, sentence in zip(some, said, strict=True):
            found[number] = sentence
    return found


def _continue(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], search: Search
) -> list[str]:
    """Sentences for a batch of prompts, padded on the left."""
    import torch

    package, end = hugging_face("transformers"), tokenizer.eos_token_id
    size = max(map(len, prompts))
    filler = 0 if end else 1  # prompts end in the end token, so that is not what fills them up
    tokens = torch.full((len(prompts), size), filler)
    shown = torch.zeros_like(tokens)
    for row, words in enumerate(prompts):
        tokens[row, size - len(words) :] = torch.tensor(words)
        shown[row, size - len(words) :] = 1
    device = next(model.parameters()).device
    config = package.GenerationConfig(
        num_beams=search.beams,
        length_penalty=search.length_penalty,
        max_new_tokens=min(search.length, int(model.config.n_positions) - size),
        do_sample=False,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=filler,
    )
    with torch.no_grad():
        made = model.generate(
            input_ids=tokens.to(device),
            attention_mask=shown.to(device),
            generation_config=config,
            logits_processor=_processors(package, search.no_repeat_ngram, size),
        )
    ends = [[*row, end].index(end) for row in made[:, size:].tolist()]
    texts = [tokenizer.decode(row[size : size + n]) for row, n in zip(made, ends, strict=True)]
    return [" ".join(text.split()) for text in texts]


def _processors(package: Any, order: int, start: int) -> Any:
    """Forbid n-grams that the sentence has already.

    transformers' own setting counts those of the context too, and so forbids names of four tokens
    and `5 out of 5`, which a sentence must repeat.
    """
    processors = package.LogitsProcessorList()
    if not order:
        return processors
    inner = package.NoRepeatNGramLogitsProcessor(order)

    class OfSentence(package.LogitsProcessor):  # type: ignore[misc]
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            return inner(input_ids[:, start:], scores)

    processors.append(OfSentence())
    return processors
