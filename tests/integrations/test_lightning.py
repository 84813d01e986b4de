"""The Lightning callback: real fits of a small network on the CPU."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

import neuralmark
from neuralmark import Key
from neuralmark.errors import ParameterError
from neuralmark.integrations.lightning import NeuralMarkCallback
from neuralmark.marking.options import AttachOptions, Mode
from tests.support.fits import Automatic, loader

pytestmark = pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning")

NAME = "net.2.weight"


class Manual(Automatic):
    """The module computes the gradients and steps two optimizers itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers: Any = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self) -> Any:
        first = torch.optim.SGD(self.net[0].parameters(), lr=0.1, momentum=0.9)
        return first, torch.optim.SGD(self.net[2].parameters(), lr=0.1, momentum=0.9)


def fit(
    module: LightningModule,
    folder: Path,
    *callbacks: Any,
    resume: Path | None = None,
    epochs: int = 2,
    **options: Any,
) -> Trainer:
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks),
    }
    trainer = Trainer(
        default_root_dir=folder,
        max_epochs=epochs,
        callbacks=list(callbacks),
        **settings | options,
    )
    trainer.fit(module, loader(), ckpt_path=resume)
    return trainer


def by_hand(key: Key, steps: int, strength: float) -> torch.Tensor:
    """The same training without Lightning, the term added to the loss itself."""
    module = Automatic()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    mark = neuralmark.attach(
        module,
        optimizer,
        key,
        options=neuralmark.AttachOptions(tensors=[NAME], mode="loss", strength=strength),
    )
    batches = list(loader())
    for step in range(steps):
        optimizer.zero_grad()
        (module.loss(batches[step % len(batches)]) + mark.loss_term()).backward()
        optimizer.step()
    mark.detach()
    return module.get_parameter(NAME).detach()


@pytest.mark.parametrize(("kind", "index"), [(Automatic, 0), (Manual, 1)])
def test_the_term_is_trained_in_exactly(
    tmp_path: Path, key: Key, kind: type[Automatic], index: int
) -> None:
    """A naive hook would do nothing at all under automatic optimization, silently."""
    module = kind()
    callback = NeuralMarkCallback(
        key, options=AttachOptions(tensors=[NAME], mode="gradient", strength=50), optimizer=index
    )
    fit(module, tmp_path, callback)
    expected = by_hand(key, 16, 50)
    torch.testing.assert_close(module.get_parameter(NAME), expected, rtol=1e-4, atol=1e-5)
    assert callback.mark is not None
    assert callback.mark.steps == 16


@pytest.mark.parametrize("mode", ["gradient", "projection"])
@pytest.mark.parametrize("kind", [Automatic, Manual])
def test_the_claim_beside_the_checkpoint_verifies_it(
    tmp_path: Path, key: Key, kind: type[Automatic], mode: Mode
) -> None:
    strength = 200.0 if mode == "gradient" else 1.0
    index = 1 if kind is Manual else 0
    callback = NeuralMarkCallback(
        key, options=AttachOptions(tensors=[NAME], mode=mode, strength=strength), optimizer=index
    )
    saver = ModelCheckpoint(dirpath=tmp_path / "saved", filename="model")
    module = kind()
    fit(module, tmp_path, callback, saver, epochs=6)
    claim = tmp_path / "saved.claim.json"
    verdict = neuralmark.verify(tmp_path / "saved" / "model.ckpt", key, claim=claim)
    assert verdict.verified
    assert verdict.rate == 1
    assert neuralmark.verify(module, key, claim=claim).matched == verdict.matched


def test_clipping_and_accumulation(tmp_path: Path, key: Key) -> None:
    """With all gradients clipped away the term alone moves the weights, once a step."""
    module = Automatic()
    callback = NeuralMarkCallback(
        key, options=AttachOptions(tensors=[NAME], mode="gradient", strength=50)
    )
    fit(
        module,
        tmp_path,
        callback,
        epochs=1,
        accumulate_grad_batches=4,
        gradient_clip_val=1e-12,
    )
    twin = Automatic()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    neuralmark.attach(
        twin,
        optimizer,
        key,
        options=neuralmark.AttachOptions(tensors=[NAME], mode="gradient", strength=50),
    )
    for _ in range(2):
        optimizer.zero_grad()
        optimizer.step()
    torch.testing.assert_close(
        module.get_parameter(NAME), twin.get_parameter(NAME), rtol=1e-6, atol=1e-7
    )


def test_bf16_mixed_precision(tmp_path: Path, key: Key) -> None:
    callback = NeuralMarkCallback(key, options=AttachOptions(tensors=[NAME], mode="projection"))
    fit(Automatic(), tmp_path, callback, precision="bf16-mixed")
    assert callback.mark is not None
    assert callback.mark.margin == pytest.approx(2, rel=1e-3)


def test_numbers_reach_every_logger(tmp_path: Path, key: Key) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    callback = NeuralMarkCallback(key, options=AttachOptions(tensors=[NAME], mode="projection"))
    loggers = [CSVLogger(tmp_path, name="csv", version=""), TensorBoardLogger(tmp_path, name="tb")]
    trainer = fit(Automatic(), tmp_path, callback, logger=loggers, log_every_n_steps=4)
    assert trainer.callback_metrics["neuralmark/rate"] == 1
    with (tmp_path / "csv" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {int(row["step"]) for row in rows} == {3, 7, 11, 15}
    assert all(float(row["neuralmark/rate"]) == 1 for row in rows)
    assert all(float(row["neuralmark/margin"]) > 1.99 for row in rows)
    events = EventAccumulator(str(next((tmp_path / "tb").iterdir())))
    events.Reload()
    assert {event.step for event in events.Scalars("neuralmark/loss")} == {3, 7, 11, 15}
    assert (tmp_path / "csv.claim.json").exists()


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
@pytest.mark.parametrize(("mode", "every"), [("gradient", 1), ("projection", 1), ("projection", 4)])
def test_a_resumed_fit_equals_an_uninterrupted_one(
    tmp_path: Path, key: Key, mode: Mode, every: int
) -> None:
    def callback() -> NeuralMarkCallback:
        return NeuralMarkCallback(
            key,
            options=AttachOptions(tensors=[NAME], mode=mode, every=every),
            claim_path=tmp_path / "claim.json",
        )

    saver = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1)
    whole, resumed, again = Automatic(), Automatic(), callback()
    fit(whole, tmp_path, callback(), saver, epochs=3)
    fit(resumed, tmp_path, again, resume=tmp_path / "epoch=1.ckpt", epochs=3)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert again.mark is not None
    assert again.mark.steps == 24
    assert neuralmark.verify(resumed, key, claim=tmp_path / "claim.json").checkpoint_digest


def test_two_keys_keep_their_states_apart(tmp_path: Path, key: Key) -> None:
    pair = [
        NeuralMarkCallback(
            secret, options=AttachOptions(tensors=[NAME]), claim_path=tmp_path / f"{i}.json"
        )
        for i, secret in enumerate((key, Key.new(key.parameters)))
    ]
    saver = ModelCheckpoint(dirpath=tmp_path, filename="model")
    fit(Automatic(), tmp_path, *pair, saver)
    saved = torch.load(tmp_path / "model.ckpt", weights_only=True)["callbacks"]
    assert {callback.state_key for callback in pair} <= set(saved)


def test_an_interrupted_fit_leaves_no_hooks(tmp_path: Path, key: Key) -> None:
    class Failing(Automatic):
        broken = True

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor | None:
            if self.broken and batch_idx == 3:
                raise RuntimeError("power cut")
            return super().training_step(batch, batch_idx)

    module, callback = Failing(), NeuralMarkCallback(key, options=AttachOptions(tensors=[NAME]))
    with pytest.raises(RuntimeError, match="power cut"):
        fit(module, tmp_path, callback)
    assert not callback.mark or not callback.mark._hooks
    module.broken = False
    fit(module, tmp_path, callback)


def test_an_optimizer_that_does_not_exist(tmp_path: Path, key: Key) -> None:
    with pytest.raises(ParameterError, match="no optimizer 3"):
        fit(
            Automatic(),
            tmp_path,
            NeuralMarkCallback(key, options=AttachOptions(tensors=[NAME]), optimizer=3),
        )


def test_the_training_is_sealed_at_the_end(tmp_path: Path, key: Key) -> None:
    out = tmp_path / "final.ckpt"
    module = Automatic()
    callback = NeuralMarkCallback(key, AttachOptions(tensors=[NAME]), seal=out)
    trainer = fit(module, tmp_path / "runs", callback)
    trainer.save_checkpoint(out)
    assert callback.sealed is not None
    assert callback.claim is not None
    verdict = neuralmark.verify(out, key)
    assert verdict.verified
    assert verdict.anchor_digest is not None
    assert neuralmark.verify(out, key, claim=callback.claim).verified
