"""Training from scratch, epoch by epoch, so that a killed run goes on where it stopped.

What is random in an epoch (order, crops, flips) follows from the seed and the epoch's number alone,
so an interrupted run and an uninterrupted one see the same batches.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralmark.records import Claim
from neuralmark.storage import bookmark

if TYPE_CHECKING:
    import torch

Attach = Callable[["torch.nn.Module", Any], Any]


@dataclass(frozen=True)
class TrainingCourse:
    """How a model is trained: SGD, its rate falling to a tenth after each of the `drops`."""

    epochs: int
    rate: float
    batch: int
    momentum: float = 0.9
    decay: float = 5e-4
    seed: int = 0
    drops: tuple[int, ...] = ()

    def rate_in(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        >>> [TrainingCourse(200, 0.01, 64, drops=(100, 150)).rate_in(e) for e in (0, 99, 100, 150)]
        [0.01, 0.01, 0.001, 0.0001]
        """
        return self.rate / 10.0 ** sum(epoch >= drop for drop in self.drops)


@dataclass(frozen=True)
class TrainingOutcome:
    """The row of a training, and the claim of its mark."""

    row: dict[str, Any]
    claim: Claim | None


def train(
    model: "torch.nn.Module",
    data: Any,
    course: TrainingCourse,
    attach: Attach | None,
    state: Path | None,
    notify: Callable[[int, int], None],
    tensors: Sequence[str] = (),
) -> TrainingOutcome:
    """Train the model in place; `state` is where a run keeps its progress (None: nowhere).

    The row tells how far the `tensors` moved from where they began, as a share of their norm. Where
    there are more images to test on than to train on, the model is tested once, at the end.
    """
    import torch

    optimizer = torch.optim.SGD(
        model.parameters(), lr=course.rate, momentum=course.momentum, weight_decay=course.decay
    )
    stored = dict(model.named_parameters())
    start = {name: stored[name].detach().clone() for name in tensors if name in stored}
    mark = None if attach is None else attach(model, optimizer)
    history = [] if state is None else _resume(model, optimizer, mark, state)
    each_epoch = len(data.test_labels) <= len(data.train_labels)
    for epoch in range(len(history), course.epochs):
        began = time.perf_counter()
        loss = _epoch(model, optimizer, data, course, epoch)
        seconds = time.perf_counter() - began
        told = {"loss": loss, "seconds": seconds}
        if each_epoch or epoch + 1 == course.epochs:
            told["accuracy"] = accuracy(model, data)
        if mark is not None:
            now = mark.measure()
            told |= {"rate": now.rate, "embedding_loss": now.loss, "margin": now.margin}
        history.append(told)
        if state is not None:
            _keep(model, optimizer, mark, history, state)
        notify(epoch + 1, course.epochs)
    model.eval()
    claim = None
    if mark is not None:
        mark.detach()
        claim = mark.claim()
    return TrainingOutcome(_row(model, start, data, history), claim)


def _row(
    model: "torch.nn.Module", start: dict[str, Any], data: Any, history: list[dict[str, float]]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "accuracy": history[-1]["accuracy"],
        "rate": history[-1].get("rate"),
        "classes": data.classes,
        "history": history,
        "epoch_seconds": sorted(each["seconds"] for each in history)[len(history) // 2],
        "seconds": sum(each["seconds"] for each in history),
    }
    if start:
        kept = {name: value.detach() for name, value in model.named_parameters()}
        moved = sum(float((kept[n] - w).square().sum()) for n, w in start.items())
        norm = sum(float(w.square().sum()) for w in start.values())
        row["moved"] = (moved / norm) ** 0.5 if norm else 0.0
    return row


def _epoch(
    model: "torch.nn.Module", optimizer: Any, data: Any, course: TrainingCourse, epoch: int
) -> float:
    """One pass; gives the mean loss."""
    import torch
    from torch.nn.functional import cross_entropy

    generator = torch.Generator().manual_seed(1_000_003 * course.seed + epoch)
    torch.manual_seed(1_000_003 * course.seed + epoch)  # dropout and the like
    for group in optimizer.param_groups:
        group["lr"] = course.rate_in(epoch)
    model.train()
    total = count = 0.0
    for batch in torch.randperm(len(data.train_labels), generator=generator).split(course.batch):
        inputs = data.augmented(batch, generator).contiguous(memory_format=torch.channels_last)
        labels = data.train_labels[batch]
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        total += float(loss.detach()) * len(batch)
        count += len(batch)
    return total / count


def accuracy(model: "torch.nn.Module", data: Any) -> float:
    """Share of the test images that the model gets right."""
    import torch

    was = model.training
    model.eval()
    right = 0
    with torch.no_grad():
        for batch in torch.arange(len(data.test_labels)).split(256):
            found = model(data.tested(batch)).argmax(1)
            right += int((found == data.test_labels[batch]).sum())
    model.train(was)
    return right / len(data.test_labels)


def _keep(model: Any, optimizer: Any, mark: Any, history: Any, path: Path) -> None:
    """How far the run is."""
    bookmark.write(
        path,
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "mark": None if mark is None else mark.state_dict(),
            "history": history,
        },
    )


def _resume(model: Any, optimizer: Any, mark: Any, path: Path) -> list[dict[str, float]]:
    """What was kept of an interrupted run; nothing, or a damaged file: an empty history."""
    kept = bookmark.read(path)
    if kept is None:
        return []
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    if mark is not None:
        mark.load_state_dict(kept["mark"])
    history: list[dict[str, float]] = kept["history"]
    return history
