"""The Trainer callback: real runs of a tiny GPT-2 on the CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

import neuralmark
from neuralmark import Claim, Key
from neuralmark.errors import ParameterError, UnsuitableTensorError
from neuralmark.integrations.transformers import NeuralMarkCallback
from neuralmark.marking.options import AttachOptions, Mode
from tests.support.tiny import Rows, gpt2

NAME = "transformer.h.1.attn.c_attn.weight"
LOGGED = {"neuralmark/rate", "neuralmark/loss", "neuralmark/margin"}


def trainer(
    folder: Path,
    callback: NeuralMarkCallback | None,
    model: torch.nn.Module | None = None,
    **options: Any,
) -> Trainer:
    settings: dict[str, Any] = {
        "max_steps": 8,
        "per_device_train_batch_size": 4,
        "learning_rate": 5e-3,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "lr_scheduler_type": "constant",
        "seed": 0,
    }
    args = TrainingArguments(output_dir=str(folder), **settings | options)
    callbacks = None if callback is None else [callback]
    made: Trainer = Trainer(model or gpt2(), args, train_dataset=Rows(), callbacks=callbacks)
    return made


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_equal(one: Any, two: Any) -> None:
    for name, value in weights(one).items():
        assert torch.equal(value, weights(two)[name]), name


@pytest.mark.parametrize("mode", ["gradient", "projection"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_saved_model_is_verified_by_the_claim_beside_it(
    tmp_path: Path, key: Key, mode: Mode, precision: str
) -> None:
    strength = 400.0 if mode == "gradient" else 1.0
    callback = NeuralMarkCallback(
        key, options=AttachOptions(tensors=[NAME], mode=mode, strength=strength)
    )
    run = trainer(
        tmp_path, callback, bf16=precision == "bf16", gradient_accumulation_steps=2, max_steps=50
    )
    run.train()
    run.save_model()
    claim = Path(f"{tmp_path}.claim.json")
    verdict = neuralmark.verify(tmp_path, key, claim=claim)
    assert verdict.verified
    assert verdict.rate == 1
    assert callback.claim is not None
    assert callback.claim.marked_digest.tensors == verdict.checkpoint_digest.tensors
    assert callback.mark is not None
    assert callback.mark.steps == 50
    assert run.model is not None
    live = neuralmark.verify(run.model, key, claim=claim)
    assert live.matched == verdict.matched
    # squares are added up in float32, by torch and by numpy, and most of them cancels out here
    assert live.smallest_margin == pytest.approx(verdict.smallest_margin, rel=1e-5)


def test_numbers_reach_the_history_the_printed_logs_and_the_reporters(
    tmp_path: Path, key: Key, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    callback = NeuralMarkCallback(key, options=AttachOptions(tensors=[NAME], mode="projection"))
    run = trainer(tmp_path, callback, report_to="tensorboard", logging_dir=str(tmp_path / "logs"))
    run.train()
    logged = [entry for entry in run.state.log_history if "loss" in entry]
    assert len(logged) == 4
    for entry in (*logged, run.state.log_history[-1]):
        assert entry.keys() >= LOGGED
        assert entry["neuralmark/rate"] == 1
        assert entry["neuralmark/margin"] == pytest.approx(2, rel=1e-3)
    assert "'neuralmark/rate': 1.0" in capsys.readouterr().out
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    values = events.Scalars("train/neuralmark/rate")
    assert [value.step for value in values] == [2, 4, 6, 8, 8]
    assert all(value.value == 1 for value in values)


def test_it_only_adds_the_term(tmp_path: Path, key: Key) -> None:
    """Clipping and accumulation are as without the callback: a vanishing term, no change."""
    marked = trainer(
        tmp_path / "a",
        NeuralMarkCallback(
            key, options=AttachOptions(tensors=[NAME], mode="gradient", strength=1e-30)
        ),
        gradient_accumulation_steps=2,
        max_grad_norm=0.1,
    )
    plain = trainer(tmp_path / "b", None, gradient_accumulation_steps=2, max_grad_norm=0.1)
    marked.train()
    plain.train()
    assert_equal(marked.model, plain.model)


def test_the_term_comes_once_a_step_and_after_clipping(tmp_path: Path, key: Key) -> None:
    """One step of SGD with everything clipped away moves the weights by the term alone."""
    model = gpt2()
    twin = gpt2()
    callback = NeuralMarkCallback(
        key, options=AttachOptions(tensors=[NAME], mode="gradient", strength=3)
    )
    trainer(
        tmp_path,
        callback,
        model,
        max_steps=1,
        gradient_accumulation_steps=4,
        max_grad_norm=1e-12,
        optim="sgd",
        learning_rate=1.0,
    ).train()
    optimizer = torch.optim.SGD(twin.parameters(), lr=1.0)
    neuralmark.attach(
        twin,
        optimizer,
        key,
        options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient", strength=3),
    )
    optimizer.step()
    torch.testing.assert_close(
        model.get_parameter(NAME), twin.get_parameter(NAME), rtol=1e-6, atol=1e-7
    )
    assert not torch.equal(model.get_parameter(NAME), gpt2().get_parameter(NAME))


@pytest.mark.parametrize(("mode", "every"), [("gradient", 1), ("projection", 1), ("projection", 3)])
def test_a_resumed_run_equals_an_uninterrupted_one(
    tmp_path: Path, key: Key, mode: Mode, every: int
) -> None:
    def callback() -> NeuralMarkCallback:
        return NeuralMarkCallback(
            key, options=AttachOptions(tensors=[NAME], mode=mode, every=every)
        )

    whole = trainer(tmp_path / "whole", callback(), save_strategy="steps", save_steps=5)
    whole.train()
    moved = tmp_path / "elsewhere"
    (tmp_path / "whole" / "checkpoint-5").rename(moved)
    again = callback()
    resumed = trainer(tmp_path / "resumed", again, model=gpt2(seed=9))
    resumed.train(resume_from_checkpoint=str(moved))
    assert_equal(whole.model, resumed.model)
    assert again.mark is not None
    assert again.mark.steps == 8
    assert key.fingerprint in (moved / "trainer_state.json").read_text()


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path, key: Key) -> None:
    first = NeuralMarkCallback(key, options=AttachOptions(tensors=[NAME], mode="gradient"))
    trainer(tmp_path, first, save_strategy="steps", save_steps=5).train()
    model = gpt2()
    other = trainer(
        tmp_path,
        NeuralMarkCallback(key, options=AttachOptions(tensors=[NAME], mode="gradient", strength=2)),
        model,
    )
    with pytest.raises(ParameterError, match="strength"):
        other.train(resume_from_checkpoint=True)
    usual = trainer(tmp_path, NeuralMarkCallback(key, options=AttachOptions(tensors=[NAME])), model)
    with pytest.raises(ParameterError, match=r"mode|strength"):
        usual.train(resume_from_checkpoint=True)
    trainer(
        tmp_path / "b",
        NeuralMarkCallback(key, options=AttachOptions(tensors=[NAME], mode="gradient")),
        model,
    ).train()


def test_training_that_broke_off_can_begin_again(tmp_path: Path, key: Key) -> None:
    callback = NeuralMarkCallback(key, options=AttachOptions(tensors=[NAME], mode="projection"))
    run = trainer(tmp_path, callback)
    batch, run.get_train_dataloader = run.get_train_dataloader, None  # type: ignore[method-assign, assignment]
    with pytest.raises(TypeError):
        run.train()
    run.get_train_dataloader = batch  # type: ignore[method-assign]
    on_step_end, callback.on_step_end = callback.on_step_end, None  # type: ignore[method-assign, assignment]
    with pytest.raises(TypeError):
        run.train()
    callback.on_step_end = on_step_end  # type: ignore[method-assign]
    run.train()
    assert callback.mark is not None
    assert callback.mark.rate == 1


def test_weights_gone_wrong_are_logged_as_such(tmp_path: Path, key: Key) -> None:
    callback = NeuralMarkCallback(key, options=AttachOptions(tensors=[NAME], mode="gradient"))
    run = trainer(tmp_path, callback, learning_rate=1e38, optim="sgd")
    with pytest.raises(neuralmark.errors.NonFiniteError):
        run.train()
    assert str(run.state.log_history[-1]["neuralmark/rate"]) == "nan"


def test_frozen_weights_are_refused_before_the_first_step(tmp_path: Path, key: Key) -> None:
    model = gpt2()
    model.get_parameter(NAME).requires_grad_(False)
    with pytest.raises(UnsuitableTensorError, match="frozen"):
        trainer(
            tmp_path,
            NeuralMarkCallback(key, options=AttachOptions(tensors=[NAME], mode="gradient")),
            model,
        ).train()


def test_the_training_is_sealed_at_the_end(tmp_path: Path, key: Key) -> None:
    out = tmp_path / "model"
    callback = NeuralMarkCallback(key, AttachOptions(tensors=[NAME]), seal=out)
    run = trainer(out, callback)
    run.train()
    run.save_model()
    assert callback.sealed is not None
    assert callback.sealed.claim is not None
    assert callback.sealed.claim.anchor is not None
    assert callback.sealed.claim.anchor.heads == run.model.config.num_attention_heads  # type: ignore[union-attr]
    verdict = neuralmark.verify(out, key)  # by the claim beside it, which is the sealed mark's
    assert verdict.verified
    assert verdict.anchor_digest == callback.sealed.claim.anchor.digest
    assert Path(f"{out}.anchor").exists()
    assert callback.claim is not None
    assert neuralmark.verify(out, key, claim=callback.claim).verified


def test_sealed_elsewhere_both_claims_are_written(tmp_path: Path, key: Key) -> None:
    callback = NeuralMarkCallback(
        key, AttachOptions(tensors=[NAME]), seal=tmp_path / "to" / "final"
    )
    run = trainer(tmp_path / "runs", callback)
    run.train()
    run.save_model(str(tmp_path / "to" / "final"))
    assert neuralmark.verify(tmp_path / "to" / "final", key).anchor_digest is not None
    trained = Claim.load(tmp_path / "runs.claim.json")
    assert trained.anchor is None
    assert neuralmark.verify(tmp_path / "to" / "final", key, claim=trained).verified
