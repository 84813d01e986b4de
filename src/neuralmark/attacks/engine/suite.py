"""The suite: every attack that can be run, at every strength of its sweep, side by side.

Without data, those on weights alone, shared among processes. With a live module and data, those
that train or look at activations too, one after the other in this process.

Each attack draws from a generator of its own, seeded by the suite's seed and by what the attack
is, so the card does not depend on how many processes share the work.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from neuralmark.attacks import get, name_of, names
from neuralmark.attacks.contract import Attack, Data, Need, Weights
from neuralmark.attacks.engine.arena import Arena, Counting, fight_all, fight_here
from neuralmark.attacks.engine.card import Card, Skipped
from neuralmark.attacks.engine.launch import carried
from neuralmark.attacks.engine.options import SuiteOptions
from neuralmark.attacks.engine.result import Result
from neuralmark.attacks.engine.subject import check_data, read_weights, subject_of
from neuralmark.attacks.engine.tally import make_card
from neuralmark.attacks.engine.triggered import (
    carried_live,
    no_anchor,
    reads_activations,
    refuse_triggers,
)
from neuralmark.errors import (
    AttackError,
    MissingDataError,
    MissingExtraError,
    NeuralMarkWarning,
)
from neuralmark.keys.key import Key
from neuralmark.marking.beside import FROM_FILE
from neuralmark.marking.evidence import Evidence
from neuralmark.marking.options import options_of
from neuralmark.records import Claim
from neuralmark.triggers.triggers import Triggers

if TYPE_CHECKING:
    import torch

CALL = "neuralmark.attacks.launch(neuralmark.attacks.get({name!r})(), module, key"
DATA = (
    "needs data: run it from Python, "
    f"{CALL}, data=neuralmark.attacks.Data(inputs, labels, test_inputs, test_labels))"
)
MODEL = f"needs the running network: run it from Python, {CALL})"
HUNGRY = frozenset({"data", "model"})
OTHERS = "needs another checkpoint of the same shape: others=[...]"
ALONE = "has no sweep: run it alone"


def suite(
    model: "str | Path | Weights | torch.nn.Module",
    key: Key,
    options: SuiteOptions | None = None,
    *,
    claim: Claim | str | Path | None = None,
    data: Data | None = None,
    triggers: Triggers | str | Path | None = None,
    progress: Counting | None = None,
) -> Card:
    """Run every attack that needs no data on the model, and give its robustness card.

    A live module is attacked through its weights; with `data` also by the attacks that train it or
    look at its activations (the option `only` keeps that short). In a script, more than one process
    needs the usual guard, `if __name__ == "__main__":`.

    Args:
        model: The marked model as a path, a table of weights or a live module.
        key: The owner's key.
        options: Which attacks, other checkpoints, the seed, how many processes; see `SuiteOptions`.
        claim: Where the mark was put.
        data: Labelled examples, for a live module.
        triggers: For schemes that read activations: the triggers, or the path of their file. The
            model must be a live module then, and all attacks are run in this process.
        progress: Called with the attack that was done, how many are done, and how many there are.

    Returns:
        The card, with what the mark withstood and where each attack undid it.

    Raises:
        AttackError: None of the attacks can be run, or the model does not carry the mark.
        LiveModelError: The scheme reads activations, and the model is no live module.
        ParameterError: A value is out of range.
        InputError: The model cannot be read.

    Examples:
        >>> options = neuralmark.attacks.SuiteOptions(only=["shift"], jobs=1)
        >>> card = neuralmark.attacks.suite("marked.safetensors", key, options)
        >>> {row.attack for row in card.rows}
        {'shift'}
    """
    start = time.perf_counter()
    options = options_of(SuiteOptions, options)
    others, seed, only = options.others, options.seed, options.only
    whole = subject_of(model)
    check_data(data, whole)
    subject = replace(whole, module=None)
    triggered = reads_activations(key)
    if triggered:
        no_anchor(options.anchor)
        before = carried_live(whole, key, claim, triggers)
        arena = Arena(whole, key, claim, tuple(others), seed, triggers=triggers)
        evidence = Evidence(Claim.given(claim))
    else:
        refuse_triggers(triggers)
        file = getattr(model, FROM_FILE, model)
        source = Path(file) if isinstance(file, str | Path) else subject
        arena = Arena(source, key, claim, tuple(others), seed, anchor=options.anchor)
        evidence = arena.sought()
        before = carried(subject, key, evidence)
    for other in others:
        read_weights(other)  # what cannot be read is said here, not by a worker
    live = whole.module is not None
    members, here, skipped = _shared_out(only, others=bool(others), live=live, data=bool(data))
    if triggered:  # only a network that runs can be read
        members, here = [], members + here
    outcomes = fight_all(arena, subject, members, options.jobs, progress) if members else []
    arena = replace(arena, subject=whole, data=data, evidence=evidence)
    outcomes += fight_here(arena, here, progress)
    fought = [
        (attack, outcome)
        for attack, outcome in zip(members + here, outcomes, strict=True)
        if isinstance(outcome, Result)
    ]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
    skipped += gathered(refused, {name_of(attack) for attack, _ in fought})
    if not fought:
        _nothing_run(skipped, tried=bool(outcomes))
    seconds = time.perf_counter() - start
    return make_card(before, fought, skipped, seed=seed, seconds=seconds)


def _nothing_run(skipped: Sequence[Skipped], *, tried: bool) -> None:
    reasons = "; ".join(f"{each.attack} {each.why}" for each in skipped)
    words = f"none of these attacks could be run here: {reasons}"
    raise AttackError(words) if tried else MissingDataError(words)


def _shared_out(
    only: Sequence[str] | None, *, others: bool, live: bool, data: bool
) -> tuple[list[Attack], list[Attack], list[Skipped]]:
    """Attacks on weights alone, those that are given the live module, and why the rest cannot."""
    trained = live and data
    members, skipped = enlist(only, others=others, data=trained)
    here = [a for a in members if live and any(part.preserves for part in a.parts)]
    members = [attack for attack in members if attack not in here]
    if trained:
        hungry, more = enlist(only, others=others, data=True, hungry=True)
        here += hungry
        skipped = list(dict.fromkeys(skipped + more))
    return members, here, skipped


def enlist(
    only: Sequence[str] | None, *, others: bool, data: bool = False, hungry: bool = False
) -> tuple[list[Attack], list[Skipped]]:
    """The sweeps of all attacks (or of those named) that can run, and why the rest cannot.

    Hungry ones need a module or data; with `data` they are left to a list of their own.
    """
    wanted = names() if only is None else [name.replace("_", "-") for name in only]
    members: list[Attack] = []
    skipped: list[Skipped] = []
    for name in dict.fromkeys(wanted):
        try:
            attack = get(name)
        except MissingExtraError as error:
            skipped.append(Skipped(name, str(error)))
            continue
        why = obstacle(attack, others=others, data=data)
        sweep, left_out = ((), []) if why else _sweep(attack)
        reasons = left_out if sweep else [why or ALONE]
        whole: Sequence[Attack | type[Attack]] = sweep or [attack]
        fitting = [a for a in whole if not data or hungry == bool(needed(a) & HUNGRY)]
        skipped += [Skipped(name, reason) for reason in reasons if fitting]
        for each in sweep:
            why = obstacle(each, others=others, data=data)
            if why:
                skipped.append(Skipped(name, why, each.variant))
            elif each in fitting:
                members.append(each)
    return members, skipped


def needed(attack: Attack | type[Attack]) -> frozenset[Need]:
    """What an attack cannot do without; of one that combines others, what any of them needs."""
    if isinstance(attack, type):
        return attack.needs
    return frozenset().union(*(part.needs for part in attack.parts))


def _sweep(attack: type[Attack]) -> tuple[Sequence[Attack], list[str]]:
    """An attack's sweep, and what it warns that it leaves out."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NeuralMarkWarning)
        sweep = attack.sweep()
    return sweep, [str(each.message) for each in caught]


def gathered(refused: Sequence[Skipped], fought: set[str]) -> list[Skipped]:
    """Each refusal once; of an attack that never ran for one reason, without its variants."""
    reasons: dict[str, set[str]] = {}
    for each in refused:
        reasons.setdefault(each.attack, set()).add(each.why)
    whole = {attack for attack, why in reasons.items() if attack not in fought and len(why) == 1}
    return list(dict.fromkeys(replace(e, variant="") if e.attack in whole else e for e in refused))


def obstacle(
    attack: Attack | type[Attack], *, others: bool, data: bool = False, live: bool = False
) -> str:
    """Why an attack cannot be run on weights alone (or a live module); empty: it can."""
    needs = needed(attack)
    if "data" in needs and not data:
        return DATA.format(name=name_of(attack))
    if "model" in needs and not (data or live):
        return MODEL.format(name=name_of(attack))
    return OTHERS if "others" in needs and not others else ""
