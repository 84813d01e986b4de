"""Measuring what marking and verifying cost: each in a process that does nothing else.

Times are medians, with the digest of the same file beside them: on a busy machine ratios tell more
than seconds. The key travels to the process in memory only.
"""

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from neuralmark import schemes
from neuralmark.attacks.contract import Data
from neuralmark.attacks.engine.arena import BROKEN
from neuralmark.attacks.engine.outlay import Machine, Spent
from neuralmark.attacks.engine.subject import copied, taking
from neuralmark.checkpoints import open_checkpoint
from neuralmark.errors import AttackError, NeuralMarkError
from neuralmark.keys.key import Key
from neuralmark.marking.embedding import embed
from neuralmark.marking.options import AttachOptions, EmbedOptions, VerifyOptions
from neuralmark.marking.reading import digest_of
from neuralmark.marking.verification import verify
from neuralmark.records import Claim

if TYPE_CHECKING:
    import torch

    from neuralmark.triggers.triggers import Triggers

Operation = Literal["embed", "verify", "digest"]
RUNS: dict[Operation, int] = {"embed": 1, "verify": 3, "digest": 3}
BATCH, STEPS, WARM = 64, 5, 1
"""Of the training steps that are timed: examples, steps, steps before the clock starts."""


@dataclass(frozen=True)
class CostTask:
    """One operation to measure on a file."""

    operation: Operation
    model: Path
    key: Key
    claim: Claim | str | Path | None
    anchor: str | Path | None
    tensors: tuple[str, ...] = ()
    """What is marked, for embedding."""
    anchored: bool = False
    """Whether embedding writes an anchor too."""


def measured(task: CostTask, *, apart: bool) -> Spent:
    """What the operation takes; in a process of its own, or here without its memory."""
    if not apart:
        return _here(task)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            return pool.submit(_with_memory, task).result()
        except BrokenProcessPool:
            raise AttackError(BROKEN) from None


def size_of(model: Path) -> int:
    """Bytes of the files that hold a checkpoint's tensors."""
    return sum(file.stat().st_size for file in open_checkpoint(model).files())


def embed_obstacle(key: Key) -> str:
    """Why a file cannot be marked with this key; empty: it can."""
    scheme = schemes.get(key.parameters.scheme)
    if not scheme.marks:
        return f"not measured: {scheme.name} writes nothing"
    if not scheme.writes:
        return f"not measured: {scheme.name} is trained in and cannot be written into a file"
    return "" if key.kind == "native" else f"not measured: a {key.kind} key writes no mark"


def _with_memory(task: CostTask) -> Spent:
    idle = _peak()
    spent = _here(task)
    return Spent(spent.seconds, spent.runs, _peak(), idle)


def _here(task: CostTask) -> Spent:
    runs = RUNS[task.operation]
    operations = {"embed": _embed, "verify": _verify, "digest": _digest}
    return Spent(_median(lambda: operations[task.operation](task), runs), runs)


def _embed(task: CostTask) -> None:
    options = EmbedOptions(tensors=list(task.tensors), anchor=task.anchored)
    with tempfile.TemporaryDirectory(prefix="neuralmark-") as folder:
        embed(task.model, task.key, Path(folder) / task.model.name, options)


def _verify(task: CostTask) -> None:
    options = VerifyOptions(anchor=task.anchor, full_digest=False)
    verify(task.model, task.key, claim=task.claim, options=options)


def _digest(task: CostTask) -> None:
    digest_of(open_checkpoint(task.model), {}, full=True)


def _median(action: Callable[[], object], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _peak() -> int | None:
    """Largest resident memory of this process so far, in bytes; None where nobody tells."""
    return _kilobytes(Path("/proc/self/status"), "VmHWM:")


def _kilobytes(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(name)]
    return int(found[0]) * 1024 if found else None


def machine() -> Machine:
    """The machine that this runs on, without its name."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory=_kilobytes(Path("/proc/meminfo"), "MemTotal:"),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        numpy=np.__version__,
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), platform.processor() or platform.machine())


def step_times(
    module: "torch.nn.Module",
    key: Key,
    data: Data,
    tensors: Sequence[str],
    triggers: "Triggers | str | Path | None" = None,
) -> tuple[float, float] | str:
    """Seconds of a training step with the mark and without, taken in turn; or why there are none.

    Both copies are trained with SGD at η=0.001; the mark is kept as `attach` does by default.
    """
    import torch

    from neuralmark.training.attach import attach

    trained: list[Callable[[int], float]] = []
    for marked in (True, False):
        own = copied(module).train()
        optimizer = torch.optim.SGD(own.parameters(), lr=0.001)
        if marked:
            options = AttachOptions(tensors=list(tensors), triggers=triggers)
            try:
                attach(own, optimizer, key, options)
            except NeuralMarkError as error:
                return f"not measured: {error}"
        trained.append(_stepper(own, optimizer, data))
    times = [[step(turn) for step in trained] for turn in range(WARM + STEPS)][WARM:]
    with_mark, without = (statistics.median(each) for each in zip(*times, strict=True))
    return with_mark, without


def _stepper(
    model: "torch.nn.Module", optimizer: "torch.optim.Optimizer", data: Data
) -> Callable[[int], float]:
    import torch

    size = min(BATCH, len(data.labels))

    def step(turn: int) -> float:
        some = (torch.arange(size) + turn * size) % len(data.labels)
        start = time.perf_counter()
        optimizer.zero_grad()
        with taking(data.inputs, data):
            outputs = model(data.inputs[some])
            outputs = getattr(outputs, "logits", outputs)
            torch.nn.functional.cross_entropy(outputs, data.labels[some]).backward()
        optimizer.step()
        return time.perf_counter() - start

    return step


def inference_time(module: "torch.nn.Module", data: Data) -> float:
    """Seconds of the network for one example, in a batch."""
    import torch

    some = data.test_inputs[:BATCH]
    was = module.training
    module.eval()
    try:
        with taking(some), torch.no_grad():
            module(some)
            return _median(lambda: module(some), RUNS["verify"]) / len(some)
    finally:
        module.train(was)
