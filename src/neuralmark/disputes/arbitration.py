"""Opening what the parties bring: every key verified in every model, models compared, then ruled.

No weights are changed, and nothing of a key goes into the ruling.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from neuralmark.anchors.anchor import Anchor
from neuralmark.checkpoints import Checkpoint, open_checkpoint
from neuralmark.disputes.parties import DISPUTED, Party, Shown, check_name, exhibit_of, stated_time
from neuralmark.disputes.records import Ruling
from neuralmark.disputes.relations import Compared, Relation, relate
from neuralmark.disputes.ruling import check_parties, rule, same_key
from neuralmark.disputes.sightings import ABSENT, PRESENT, state_of
from neuralmark.errors import (
    AnchorError,
    AnchorMismatchError,
    CheckpointError,
    ClaimMismatchError,
    NonFiniteError,
    ParameterError,
    RecordError,
    TooFewCarriersError,
    UnknownTensorError,
    UnreadableError,
    UnsuitableTensorError,
)
from neuralmark.keys.key import Key
from neuralmark.marking.evidence import Evidence, evidence_for
from neuralmark.marking.reading import FileSuspect, Progress, digest_of
from neuralmark.marking.verification import examine
from neuralmark.records import UNREADABLE, Claim, Verdict
from neuralmark.storage.places import Place


@dataclass(frozen=True)
class Claimant:
    """A party as it comes: a name, its key, the model it shows, and where its mark sits.

    Attributes:
        name: What the party is called, one line.
        key: The key it brings.
        exhibit: Path or URL of the model that it shows.
        claim: Where its mark sits; without, a claim beside the exhibit is followed, or the mark is
            searched as `verify` does, every way a trial.
        stated_time: When the key's commitment was registered; reported as stated, never used.
        anchor: The anchor of its mark; without, it is sought beside the claim.

    Examples:
        >>> neuralmark.Claimant("Acme", key, "marked.safetensors").name
        'Acme'
    """

    name: str
    key: Key
    exhibit: str | Place
    claim: Claim | str | Path | None = None
    stated_time: str | None = None
    anchor: Anchor | str | Path | None = None


@dataclass(frozen=True)
class _Model:
    label: str
    path: str
    checkpoint: Checkpoint
    stamps: list[tuple[object, ...]]


def arbitrate(
    claimants: Sequence[Claimant],
    *,
    disputed: str | Place | None = None,
    progress: Progress | None = None,
) -> Ruling:
    """Rule on who owns a model that two or more parties claim.

    With a disputed model, exhibits must be related to it; without, to each other.

    Args:
        claimants: The parties, each with a key of its own.
        disputed: Path or URL of the model that they dispute, where it is not one of the exhibits.
        progress: Called with what is being done, bytes done, and bytes in all.

    Returns:
        Who the owner is, or that it cannot be said, and why.

    Raises:
        DisputeError: There are fewer than two parties, or two share a name or a key.
        InputError: A model or a claim cannot be read.

    Examples:
        >>> thief = neuralmark.Key.new(key.parameters)
        >>> stolen = neuralmark.embed("marked.safetensors", thief, "stolen.safetensors").output
        >>> acme = neuralmark.Claimant("Acme", key, "marked.safetensors")
        >>> bandit = neuralmark.Claimant("Bandit", thief, stolen)
        >>> neuralmark.arbitrate([acme, bandit]).owner
        'Acme'
    """
    known = {check_name(c.name): _evidence(c) for c in claimants}
    claims = {name: found.claim for name, found in known.items()}
    _check_keys(claimants)
    models = [_open(exhibit_of(c.name), c.exhibit) for c in claimants]
    models += [] if disputed is None else [_open(DISPUTED, disputed)]
    shown = {model.label: _shown(model) for model in models}
    parties = [_party(claimant, shown[exhibit_of(claimant.name)]) for claimant in claimants]
    verdicts = {
        (c.name, model.label): _look(c, known[c.name], model, progress)
        for c in claimants
        for model in models
    }
    compared = [
        Compared(model.label, model.checkpoint, _marked(model.label, verdicts, claims))
        for model in models
    ]
    relations = _relations(compared, progress)
    for model in models:
        if model.checkpoint.stamps() != model.stamps:
            raise CheckpointError(f"{model.path}: changed while it was read; begin again")
    ruling = rule(parties, verdicts, relations, shown.get(DISPUTED))
    return replace(ruling, cautions=(*ruling.cautions, *_left_behind(known, verdicts)))


def _left_behind(
    known: Mapping[str, Evidence], verdicts: Mapping[tuple[str, str], Verdict | None]
) -> list[str]:
    """Whose mark was not found somewhere, and has an anchor that was not brought along."""
    return [
        f"the mark of {name} has an anchor, which was neither given nor found beside its claim:"
        " where the mark is absent, it was looked for in its own place only; with the anchor it is"
        " found wherever the weights went (Claimant(anchor=...))"
        for name, found in known.items()
        if found.claim is not None and found.claim.anchor is not None and found.anchor is None
        if any(who == name and not _present(seen) for (who, _), seen in verdicts.items())
    ]


def _present(verdict: Verdict | None) -> bool:
    return verdict is not None and state_of(verdict) == PRESENT


def _check_keys(claimants: Sequence[Claimant]) -> None:
    """Refuse what cannot be ruled on before anything large is read."""
    check_parties([_party(claimant, Shown(str(claimant.exhibit))) for claimant in claimants])
    for one, two in combinations(claimants, 2):
        # copied under another salt, a key has another fingerprint, but makes the same marks
        if _material(one.key) == _material(two.key):
            raise same_key(one.name, two.name)


def _material(key: Key) -> bytes | None:
    return key.secret if key.matrix is None else key.matrix.tobytes()


def _party(claimant: Claimant, shown: Shown) -> Party:
    key, time = claimant.key, claimant.stated_time
    return Party(
        name=claimant.name,
        fingerprint=key.fingerprint,
        commitment=key.commitment,
        key_kind=key.kind,
        exhibit=shown,
        stated_time=None if time is None else stated_time(time),
    )


def _evidence(claimant: Claimant) -> Evidence:
    """Where a party's mark sits: what it brings, or what lies beside its exhibit."""
    try:
        return evidence_for(
            claimant.exhibit, claimant.key, claim=claimant.claim, anchor=claimant.anchor
        )
    except (RecordError, ParameterError, AnchorError, AnchorMismatchError) as error:
        raise type(error)(f"the claim of {claimant.name}: {error}") from None
    except ClaimMismatchError as error:
        label = exhibit_of(claimant.name)
        raise ClaimMismatchError(f"{claimant.name} in {label}: {error}") from None


def _open(label: str, path: str | Place) -> _Model:
    try:
        checkpoint = open_checkpoint(path)
        return _Model(label, str(checkpoint.path), checkpoint, checkpoint.stamps())
    except CheckpointError as error:
        raise type(error)(f"{label}: {error}") from None


def _shown(model: _Model) -> Shown:
    digest = digest_of(model.checkpoint, {}, full=True)
    return Shown(model.path, digest.files or {})


def _look(
    claimant: Claimant, known: Evidence, model: _Model, progress: Progress | None
) -> Verdict | None:
    """The verdict of one key on one model; None where the model has no place for its mark."""
    suspect = FileSuspect(model.checkpoint, model.path)
    try:
        verdict = examine(
            suspect, claimant.key, claim=known.claim, anchor=known.anchor, progress=progress
        )
    except (UnknownTensorError, TooFewCarriersError):
        return None
    except (NonFiniteError, UnsuitableTensorError, ClaimMismatchError) as error:
        raise type(error)(f"{claimant.name} in {model.label}: {error}") from None
    unread = verdict.status == UNREADABLE and verdict.coverage.unreadable
    if unread and model.label == DISPUTED:
        raise UnreadableError(f"{claimant.name} in {model.label}: {verdict.reason}")
    return None if verdict.status == UNREADABLE and not unread else verdict


def _marked(
    label: str,
    verdicts: dict[tuple[str, str], Verdict | None],
    claims: dict[str, Claim | None],
) -> frozenset[str]:
    """Stored names of the tensors of a model that some party's mark sits in or is claimed for."""
    return frozenset(
        tensor.stored_name
        for (party, model), verdict in verdicts.items()
        if model == label and verdict is not None
        if claims[party] is not None or state_of(verdict) != ABSENT
        for tensor in verdict.tensors
    )


def _relations(compared: Sequence[Compared], progress: Progress | None) -> list[Relation]:
    """Each exhibit against the disputed model; without one, every exhibit against every other."""
    if compared[-1].label == DISPUTED:
        return [relate(model, compared[-1], progress) for model in compared[:-1]]
    return [relate(one, two, progress) for one, two in combinations(compared, 2)]
