"""Training a tiny GPT-2 for a few steps, marked and resumed; sentences by beam search."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

import neuralmark
from neuralmark import Key, Parameters
from neuralmark.errors import ParameterError
from neuralmark.text import generation, gpt2, metrics, tuning
from neuralmark.text.e2e import linearise
from tests.support.texts import ROWS

KEY = Key(Parameters(bits=160, pools=320, rounds=1), b"", salt=bytes(32), secret=bytes([1]) * 32)
QUICK = tuning.Schedule(epochs=3, batch=4, rate=1e-2, warm_up=2)


class Keeper(tuning.Listener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []
        self.snapshots: list[tuning.Snapshot] = []

    def step(self, done: int, total: int, loss: float) -> None:
        self.steps.append((done, total))

    def epoch(self, epoch: tuning.TuningEpoch, snapshot: Callable[[], tuning.Snapshot]) -> None:
        self.snapshots.append(snapshot())


def adapted(tokenizer: Any) -> Any:
    return gpt2.with_lora(gpt2.tiny_model(tokenizer, positions=128))


def weights(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def test_the_paper_s_schedule() -> None:
    schedule = tuning.Schedule()
    assert (schedule.epochs, schedule.batch, schedule.rate) == (5, 8, 2e-4)
    steps = 5 * 5258
    assert schedule.rate_at(250, steps) == 1e-4
    assert schedule.rate_at(500, steps) == 2e-4
    assert schedule.rate_at(steps, steps) == 0.0


@pytest.mark.parametrize(
    "change", [{"epochs": 0}, {"rate": 0.0}, {"smoothing": 1.0}, {"warm_up": -1}, {"decay": -1.0}]
)
def test_schedules_that_are_none(change: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        replace(QUICK, **change)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_transformers_own(tokenizer: Any, smoothing: float) -> None:
    """Of the sentences only, whatever is beside a row in its batch."""
    model = gpt2.tiny_model(tokenizer, positions=128).eval()
    examples = gpt2.encode(tokenizer, ROWS[:3], 128)
    ours = tuning._losses(model, examples, tokenizer.eos_token_id, smoothing)
    theirs = []
    for example in examples:
        tokens = torch.tensor([example.tokens])
        labels = tokens.clone()
        labels[:, : example.start] = -100
        output = model(input_ids=tokens, labels=labels)
        smoother = transformers.trainer_pt_utils.LabelSmoother(epsilon=smoothing)
        loss = smoother(output, labels, shift_labels=True)
        theirs.append((loss * (len(example.tokens) - example.start)).item())
        if not smoothing:
            assert output.loss.item() == pytest.approx(loss.item(), rel=1e-5)
    assert ours.sum().item() == pytest.approx(sum(theirs), rel=1e-5)


def test_a_tiny_model_learns_from_scratch(tokenizer: Any) -> None:
    model = gpt2.tiny_model(tokenizer, positions=128)
    before = tuning.mean_loss(model, tokenizer, ROWS)
    keeper = Keeper()
    done = tuning.train(
        model, tokenizer, ROWS, replace(QUICK, epochs=100, smoothing=0.0), listener=keeper
    )
    after = tuning.mean_loss(model, tokenizer, ROWS)
    assert before > 4
    assert after < 1
    assert [epoch.rate for epoch in done.history] == [None] * 100
    assert keeper.steps == [(step, 300) for step in range(1, 301)]
    said = generation.generate(
        model,
        tokenizer,
        [linearise(row.meaning) for row in ROWS[:3]],
        generation.Search(beams=3, length=40),
    )
    assert len(said) == 3
    assert all("is a" in sentence and sentence.endswith("river.") for sentence in said), said


def test_the_mark_is_trained_in(tokenizer: Any) -> None:
    model = adapted(tokenizer)
    frozen = model.get_base_model().transformer.wte.weight.clone()
    schedule = replace(QUICK, epochs=30, rate=2e-2)
    done = tuning.train(model, tokenizer, ROWS, schedule, mark=tuning.TextMarking(KEY))
    rates = [epoch.rate or 0.0 for epoch in done.history]
    assert rates[0] < rates[-1]
    assert done.claim is not None
    assert done.claim.placement[0][0].endswith("h.1.attn.c_attn.lora_delta")
    assert neuralmark.verify(model, KEY, claim=done.claim).verified
    assert torch.equal(model.get_base_model().transformer.wte.weight, frozen)


def test_resumed_is_uninterrupted(tokenizer: Any, tmp_path: Any) -> None:
    keeper, whole, half = Keeper(), adapted(tokenizer), adapted(tokenizer)
    mark = tuning.TextMarking(KEY)
    done = tuning.train(whole, tokenizer, ROWS, QUICK, mark=mark, seed=5, listener=keeper)
    torch.save(keeper.snapshots[0], tmp_path / "snapshot.pt")
    saved = torch.load(tmp_path / "snapshot.pt", weights_only=True)
    torch.rand(3)  # what else draws numbers does not matter
    again = tuning.train(half, tokenizer, ROWS, QUICK, mark=mark, seed=5, resume=saved)
    assert torch.equal(weights(whole), weights(half))
    assert again.history[0] == done.history[0]
    assert [epoch.loss for epoch in again.history] == [epoch.loss for epoch in done.history]
    assert again.claim == done.claim
    other = adapted(tokenizer)
    tuning.train(other, tokenizer, ROWS, QUICK, mark=mark, seed=6)
    assert not torch.equal(weights(whole), weights(other))


def test_snapshots_of_other_trainings(tokenizer: Any) -> None:
    keeper = Keeper()
    one = replace(QUICK, epochs=1)
    tuning.train(adapted(tokenizer), tokenizer, ROWS, one, listener=keeper)
    (saved,) = keeper.snapshots

    def resume(snapshot: Any, schedule: tuning.Schedule, marked: bool = False) -> None:
        mark = tuning.TextMarking(KEY) if marked else None
        model = adapted(tokenizer)
        tuning.train(model, tokenizer, ROWS, schedule, mark=mark, resume=snapshot)

    resume(saved, one)
    with pytest.raises(ParameterError, match="another training: schedule"):
        resume(saved, QUICK)
    with pytest.raises(ParameterError, match="of another mark"):
        resume(saved, one, marked=True)
    with pytest.raises(ParameterError, match="not the snapshot"):
        resume({"step": 1}, one)


def test_nothing_to_train(tokenizer: Any) -> None:
    model = gpt2.tiny_model(tokenizer, positions=128)
    with pytest.raises(ParameterError, match="no rows"):
        tuning.train(model, tokenizer, [])
    with pytest.raises(ParameterError, match="no rows"):
        tuning.mean_loss(model, tokenizer, [])
    with pytest.raises(ParameterError, match="frozen"):
        tuning.train(model.requires_grad_(False), tokenizer, ROWS)


def test_a_batch_says_what_one_by_one_says(tokenizer: Any) -> None:
    model = gpt2.tiny_model(tokenizer, positions=128)
    tuning.train(model, tokenizer, ROWS, replace(QUICK, epochs=2))
    contexts = [linearise(row.meaning) for row in (ROWS[0], ROWS[4], ROWS[11])]
    search = generation.Search(beams=4, length=12, batch=3)
    together = generation.generate(model, tokenizer, contexts, search)
    alone = generation.generate(model, tokenizer, contexts, replace(search, batch=1))
    assert together == alone
    assert generation.generate(model, tokenizer, []) == []


def test_words_of_the_context_may_be_said_again() -> None:
    """The context 1 2 3 4 and the sentence 5 6 7 5 6: after these, 7 is forbidden for n = 3."""
    processors = generation._processors(transformers, 3, start=4)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 5, 6], [1, 2, 3, 4, 8, 8, 9, 1, 2]])
    scores = processors(tokens, torch.zeros(2, 10))
    assert (scores == -torch.inf).nonzero().tolist() == [[0, 7]]
    assert len(generation._processors(transformers, 0, start=4)) == 0


def test_from_rows_to_scores(tokenizer: Any) -> None:
    """The whole way; METEOR's tables take most of the time."""
    model = gpt2.tiny_model(tokenizer, positions=128)
    tuning.train(model, tokenizer, ROWS, replace(QUICK, epochs=40, smoothing=0.0))
    rows = [*ROWS[:2], replace(ROWS[0], reference="Aromi, a pub, is beside the river.")]
    found = generation.assess(model, tokenizer, rows, generation.Search(beams=2, length=40))
    assert found.meanings == (ROWS[0].meaning, ROWS[1].meaning)
    assert len(found.hypotheses) == 2
    references = [[ROWS[0].reference, rows[2].reference], [ROWS[1].reference]]
    for name in ("bleu", "nist", "rouge_l", "cider"):
        alone = getattr(metrics, name)(found.hypotheses, references)
        assert getattr(found.scores, name) == alone, name
    assert found.scores.nist > 0
    assert 0 < found.scores.meteor < 1


def test_searches_that_are_none(tokenizer: Any) -> None:
    with pytest.raises(ParameterError):
        generation.Search(beams=0)
    model = gpt2.tiny_model(tokenizer, positions=16)
    with pytest.raises(ParameterError, match="the model has 16"):
        generation.generate(model, tokenizer, [linearise(ROWS[0].meaning)])
