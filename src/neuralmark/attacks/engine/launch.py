"""Launching an attack: copy, run, time, and judge before and after."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralmark.anchors.anchor import Anchor
from neuralmark.attacks import name_of
from neuralmark.attacks.contract import (
    KEY,
    WEIGHTS,
    Attack,
    Data,
    Outcome,
    Scene,
    Weights,
)
from neuralmark.attacks.engine.options import LaunchOptions
from neuralmark.attacks.engine.result import Result
from neuralmark.attacks.engine.subject import (
    Subject,
    check_data,
    copied,
    read_weights,
    require_finite,
    same_outputs,
    subject_of,
)
from neuralmark.attacks.engine.triggered import (
    carried_live,
    carries,
    forged_live,
    judged_live,
    no_mark,
    reads_activations,
    refuse_anchor,
    refuse_triggers,
)
from neuralmark.core.key import Placement
from neuralmark.core.names import canonical_name
from neuralmark.errors import (
    AttackError,
    MissingDataError,
    NonFiniteError,
    OutputError,
    ParameterError,
    TooFewCarriersError,
    UnknownTensorError,
    UnsuitableTensorError,
)
from neuralmark.keys.key import Key
from neuralmark.marking.attempts import claimed
from neuralmark.marking.evidence import Evidence, evidence_for
from neuralmark.marking.judging import Looked, judge
from neuralmark.marking.options import options_of
from neuralmark.marking.reading import Progress, Suspect
from neuralmark.marking.verification import best_finding, examine
from neuralmark.records import Claim, Verdict
from neuralmark.storage.bookmark import Bookmark
from neuralmark.triggers.triggers import Triggers

if TYPE_CHECKING:
    import torch

UNREADABLE = (UnknownTensorError, UnsuitableTensorError, TooFewCarriersError)


def launch(
    attack: Attack,
    model: "str | Path | Weights | torch.nn.Module | Subject",
    key: Key | None = None,
    options: LaunchOptions | None = None,
    *,
    claim: Claim | str | Path | None = None,
    data: Data | None = None,
    triggers: Triggers | str | Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run an attack on a copy of the model and verify the key's mark before and after.

    The attacker never sees the key. With the option `keep`, an attack that trains (finetune,
    overwrite), launched again with the same arguments, goes on from there and ends with the same
    weights; a damaged file, or one of another attack, is replaced, and the last stays.

    Args:
        attack: The attack with its settings.
        model: The marked model as a path, a table of weights or a live module.
        key: The owner's key; an attack that forges one is only told its scheme and parameters.
        options: Which tensors, other checkpoints, the seed; see `LaunchOptions`.
        claim: Where the mark was put.
        data: Labelled examples, for attacks that train or look at activations.
        triggers: For schemes that read activations: the triggers, or the path of their file. The
            model must be a live module then; of such a mark the attacker is told nothing.
        progress: Called with what is being done, how much is done, and how much there is.

    Returns:
        What the attack cost, and the verdicts before and after.

    Raises:
        AttackError: The attack cannot be carried out, or the model does not carry the mark.
        LiveModelError: The scheme reads activations, and the model is no live module.
        ParameterError: The attack or the seed is not one.
        InputError: The model cannot be read.

    Examples:
        >>> noise = neuralmark.attacks.get("noise")(0.1)
        >>> result = neuralmark.attacks.launch(noise, "marked.safetensors", key)
        >>> result.survived, result.after.status
        (True, 'verified')
    """
    _require_attack(attack)
    options = options_of(LaunchOptions, options)
    bookmark, others, seed = _bookmark(options.keep), options.others, options.seed
    subject = subject_of(model)
    if key is not None and reads_activations(key):
        refuse_anchor(options.anchor)
        held = carried_live(subject, key, claim, triggers, demand=options.demand)
        result = launch(attack, subject, None, options, data=data, progress=progress)
        return judged_live(result, held, key, triggers)
    refuse_triggers(triggers)
    for part in attack.parts:
        _require(part, subject, data, others)
    check_data(data, subject)
    evidence = Evidence()
    if key is not None:
        evidence = evidence_for(model, key, claim=claim, anchor=options.anchor)
    before, placement = _sought(attack, subject, key, evidence, demand=options.demand)
    scene = Scene(
        weights=subject.weights,
        target=_targets(attack, subject, options.tensors),
        rng=np.random.default_rng(seed),
        model=None if subject.module is None else copied(subject.module),
        data=data,
        others=tuple(read_weights(other) for other in others),
        placement=placement,
        parameters=None if key is None else key.parameters,
        progress=progress,
        bookmark=bookmark,
        heads=subject.heads,
    )
    _require_finite(attack, scene, subject.label)
    start = time.perf_counter()
    outcome = _seeded(attack, scene, seed)
    seconds = time.perf_counter() - start
    earlier = 0.0 if bookmark is None else bookmark.earlier
    changed = subject.after(outcome)
    if data is not None and all(part.preserves for part in attack.parts):
        same_outputs(subject, changed, data)
    if outcome.triggers is not None:
        judged, unreadable = forged_live(changed, outcome), ""
    else:
        judged, unreadable = _judged(attack, changed, outcome, key, before)
    anchor = evidence.anchor if attack.kind == WEIGHTS and before is not None else None
    return Result(
        attack=name_of(attack),
        kind=attack.kind,
        settings=attack.settings(),
        strength=attack.strength,
        variant=attack.variant,
        before=before,
        after=judged,
        unreadable=unreadable,
        seconds=seconds + earlier,
        steps=outcome.steps,
        queries=outcome.queries,
        change=changed.distance(subject, _looked_at(attack, scene, before)),
        earlier=earlier,
        accuracy_before=subject.accuracy(data) if attack.keeps_task else None,
        accuracy_after=changed.accuracy(data),
        note=outcome.note,
        figures=outcome.figures,
        weights=changed.weights,
        model=changed.module,
        key=outcome.key,
        triggers=outcome.triggers,
        anchored=anchor is not None,
        aligned=None if anchor is None or key is None else _aligned(changed, key, anchor),
    )


def _bookmark(keep: str | Path | None) -> Bookmark | None:
    if keep is None:
        return None
    path = Path(keep)
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent} is not a folder: create it first")
    if path.is_dir():
        raise OutputError(f"{path} is a folder: give the name of a file")
    return Bookmark(path)


def _looked_at(attack: Attack, scene: Scene, before: Verdict | None) -> Sequence[str]:
    """The tensors whose change is told: those attacked; where the task is new, those marked.

    A fresh classifier would drown out everything else.
    """
    if attack.keeps_task or before is None:
        return scene.target
    return [tensor.stored_name for tensor in before.tensors]


def _seeded(attack: Attack, scene: Scene, seed: int) -> Outcome:
    """Run; torch's own randomness follows the seed too and is put back afterwards."""
    if scene.model is None:
        return attack.run(scene)
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return attack.run(scene)


def _require_attack(attack: Any) -> None:
    if isinstance(attack, Attack):
        return
    if isinstance(attack, type) and issubclass(attack, Attack):
        name = name_of(attack)
        raise ParameterError(f"give an attack, not its class: neuralmark.attacks.get({name!r})()")
    if isinstance(attack, str):
        raise ParameterError(f"give an attack, not its name: neuralmark.attacks.get({attack!r})()")
    raise ParameterError(
        f"expected an attack, as neuralmark.attacks.get(NAME)() makes it, not"
        f" {type(attack).__name__}"
    )


def _targets(attack: Attack, subject: Subject, tensors: Sequence[str] | None) -> tuple[str, ...]:
    chosen = subject.select(tensors)
    if not chosen and attack.kind != KEY:
        raise AttackError(
            f"{subject.label} holds no floating-point matrix: nothing to attack; name the tensors"
            " if it is others that you mean (tensors=[...])"
        )
    return chosen


def _require_finite(attack: Attack, scene: Scene, label: str) -> None:
    """Attacks on tables of weights take every target; others say themselves what they look at."""
    if attack.kind != WEIGHTS or "model" in attack.needs:
        return
    require_finite(scene.weights, scene.target, label)
    for number, other in enumerate(scene.others, 1):
        require_finite(other, scene.target, f"other checkpoint {number}")


def _require(attack: Attack, subject: Subject, data: Data | None, others: Sequence[Any]) -> None:
    name = name_of(attack)
    if "model" in attack.needs and subject.module is None:
        raise MissingDataError(
            f"the attack {name!r} runs the network: give a live torch module, not a file"
            " (neuralmark.attacks.launch from Python)"
        )
    if "data" in attack.needs and data is None:
        raise MissingDataError(
            f"the attack {name!r} needs data: pass data=Data(inputs, labels, test_inputs,"
            " test_labels) to neuralmark.attacks.launch"
        )
    if "others" in attack.needs and not others:
        raise MissingDataError(f"the attack {name!r} needs another checkpoint of the same shape")


def _sought(
    attack: Attack,
    subject: Subject,
    key: Key | None,
    evidence: Evidence,
    *,
    demand: bool,
) -> tuple[Verdict | None, Placement]:
    """The verdict before, and where the attacker believes the mark to be."""
    if key is None:
        return None, ()
    if attack.kind != KEY or not demand:
        before = carried(subject, key, evidence, demand=demand)
        return before, _where(before, subject)
    try:
        before = carried(subject, key, evidence, demand=False)
    except UNREADABLE:  # nowhere for the owner's mark to be: the forger looks elsewhere
        return None, ()
    return before, _where(before, subject) if carries(before) else ()


def _where(verdict: Verdict, subject: Subject) -> Placement:
    """Where the mark was read, in the model's own names; nothing where they are not all there."""
    own = {canonical_name(name) for name in subject.weights} | {*subject.weights}
    read = {each.name: canonical_name(each.stored_name) for each in verdict.tensors}
    names = [name if name in own else read.get(name, name) for name, _ in verdict.placement]
    if not own.issuperset(names):
        return ()
    return tuple((new, shape) for new, (_, shape) in zip(names, verdict.placement, strict=True))


def carried(subject: Subject, key: Key, evidence: Evidence, *, demand: bool = True) -> Verdict:
    """The verdict before; a model without the mark cannot be attacked for it."""
    claim, anchor = evidence.claim, evidence.anchor
    verdict = examine(subject.suspect(), key, claim=claim, anchor=anchor)
    if demand and not carries(verdict):
        raise no_mark(subject, verdict, "embed it first, or give the claim that names its tensors")
    return verdict


def _judged(
    attack: Attack,
    changed: Subject,
    outcome: Outcome,
    key: Key | None,
    before: Verdict | None,
) -> tuple[Verdict | None, str]:
    """The verdict on the owner's key afterwards, where it was before; for a forged key, on that."""
    suspect = changed.suspect()
    if attack.kind == KEY:
        if outcome.key is None:
            return None, ""
        return examine(suspect, outcome.key, claim=_forged_claim(outcome.key, outcome, suspect)), ""
    if key is None or before is None:
        return None, ""
    try:
        anchor = bytes.fromhex(before.anchor_digest or "")
        attempts = claimed(suspect.tensors(), before.placement, anchor)
        if not attempts:
            raise UnknownTensorError("too few of the marked tensors are left under their names")
        finding, _ = best_finding(suspect, key, attempts)
        looked = Looked.at(suspect, attempts)
        looked = replace(looked, trials=max(looked.trials, before.trials))
        return judge(finding, suspect, key, looked), ""
    except (*UNREADABLE, NonFiniteError) as error:  # an attack may drive a model to NaN
        return None, str(error)


def _aligned(changed: Subject, key: Key, anchor: Anchor) -> Verdict | None:
    """The verdict of somebody who has the anchor: by position, then wherever the weights went."""
    try:
        return examine(changed.suspect(), key, anchor=anchor)
    except (*UNREADABLE, NonFiniteError):
        return None


def _forged_claim(key: Key, outcome: Outcome, suspect: Suspect) -> Claim | None:
    """What the forger would hand in beside his key."""
    if not outcome.placement:
        return None
    return Claim(
        key.fingerprint, key.commitment, key.parameters, outcome.placement, suspect.digest({})
    )
