"""The evaluation procedure of MPAI-NNW (IEEE 3304) on one marked network.

Imperceptibility compares it with the unmarked original; robustness modifies both and asks detector
and decoder (here one: verification); cost times embedding and verification. The standard averages
over many networks and payloads: make a report of each.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from neuralmark import schemes
from neuralmark.attacks.contract import Data, Weights
from neuralmark.attacks.engine import costing
from neuralmark.attacks.engine.arena import Counting
from neuralmark.attacks.engine.bench import NO_DATA, Bench, bench_for, unmarked_of
from neuralmark.attacks.engine.card import Before
from neuralmark.attacks.engine.modifications import modifications
from neuralmark.attacks.engine.options import StandardOptions
from neuralmark.attacks.engine.outlay import MarkingCost, Spent
from neuralmark.attacks.engine.robustness import modified
from neuralmark.attacks.engine.standard_report import Imperceptibility, StandardReport
from neuralmark.attacks.engine.subject import Subject, check_data, subject_of
from neuralmark.errors import NeuralMarkError
from neuralmark.keys.key import Key
from neuralmark.marking.options import options_of
from neuralmark.records import Claim, presenting
from neuralmark.triggers.triggers import Triggers

if TYPE_CHECKING:
    import torch

NO_ORIGINAL = "not measured: give the unmarked original (original=...)"
NO_CLASSES = "not measured: the network's outputs are no scores of classes"
NO_TENSORS = "not measured: the scheme marks activations, no tensors of its own"
LIVE = "not measured: a live module is no file"


def standard(
    model: "str | Path | Weights | torch.nn.Module",
    key: Key,
    options: StandardOptions | None = None,
    *,
    claim: Claim | str | Path | None = None,
    data: Data | None = None,
    triggers: Triggers | str | Path | None = None,
    progress: Counting | None = None,
) -> StandardReport:
    """Evaluate a marked network as MPAI-NNW (IEEE 3304) does: three parts in one report.

    On a file, modifications of weights are made; with a live module and data also fine-tuning,
    overwriting by training and distillation, and accuracies are measured. In a script, more than
    one process needs the usual guard, `if __name__ == "__main__":`.

    Args:
        model: The marked network as a path, a table of weights or a live module.
        key: The owner's key.
        options: The unmarked original, which modifications, the seed; see `StandardOptions`.
        claim: Where the mark was put.
        data: Labelled examples, for a live module.
        triggers: For schemes that read activations: the triggers, or the path of their file. The
            model must be a live module then.
        progress: Called with the attack that was done, how many are done, and how many there are.

    Returns:
        The report, with what was not measured and why.

    Raises:
        AttackError: The model does not carry the mark, the original carries it or does not fit, or
            `only` names an attack that makes none of the standard's modifications.
        LiveModelError: The scheme reads activations, and the model is no live module.
        ParameterError: A value is out of range.
        InputError: The model or the original cannot be read.

    Examples:
        >>> options = neuralmark.attacks.StandardOptions("model.safetensors", ["noise"], jobs=1)
        >>> report = neuralmark.attacks.standard("marked.safetensors", key, options)
        >>> report.unmarked, report.false_alarms, report.imperceptibility.change < 0.5
        (6, 0, True)
    """
    start = time.perf_counter()
    options = options_of(StandardOptions, options)
    wanted = modifications(options.only)
    whole = subject_of(model)
    if whole.module is None:
        schemes.require_weights(key.parameters)
    check_data(data, whole)
    bench = bench_for(model, whole, key, options, claim=claim, data=data, triggers=triggers)
    original = None if options.original is None else unmarked_of(bench, options.original)
    found = modified(bench, wanted, original, progress)
    before = bench.before
    return StandardReport(
        model=before.model,
        original=None if original is None else original.label,
        fingerprint=key.fingerprint,
        before=Before.of(before),
        proves=schemes.get(key.parameters.scheme).facts.proves,
        imperceptibility=_imperceptibility(bench, original),
        modifications=found,
        cost=_cost(bench),
        machine=costing.machine(),
        seed=options.seed,
        seconds=time.perf_counter() - start,
        date=presenting.now(),
    )


def _imperceptibility(bench: Bench, original: Subject | None) -> Imperceptibility:
    marked, data = bench.whole, bench.data
    after = marked.accuracy(data)
    before = None if original is None else original.accuracy(data)
    why = "" if bench.live else NO_DATA
    why = why or (NO_CLASSES if after is None else NO_ORIGINAL if before is None else "")
    told = Imperceptibility(
        accuracy_unmarked=before,
        accuracy_marked=after,
        examples=0 if after is None or data is None else len(data.test_labels),
        accuracy_why=why,
    )
    if original is None:
        return replace(told, change_why=NO_ORIGINAL)
    shared = [name for name in original.weights if name in marked.weights]
    change = marked.distance(original, bench.marked) if bench.marked else None
    return replace(
        told,
        change=change,
        change_whole=marked.distance(original, shared),
        change_why="" if bench.marked else NO_TENSORS,
    )


def _cost(bench: Bench) -> MarkingCost:
    model = bench.model
    cost = _of_file(bench, Path(model)) if isinstance(model, str | Path) else _of_live(bench)
    if bench.whole.module is None or bench.data is None:
        return replace(cost, step_why=NO_DATA)
    layers = bench.marked or [name for name, _ in bench.before.placement]
    times = costing.step_times(bench.whole.module, bench.key, bench.data, layers, bench.triggers)
    cost = replace(cost, inference=costing.inference_time(bench.whole.module, bench.data))
    if isinstance(times, str):
        return replace(cost, step_why=times)
    return replace(cost, step=times[0], step_clean=times[1])


def _of_live(bench: Bench) -> MarkingCost:
    if bench.whole.module is None:
        return MarkingCost(embed_how=LIVE.replace("live module", "table of weights"))
    start = time.perf_counter()
    bench.read(bench.whole.module)
    return MarkingCost(embed_how=LIVE, verify=Spent(time.perf_counter() - start, 1))


def _of_file(bench: Bench, path: Path) -> MarkingCost:
    key, options = bench.key, bench.options
    apart = options.jobs != 1
    anchor = options.anchor if isinstance(options.anchor, str | Path) else None
    task = costing.CostTask("verify", path, key, bench.claim, anchor)
    cost = MarkingCost(
        verify=costing.measured(task, apart=apart),
        digest=costing.measured(replace(task, operation="digest"), apart=apart),
        size=costing.size_of(path),
    )
    why = costing.embed_obstacle(key)
    if why:
        return replace(cost, embed_how=why)
    known = isinstance(options.original, str | Path)
    task = replace(
        task,
        operation="embed",
        model=Path(options.original) if isinstance(options.original, str | Path) else path,
        tensors=tuple(bench.marked),
        anchored=bench.before.anchor_digest is not None,
    )
    try:
        spent = costing.measured(task, apart=apart)
    except NeuralMarkError as error:
        return replace(cost, embed_how=f"not measured: {error}")
    how = "into a copy of the " + ("unmarked original" if known else "marked file")
    return replace(cost, embed=spent, embed_how=how)
