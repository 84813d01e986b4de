"""Training GPT-2 on E2E with the paper's schedule, with a mark or without."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from neuralmark.errors import ParameterError
from neuralmark.keys.key import Key
from neuralmark.marking.options import Mode, Target
from neuralmark.records import Claim
from neuralmark.text.e2e import E2ERow
from neuralmark.text.gpt2 import Example, encode

if TYPE_CHECKING:
    import torch

    from neuralmark.training.handle import LiveMark

Snapshot = dict[str, Any]
"""A training after some epoch, for `torch.save`; holds no secret."""


@dataclass(frozen=True)
class Schedule:
    """The paper's: AdamW, the rate rising over `warm_up` steps, then falling to 0 in a line.

    The paper does not name label smoothing and the longest sequence; they are the LoRA paper's,
    which it follows.
    """

    epochs: int = 5
    batch: int = 8
    rate: float = 2e-4
    warm_up: int = 500
    decay: float = 0.01
    smoothing: float = 0.1
    length: int = 512

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch) < 1 or self.length < 2 or self.warm_up < 0:
            raise ParameterError("epochs and batch must be at least 1, length 2, warm_up 0")
        if not (self.rate > 0 and self.decay >= 0 and 0 <= self.smoothing < 1):
            raise ParameterError("the rate must be positive, decay not negative, smoothing in 0…1")

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0.

        >>> schedule = Schedule(warm_up=10)
        >>> [round(schedule.rate_at(step, 110) / schedule.rate, 2) for step in (0, 5, 10, 60, 109)]
        [0.0, 0.5, 1.0, 0.5, 0.01]
        """
        if step < self.warm_up:
            return self.rate * step / self.warm_up
        return self.rate * (steps - step) / max(1, steps - self.warm_up)


@dataclass(frozen=True)
class TextMarking:
    """A key to train in, and how; as `neuralmark.attach` takes it."""

    key: Key
    tensors: Sequence[str] | str = "auto"
    mode: Mode = "gradient"
    strength: float = 1.0
    target: Target = "lora-delta"


@dataclass(frozen=True)
class TuningEpoch:
    """How training stood after an epoch."""

    loss: float
    """Mean over the epoch's steps."""
    seconds: float
    rate: float | None = None
    """Detection rate of the mark, where there is one."""
    embedding_loss: float | None = None


@dataclass(frozen=True)
class FinishedTuning:
    """A finished training; the model was changed in place."""

    history: tuple[TuningEpoch, ...]
    steps: int
    claim: Claim | None = None


class Listener:
    """Told how training goes; derive from it and say what to do."""

    def step(self, done: int, total: int, loss: float) -> None:
        """After every step."""

    def epoch(self, epoch: TuningEpoch, snapshot: Callable[[], Snapshot]) -> None:
        """After every epoch; call `snapshot` for what `resume` takes."""


def train(
    model: Any,
    tokenizer: Any,
    rows: Sequence[E2ERow],
    schedule: Schedule | None = None,
    *,
    mark: TextMarking | None = None,
    seed: int = 0,
    resume: Snapshot | None = None,
    listener: Listener | None = None,
) -> FinishedTuning:
    """Train whatever is not frozen. The same seed gives the same weights, resumed or not."""
    import torch

    if not rows:
        raise ParameterError("there are no rows to train on")
    run = _Run(model, tokenizer, rows, schedule or Schedule())
    handle = None if mark is None else run.attach(mark)
    heard = listener or Listener()
    try:
        if resume is not None:
            run.load(resume)
        devices = [run.device] if run.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            while len(run.history) < run.schedule.epochs:
                torch.manual_seed(seed * 1_000_003 + len(run.history))
                heard.epoch(run.epoch(heard), run.snapshot)
        claim = handle.claim() if handle is not None else None
    finally:
        model.eval()
        if handle is not None:
            handle.detach()
    return FinishedTuning(tuple(run.history), run.step, claim)


def mean_loss(model: Any, tokenizer: Any, rows: Sequence[E2ERow], *, batch: int = 8) -> float:
    """Mean negative log-likelihood of a token of the sentences, in nats, without smoothing."""
    import torch

    examples = encode(tokenizer, rows, _positions(model))
    total, count = 0.0, 0
    model.eval()
    with torch.no_grad():
        for some in _split(examples, batch):
            losses = _losses(model, some, tokenizer.eos_token_id, 0.0)
            total, count = total + float(losses.sum()), count + len(losses)
    if not count:
        raise ParameterError("there are no rows to measure on")
    return total / count


class _Run:
    """What a training changes as it goes."""

    def __init__(
        self, model: Any, tokenizer: Any, rows: Sequence[E2ERow], schedule: Schedule
    ) -> None:
        import torch

        self.model, self.schedule = model, schedule
        self.examples = encode(tokenizer, rows, min(schedule.length, _positions(model)))
        self.filler: int = tokenizer.eos_token_id
        self.trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self.trained:
            raise ParameterError("every parameter of this model is frozen: nothing to train")
        self.device: torch.device = next(iter(self.trained.values())).device
        self.optimizer = torch.optim.AdamW(
            self.trained.values(), lr=schedule.rate, weight_decay=schedule.decay
        )
        self.handle: LiveMark | None = None
        self.history: list[TuningEpoch] = []
        self.step = 0
        self.steps = schedule.epochs * -(-len(rows) // schedule.batch)

    def attach(self, mark: TextMarking) -> "LiveMark":
        from neuralmark.marking.options import AttachOptions
        from neuralmark.training.attach import attach

        self.handle = attach(
            self.model,
            self.optimizer,
            mark.key,
            options=AttachOptions(
                tensors=mark.tensors, mode=mark.mode, strength=mark.strength, target=mark.target
            ),
        )
        return self.handle

    def epoch(self, heard: Listener) -> TuningEpoch:
        """One pass over the rows, in an order drawn from torch's generator."""
        import torch

        began, losses = time.perf_counter(), []
        self.model.train()
        order = [self.examples[i] for i in torch.randperm(len(self.examples)).tolist()]
        for some in _split(order, self.schedule.batch):
            for settings in self.optimizer.param_groups:
                settings["lr"] = self.schedule.rate_at(self.step, self.steps)
            loss = _losses(self.model, some, self.filler, self.schedule.smoothing).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            losses.append(loss.item())
            heard.step(self.step, self.steps, losses[-1])
        mean, seconds = sum(losses) / len(losses), time.perf_counter() - began
        now = None if self.handle is None else self.handle.measure()
        found = TuningEpoch(mean, seconds, *((now.rate, now.loss) if now else ()))
        self.history.append(found)
        return found

    def snapshot(self) -> Snapshot:
        """Everything that a resumed run needs."""
        return {
            "schedule": asdict(self.schedule),
            "rows": len(self.examples),
            "step": self.step,
            "history": [asdict(epoch) for epoch in self.history],
            "trained": {name: p.detach().cpu().clone() for name, p in self.trained.items()},
            "optimizer": deepcopy(self.optimizer.state_dict()),
            "mark": None if self.handle is None else self.handle.state_dict(),
        }

    def load(self, saved: Snapshot) -> None:
        """Go on from a snapshot of the same training."""
        import torch

        mine = self.snapshot()
        if not isinstance(saved, Mapping) or set(saved) != set(mine):
            raise ParameterError("this is not the snapshot of a training")
        for name in ("schedule", "rows"):
            if saved[name] != mine[name]:
                raise ParameterError(
                    f"the snapshot is of another training: {name} {saved[name]!r} then,"
                    f" {mine[name]!r} now"
                )
        shapes = {name: p.shape for name, p in self.trained.items()}
        if {name: p.shape for name, p in saved["trained"].items()} != shapes or (
            (saved["mark"] is None) != (self.handle is None)
        ):
            raise ParameterError("the snapshot is of another model, or of another mark")
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(saved["trained"][name])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.handle is not None:
            self.handle.load_state_dict(saved["mark"])
        self.step = int(saved["step"])
        self.history = [TuningEpoch(**epoch) for epoch in saved["history"]]


def _positions(model: Any) -> int:
    return int(model.config.n_positions)


def _split(examples: Sequence[Example], batch: int) -> Iterator[Sequence[Example]]:
    return (examples[i : i + batch] for i in range(0, len(examples), batch))


def _losses(
    model: Any, examples: Sequence[Example], filler: int, smoothing: float
) -> "torch.Tensor":
    """The loss of every token that is learnt; the vocabulary is spread out for these only."""
    import torch

    size = max(len(example.tokens) for example in examples)
    tokens = torch.full((len(examples), size), filler)
    shown, learnt = torch.zeros_like(tokens), torch.zeros_like(tokens, dtype=torch.bool)
    for row, example in enumerate(examples):
        length = len(example.tokens)
        tokens[row, :length] = torch.tensor(example.tokens)
        shown[row, :length] = 1
        learnt[row, example.start : length] = True
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    device = base.lm_head.weight.device
    tokens, shown, learnt = tokens.to(device), shown.to(device), learnt[:, 1:].to(device)
    states = base.transformer(input_ids=tokens, attention_mask=shown, use_cache=False)[0]
    logits = base.lm_head(states[:, :-1][learnt])
    return torch.nn.functional.cross_entropy(
        logits.float(), tokens[:, 1:][learnt], label_smoothing=smoothing, reduction="none"
    )
