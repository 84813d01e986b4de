"""A callback for Lightning.

    trainer = lightning.Trainer(callbacks=[NeuralMarkCallback(key)], ...)
    trainer.fit(model)                  # the claim is now beside the checkpoints' folder

Works with automatic and manual optimization; the term comes after gradient clipping.
"""

from pathlib import Path
from typing import Any

from neuralmark.errors import MissingExtraError, ParameterError

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    raise MissingExtraError(
        "marking with Lightning needs it: pip install 'neuralmark[lightning]'"
    ) from None

from neuralmark.integrations._shared import Waiting, finish, numbers
from neuralmark.keys.key import Key
from neuralmark.marking.beside import claim_path
from neuralmark.marking.embedding import Embedding
from neuralmark.marking.options import AttachOptions, options_of
from neuralmark.records import Claim
from neuralmark.training.handle import LiveMark


class NeuralMarkCallback(Callback):
    """Train a key's mark into the module; arguments as of `neuralmark.attach`.

    `optimizer` is the index of the one that trains the marked tensors, where there are several;
    `claim_path` is where the claim goes (else beside the folder of checkpoints or logs). With
    `seal`, where the model will be saved, the training ends with a second mark that is bound to an
    anchor (`LiveMark.seal`): save the module after `fit`.
    """

    def __init__(
        self,
        key: Key,
        options: AttachOptions | None = None,
        *,
        optimizer: int = 0,
        claim_path: str | Path | None = None,
        seal: str | Path | None = None,
    ) -> None:
        """Nothing happens before training starts."""
        super().__init__()
        self.mark: LiveMark | None = None
        self.claim: Claim | None = None
        self.sealed: Embedding | None = None
        self._seal = None if seal is None else Path(seal)
        self.claim_path = None if claim_path is None else Path(claim_path)
        self._waiting = Waiting(key, options_of(AttachOptions, options))
        self._optimizer = optimizer
        self._saved: dict[str, Any] | None = None

    @property
    def state_key(self) -> str:
        """One place in a checkpoint for each key."""
        return self._generate_state_key(key=self._waiting.key.fingerprint)

    def state_dict(self) -> dict[str, Any]:
        """The mark's state, for the checkpoint."""
        return {} if self.mark is None else {"mark": self.mark.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a checkpoint's state until the mark is attached."""
        self._saved = state_dict.get("mark")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach: weights and optimizers are restored by now."""
        self.detach()
        optimizers = trainer.optimizers
        if self._optimizer not in range(len(optimizers)):
            raise ParameterError(
                f"there is no optimizer {self._optimizer}: this module has {len(optimizers)}"
            )
        saved, self._saved = self._saved, None
        model = trainer.model or pl_module
        self.mark = self._waiting.attach(model, optimizers[self._optimizer], saved)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Log at the steps at which Lightning does."""
        every = int(getattr(trainer, "log_every_n_steps", 0))
        if self.mark is not None and every and self.mark.steps % every == 0:
            self._log(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log once per epoch, however short."""
        self._log(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Seal if asked to, detach, and write the claim."""
        if self.mark is not None:
            path = self.claim_path or claim_path(_folder(trainer))
            done = finish(self.mark, path, writes=trainer.is_global_zero, seal=self._seal)
            self.claim, self.sealed = done.claim, done.sealed

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave no hooks behind."""
        self.detach()

    def detach(self) -> None:
        """Stop marking."""
        if self.mark is not None:
            self.mark.detach()

    def _log(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.mark is not None and not trainer.barebones:
            pl_module.log_dict(numbers(self.mark))


def _folder(trainer: Trainer) -> Path:
    """Where the checkpoints are, else the logs, else the trainer's root."""
    checkpoints = getattr(trainer.checkpoint_callback, "dirpath", None)
    return Path(checkpoints or trainer.log_dir or trainer.default_root_dir)
