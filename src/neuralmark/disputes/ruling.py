"""The paper's criterion as a pure function: verdicts in, a ruling with its reasons out.

The owner is the party that shows a model with only its own mark, while its mark is also in what
the others show and in the disputed model. A thief can add a mark, but cannot show the model
without the owner's. Two parties can never both satisfy it: the first would need the second's mark
absent from its exhibit, the second would need it there.
"""

from collections.abc import Mapping, Sequence

from neuralmark.disputes.parties import DISPUTED, Party, Shown, check_name, exhibit_of
from neuralmark.disputes.records import Case, Ruling
from neuralmark.disputes.relations import RELATED, Relation
from neuralmark.disputes.sightings import ABSENT, PRESENT, TRACES, UNPROVEN, Sighting
from neuralmark.errors import DisputeError
from neuralmark.records import Verdict

Verdicts = Mapping[tuple[str, str], Verdict | None]
"""By the party's name and the model's label; None: the model has no place for the mark."""

_BLOCKING = (PRESENT, TRACES)
_FOUND = {PRESENT: "is present", TRACES: "has left traces"}
_STATES = {
    ABSENT: "is absent from",
    TRACES: "shows only traces (weakened, or found by luck) in",
    UNPROVEN: "matches without proof (which is not a mark) in",
}


def rule(
    parties: Sequence[Party],
    verdicts: Verdicts,
    relations: Sequence[Relation],
    disputed: Shown | None = None,
) -> Ruling:
    """Rule between two or more parties.

    `arbitrate` opens what they bring and calls it; nothing is read here.

    Args:
        parties: The claimants, with the public side of their keys.
        verdicts: By the party's name and the model's label; None where a mark has no place.
        relations: How the models are related to each other.
        disputed: The model in dispute, if it is not one of the exhibits.

    Returns:
        Who the owner is, or that it cannot be said, and why.

    Raises:
        DisputeError: There are fewer than two parties, two share a name or a key, or a verdict is
            missing.

    Examples:
        >>> other = neuralmark.Key.new(key.parameters)
        >>> one = neuralmark.Claimant("Acme", key, "marked.safetensors")
        >>> two = neuralmark.Claimant("Idle", other, "marked.safetensors")
        >>> found = neuralmark.arbitrate([one, two])
        >>> exhibits = [party.label for party in found.parties]
        >>> shown = neuralmark.verify("marked.safetensors", key)
        >>> idle = neuralmark.verify("marked.safetensors", other)
        >>> verdicts = {("Acme", label): shown for label in exhibits}
        >>> verdicts |= {("Idle", label): idle for label in exhibits}
        >>> neuralmark.rule(found.parties, verdicts, found.relations).owner
        'Acme'
    """
    check_parties(parties)
    labels = [party.label for party in parties] + ([] if disputed is None else [DISPUTED])
    sightings = {
        (party.name, label): Sighting.of(party.name, label, _given(verdicts, party.name, label))
        for party in parties
        for label in labels
    }
    aside = _set_aside(parties, relations, disputed)
    barred = _barred(aside, sightings) if disputed else {}
    cases = tuple(_case(party, parties, sightings, aside, disputed, barred) for party in parties)
    complete = [case.party for case in cases if case.complete]
    owner = complete[0] if len(complete) == 1 else None  # never two; if ever, nobody wins
    return Ruling(
        owner=owner,
        reasons=_reasons(cases, owner),
        cautions=_cautions(parties, sightings, aside),
        parties=tuple(parties),
        disputed=disputed,
        cases=cases,
        sightings=tuple(sightings.values()),
        relations=tuple(relations),
        set_aside=aside,
    )


def check_parties(parties: Sequence[Party]) -> None:
    """At least two parties, each with a name and a key of its own."""
    if len(parties) < 2:
        raise DisputeError("a dispute needs at least two parties, each with a key and a model")
    names = [check_name(party.name) for party in parties]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DisputeError(f"the party {twice!r} is named twice: give each another name")
    holder: dict[str, str] = {}
    for party in parties:
        other = holder.setdefault(party.fingerprint, party.name)
        if other != party.name:
            raise same_key(other, party.name)


def same_key(one: str, two: str) -> DisputeError:
    """The error for two parties with one key."""
    return DisputeError(
        f"{one!r} and {two!r} bring the same key: marks cannot tell them apart; each must bring"
        " the key it made"
    )


def _given(verdicts: Verdicts, name: str, label: str) -> Verdict | None:
    if (name, label) not in verdicts:
        raise DisputeError(f"there is no verdict on the key of {name!r} in {label}: verify it")
    return verdicts[name, label]


def _set_aside(
    parties: Sequence[Party], relations: Sequence[Relation], disputed: Shown | None
) -> tuple[str, ...]:
    """Whose exhibits are unrelated to the disputed model or, without one, to all the others."""
    related = {frozenset((r.one, r.two)) for r in relations if r.related}
    aside = []
    for party in parties:
        others = [other.label for other in parties if other is not party]
        against = others if disputed is None else [DISPUTED]
        if not any(frozenset((party.label, label)) in related for label in against):
            aside.append(party.name)
    return tuple(aside)


def _barred(aside: Sequence[str], sightings: Mapping[tuple[str, str], Sighting]) -> dict[str, str]:
    """Why nobody wins against those who were set aside, by name.

    A thief who reorders a stolen model leaves no correlation, at no cost. If he left the marked
    tensors as they were, the owner's mark is still there; if not, an idle claimant looks the same.
    """
    return {name: _bar(sightings[name, DISPUTED]) for name in aside}


def _bar(found: Sighting) -> str:
    label = exhibit_of(found.party)
    if found.state in _BLOCKING:
        return (
            f"the mark of {found.party} {_FOUND[found.state]} in {DISPUTED}, though {label} is not"
            " related to it: this may be a copy whose other tensors were rearranged"
        )
    return (
        f"{DISPUTED} shares neither weights nor the mark with {label}: an idle claim, or a copy"
        " with reordered or added channels; weights alone do not tell which"
    )


def _case(
    party: Party,
    parties: Sequence[Party],
    sightings: Mapping[tuple[str, str], Sighting],
    aside: Sequence[str],
    disputed: Shown | None,
    barred: Mapping[str, str],
) -> Case:
    """Hold one party against every part of the criterion."""
    holds: list[str] = []
    missing = [why for name, why in barred.items() if name != party.name]
    if party.name in aside:
        what = "what the others show" if disputed is None else DISPUTED
        missing.append(f"{party.label} is unrelated to {what} and was set aside")
    elif aside and disputed is None:
        missing.append(
            f"the exhibits are not of one model ({_listed(aside)} set aside), and without a"
            " disputed model nothing says which of them the dispute is about"
        )
    others = [other for other in parties if other is not party]
    wanted = [party.label]
    wanted += [other.label for other in others if other.name not in aside]
    wanted += [] if disputed is None else [DISPUTED]
    for label in wanted:
        state = sightings[party.name, label].state
        if state == PRESENT:
            holds.append(f"its mark is present in {label}")
        else:
            missing.append(f"its mark {_STATES[state]} {label}")
    for other in others:
        state = sightings[other.name, party.label].state
        if state in _BLOCKING:
            missing.append(f"the mark of {other.name} {_FOUND[state]} in {party.label}")
        elif state == UNPROVEN:
            holds.append(
                f"the key of {other.name} matches {party.label} without proof, which is not a mark"
            )
        else:
            holds.append(f"the mark of {other.name} is absent from {party.label}")
    return Case(party.name, tuple(holds), tuple(missing))


def _reasons(cases: Sequence[Case], owner: str | None) -> tuple[str, ...]:
    """What holds for the owner, then what the others lack; without an owner, what all lack."""
    won = [f"{case.party}: {line}" for case in cases if case.party == owner for line in case.holds]
    lost = [
        f"{case.party}: {line}" for case in cases if case.party != owner for line in case.missing
    ]
    return tuple(won + lost)


def _cautions(
    parties: Sequence[Party],
    sightings: Mapping[tuple[str, str], Sighting],
    aside: Sequence[str],
) -> tuple[str, ...]:
    """What a judge should mind before relying on the ruling."""
    said = []
    if aside:
        said.append(
            f"what {_listed(aside)} showed was set aside because its weights correlate by less"
            f" than {RELATED:g}; a copy with reordered, rescaled or reshaped channels looks the"
            " same, and whether the models behave alike was not examined"
        )
    for party in parties:
        states = {s.state for (name, _), s in sightings.items() if name == party.name}
        if UNPROVEN in states:
            said.append(
                f"the key of {party.name} can prove nothing: it is a matrix made elsewhere, which"
                " can be fitted to any model, or it has too few bits; its matches count neither"
                " for nor against anybody"
            )
    return tuple(said + [_traced(s) for s in sightings.values() if _foreign_trace(s)])


def _foreign_trace(found: Sighting) -> bool:
    return found.state == TRACES and found.model != exhibit_of(found.party)


def _traced(found: Sighting) -> str:
    luck = found.bound_log2 or 0.0
    return (
        f"traces of the mark of {found.party} in {found.model}: luck alone matches as well with a"
        f" chance of 2^{luck:.0f}; they are a weakened mark, or a key picked from about"
        f" 2^{-luck:.0f} for fitting that model a little, which a commitment registered before the"
        " model was released rules out"
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]
