"""A callback for `transformers.Trainer`.

    trainer = Trainer(model, args, callbacks=[NeuralMarkCallback(key)], ...)
    trainer.train()                     # the claim is now beside args.output_dir
    trainer.save_model()

The term is added to the gradients inside the optimizer's step, so it is right with gradient
accumulation and mixed precision, and comes after the Trainer's clipping (max_grad_norm).
"""

import sys
from pathlib import Path
from typing import Any, cast

from neuralmark.errors import MissingExtraError

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import CallbackHandler
except ImportError:
    raise MissingExtraError(
        "marking with transformers' Trainer needs it: pip install 'neuralmark[transformers]'"
    ) from None

from neuralmark.integrations._shared import Waiting, finish, numbers
from neuralmark.keys.key import Key
from neuralmark.marking.beside import claim_path
from neuralmark.marking.embedding import Embedding
from neuralmark.marking.options import AttachOptions, options_of
from neuralmark.records import Claim
from neuralmark.training.handle import LiveMark


class NeuralMarkCallback(TrainerCallback):
    """Train a key's mark into the model; arguments as of `neuralmark.attach`.

    With `seal`, where the model will be saved (`args.output_dir`, as a rule), the training ends
    with a second mark that is bound to an anchor (`LiveMark.seal`).
    """

    def __init__(
        self,
        key: Key,
        options: AttachOptions | None = None,
        *,
        seal: str | Path | None = None,
    ) -> None:
        """Nothing happens before training begins."""
        self.mark: LiveMark | None = None
        self.claim: Claim | None = None
        self.sealed: Embedding | None = None
        self._seal = None if seal is None else Path(seal)
        self._waiting = Waiting(key, options_of(AttachOptions, options))
        self._slot = f"neuralmark {key.fingerprint}"

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Attach; after `resume_from_checkpoint`, go on where the saved mark stopped."""
        self._go_first()
        if self.mark is not None:  # training was broken off, and begins again
            self.mark.detach()
        saved = _slots(state).get(self._slot)
        self.mark = self._waiting.attach(kwargs["model"], kwargs["optimizer"], saved)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Keep the mark's state in the Trainer's, which every checkpoint holds."""
        if self.mark is not None:
            _slots(state)[self._slot] = self.mark.state_dict()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add our numbers to what the Trainer logs of training."""
        if self.mark is None or logs is None or not logs.keys() & {"loss", "train_loss"}:
            return
        ours = numbers(self.mark)
        logs.update(ours)
        if state.log_history:  # holds a copy of the logs, made before callbacks are called
            state.log_history[-1].update(ours)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Seal if asked to, and write the claim beside the folder, which may be published."""
        if self.mark is not None:
            path = claim_path(Path(args.output_dir or "."))
            done = finish(self.mark, path, writes=state.is_world_process_zero, seal=self._seal)
            self.claim, self.sealed = done.claim, done.sealed

    def _go_first(self) -> None:
        """Move before the reporters, which are called in order, so that they see our numbers.

        The Trainer puts callbacks after its reporters, and tells them nothing of the list they are
        in: it is found among the callers. Elsewhere this does nothing.
        """
        frame = sys._getframe().f_back
        while frame is not None:
            caller = frame.f_locals.get("self")
            if isinstance(caller, CallbackHandler) and self in caller.callbacks:
                caller.callbacks.remove(self)
                caller.callbacks.insert(0, self)
                return
            frame = frame.f_back


def _slots(state: TrainerState) -> dict[str, Any]:
    """The states of callbacks, by name, that the Trainer writes to trainer_state.json."""
    return cast(dict[str, Any], state.stateful_callbacks)
