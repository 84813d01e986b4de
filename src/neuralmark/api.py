"""Public functions that take a checkpoint or a live model alike."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from neuralmark import schemes
from neuralmark.anchors.effort import AlignOptions
from neuralmark.anchors.heads import heads_of
from neuralmark.anchors.originals import Original, OriginalArrays, OriginalCheckpoint
from neuralmark.checkpoints import open_checkpoint, place_of
from neuralmark.errors import (
    NeuralMarkWarning,
    ParameterError,
    SandboxError,
    TooFewCarriersError,
    TriggerMismatchError,
    UnknownTensorError,
    UnsuitableTensorError,
)
from neuralmark.keys.key import Key
from neuralmark.marking import rechecking, verification
from neuralmark.marking.evidence import evidence_for
from neuralmark.marking.options import VerifyOptions, options_of
from neuralmark.marking.placement import listed
from neuralmark.marking.reading import Progress
from neuralmark.marking.rechecking import Recheck, Way
from neuralmark.records import Claim, Lineage, Verdict, presenting
from neuralmark.storage.places import FarPlace, Place
from neuralmark.triggers.triggers import Triggers

if TYPE_CHECKING:
    import torch

    from neuralmark.anchors.locating.suspect import SuspectWeights


def verify(
    model: "str | Place | torch.nn.Module | Mapping[str, Any]",
    key: Key,
    *,
    claim: Claim | str | Path | dict[str, Any] | None = None,
    tensors: Sequence[str] | str | None = None,
    options: VerifyOptions | None = None,
    triggers: Triggers | str | Path | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Look for the key's mark in a checkpoint (a path), a live module or a state dict.

    With a claim or tensor names, only those tensors are read. Without, a claim of this key that
    lies beside the checkpoint is followed; where there is none, the list that `auto` would choose
    and every tensor that is large enough are tried, and the bound is corrected for all of them.

    With the anchor of the mark, which lies beside its claim or is given by the options, the weights
    are found wherever they went, and put back in order. On a sharded module all processes must call
    it.

    Args:
        model: The suspect as a path, a URL (`hf://owner/name`, `https://…`, `s3://…`; see
            `at_url`), a torch module or a state dict.
        key: The key whose mark is looked for.
        claim: Where the mark was put, as a `Claim`, the path of one, or a parsed one.
        tensors: Names of the tensors to read instead of searching.
        options: The anchor, how much is done to align, digests of whole files; see
            `VerifyOptions`.
        triggers: For schemes that read activations: the triggers, or the path of their file. The
            model must be a live module then.
        progress: Called with what is being done, bytes done, and bytes in all; tensors instead of
            bytes while they are found, aligned and restored.

    Returns:
        What was found; `.verified` says whether it proves the mark.

    Raises:
        InputError: The model, or the claim, cannot be read.
        UsageError: The claim is of another key, or a named tensor is not there or too small.
        LiveModelError: The scheme reads activations, and the model is no live module.
        TriggerMismatchError: The triggers do not fit the model or the claim, or none are given.
        SandboxError: The process that reads in a sandbox died, or took too much (see its kinds).

    Examples:
        >>> verdict = neuralmark.verify("marked.safetensors", key)
        >>> verdict.verified, verdict.matched, verdict.bits
        (True, 160, 160)
        >>> neuralmark.verify("model.safetensors", key).verified
        False
        >>> given = neuralmark.VerifyOptions(anchor="marked.safetensors.anchor")
        >>> neuralmark.verify("marked.safetensors", key, options=given).verified
        True
    """
    wanted = options_of(VerifyOptions, options)
    if wanted.sandbox is not None:
        given = _Given(claim, listed(tensors), wanted, triggers)
        return _verified_apart(model, key, given, progress)
    way = Way(Claim.given(claim), listed(tensors))
    how = HowRead(wanted, progress, claim_file=_file(claim), triggers=triggers)
    return _verified(model, key, way, how)


@dataclass(frozen=True)
class HowRead:
    """How a model is read, apart from where the mark is looked for."""

    options: VerifyOptions
    progress: Progress | None = None
    beside: bool = True
    """Whether a claim beside the model is followed where none is given."""
    claim_file: Path | None = None
    """Where the claim was read from: its anchor lies beside it."""
    triggers: Triggers | str | Path | None = None


class _Given(NamedTuple):
    """What a process that reads in our place must know beside the model and the key."""

    claim: Any
    tensors: list[str] | None
    options: VerifyOptions
    triggers: Any = None


def _verified_apart(model: Any, key: Key, given: _Given, progress: Progress | None) -> Verdict:
    """Have a sandboxed process verify; what it says is read as any verdict from elsewhere."""
    from neuralmark.anchors.anchor import Anchor
    from neuralmark.sandbox.confined import Confined
    from neuralmark.sandbox.served import PlaceServer

    if not isinstance(model, str | Path | FarPlace) or given.triggers is not None:
        raise ParameterError(
            "a sandbox is for files: a live model, or one at its triggers, is read here; leave"
            " VerifyOptions(sandbox=...) out"
        )
    if isinstance(given.options.anchor, Anchor):
        raise ParameterError("in a sandbox the anchor is given as its file, not as an Anchor")
    limits = given.options.sandbox
    given = given._replace(options=replace(given.options, sandbox=None))
    place, label = place_of(model), str(model)
    server = PlaceServer(lambda target: place)
    server.allow([label])
    far = isinstance(place, FarPlace)
    with Confined(limits, server.answer) as reader:
        told = reader.call(verify_in_sandbox, label, far, key, tuple(given), progress=progress)
        if not reader.protection.whole:
            warnings.warn(f"sandbox: {reader.protection}", NeuralMarkWarning, stacklevel=3)
    verdict = Verdict.from_dict(told)
    if (verdict.fingerprint, verdict.model) != (key.fingerprint, str(place)):
        raise SandboxError("the sandboxed process answered nonsense")
    return verdict


def verify_in_sandbox(model: str, far: bool, key: Key, given: tuple[Any, ...]) -> dict[str, Any]:
    """In the sandboxed process: the verdict as plain values."""
    from neuralmark.sandbox import child
    from neuralmark.sandbox.served import ServedPlace

    claim, tensors, options, _ = given
    tell = child.tell if child.sandboxed() else None
    place = ServedPlace(model) if far else Path(model)
    found = verify(place, key, claim=claim, tensors=tensors, options=options, progress=tell)
    return found.to_dict()


def _file(claim: Any) -> Path | None:
    return Path(claim) if isinstance(claim, str | Path) else None


def _verified(
    model: "str | Place | torch.nn.Module | Mapping[str, Any]", key: Key, way: Way, how: HowRead
) -> Verdict:
    if isinstance(key, Key) and _reads_activations(key):
        verdict = _activations_read(model, key, way, how.triggers)
    elif how.triggers is not None:
        raise TriggerMismatchError(
            "this key's scheme reads weights and has no triggers: leave triggers=... out"
        )
    elif isinstance(model, str | Path | FarPlace):
        verdict = verification.verify(
            model,
            key,
            claim=how.claim_file or way.claim,
            tensors=way.tensors,
            options=how.options,
            beside=how.beside,
            progress=how.progress,
        )
    else:
        from neuralmark.training.live import LiveSuspect

        if how.options.base is not None:
            raise ParameterError("a live model has its adapter already: leave base=... out")
        suspect = LiveSuspect(model)
        suspect.require_same(key)
        given = how.claim_file or way.claim
        known = evidence_for(model, key, claim=given, anchor=how.options.anchor)
        verdict = verification.examine(
            suspect,
            key,
            claim=way.claim,
            tensors=way.tensors,
            anchor=known.anchor,
            options=how.options,
            progress=how.progress,
        )
    return replace(
        verdict,
        date=presenting.now(),
        claim_digest=way.claim.digest if way.claim else verdict.claim_digest,
        versions=presenting.versions(),
    )


def _reads_activations(key: Key) -> bool:
    return isinstance(schemes.get(key.parameters.scheme), schemes.TriggerScheme)


def _activations_read(
    model: "str | Place | torch.nn.Module | Mapping[str, Any]",
    key: Key,
    way: Way,
    given: Triggers | str | Path | None,
) -> Verdict:
    """The verdict on a live model at its triggers; anything else is refused before it is opened."""
    if isinstance(model, str | Path | FarPlace | Mapping):
        schemes.require_weights(key.parameters)
    triggers = Triggers.given(given, key)
    from neuralmark.training.activations import examine_activations

    return examine_activations(model, key, triggers, claim=way.claim, layers=way.tensors)


def recheck(
    verdict: Verdict | str | Path,
    model: "str | Place | torch.nn.Module | Mapping[str, Any]",
    key: Key,
    *,
    claim: Claim | str | Path | dict[str, Any] | None = None,
    options: VerifyOptions | None = None,
    triggers: Triggers | str | Path | None = None,
    progress: Progress | None = None,
) -> Recheck:
    """Verify a model again in the way a verdict (or its file) records, and compare.

    Key, digests, tensors, counts, bound and status are compared point by point; `.holds` says
    whether the verdict still stands. Where it followed a claim, its placement is followed; give the
    claim itself to have its digest compared.

    Args:
        verdict: A verdict, or the file that one was saved to.
        model: The model now: a path, a URL, a live module or a state dict.
        key: The key that the verdict is about.
        claim: The claim that the verdict followed, to have its digest compared too.
        options: The anchor of the mark, where weights were put back in order (it is sought beside
            the claim's file), and how much is done to align; see `VerifyOptions`. Digests are taken
            as the verdict has them.
        triggers: For schemes that read activations: the triggers, or the path of their file.
        progress: Called with what is being done, bytes done, bytes in all.

    Returns:
        The points that were compared, and the verdict of now.

    Raises:
        ParameterError: If the verdict or the key is none.
        RecordError: If the file holds no verdict.
        CheckpointError: If the model cannot be opened.
        LiveModelError: If the key's scheme reads activations, and the model is no live module.
        TriggerMismatchError: If the triggers do not fit, or are missing.

    Examples:
        >>> verdict = neuralmark.verify("marked.safetensors", key)
        >>> neuralmark.recheck(verdict, "marked.safetensors", key).holds
        True
    """
    if isinstance(verdict, str | Path):
        verdict = Verdict.load(verdict)
    if not isinstance(verdict, Verdict):
        raise ParameterError(f"expected a Verdict, not {type(verdict).__name__}: use Verdict.load")
    if not isinstance(key, Key):
        raise ParameterError(f"expected a Key, not {type(key).__name__}: use Key.load(FILE)")
    followed = Claim.given(claim)
    if key.fingerprint != verdict.fingerprint:
        return rechecking.not_this_key(verdict, key)
    way = Way(followed) if followed else rechecking.way_of(verdict, key)
    if not followed and _reads_activations(key):
        way = Way(tensors=[name for name, _ in verdict.placement])
    wanted = options_of(VerifyOptions, options)
    wanted = replace(wanted, full_digest=verdict.sha256 is not None)
    how = HowRead(wanted, progress, beside=False, claim_file=_file(claim), triggers=triggers)
    try:
        again = _verified(model, key, way, how)
    except (TooFewCarriersError, UnknownTensorError, UnsuitableTensorError) as error:
        return rechecking.not_found(verdict, str(error))
    again = replace(again, claim_digest=followed.digest if followed else None)
    return rechecking.compared(verdict, again, followed)


def lineage(
    model: "str | Place | torch.nn.Module | Mapping[str, Any]",
    other: "str | Place | torch.nn.Module | Mapping[str, Any]",
    *,
    heads: int = 0,
    options: AlignOptions | None = None,
    progress: Progress | None = None,
) -> Lineage:
    """How alike two models are once the second is put into the order of the first.

    A sign of descent, not of ownership: it says that one model comes from the other, or both from a
    third, not which came first or whose they are. There is no exact bound; that is what a key adds.

    Args:
        model: The first model, a path, a URL, a torch module or a state dict.
        other: The second.
        heads: Attention heads of the first, where neither its folder nor its shapes tell.
        options: How much is done to align.
        progress: Called with what is being done, tensors done, tensors in all.

    Returns:
        What became of each tensor, and a score.

    Raises:
        InputError: A model cannot be read.

    Examples:
        >>> neuralmark.lineage("model.safetensors", "marked.safetensors").related
        True
    """
    from neuralmark.anchors.choosing import skeleton_of
    from neuralmark.anchors.lineage import kinships

    one, two = _opened(model), _opened(other)
    known = {tensor.name: tensor for tensor in one.original.tensors()}
    skeleton = skeleton_of(one.original, known, heads or one.heads)
    told, seconds = kinships(one.weights, skeleton, two.weights, options, progress)
    return Lineage(one.label, two.label, told, seconds, date=presenting.now())


class _Opened(NamedTuple):
    weights: "SuspectWeights"
    original: Original
    label: str
    heads: int = 0


def _opened(model: Any) -> _Opened:
    """The weights of a model, and what to call it."""
    if isinstance(model, str | Path | FarPlace):
        from neuralmark.anchors.locating.suspect import CheckpointWeights

        place = place_of(model)
        checkpoint = open_checkpoint(place)
        weights = CheckpointWeights(checkpoint)
        original = OriginalCheckpoint(checkpoint)
        return _Opened(weights, original, str(place), heads_of(place))
    from neuralmark.training.live import LiveSuspect

    suspect = LiveSuspect(model)
    live = suspect.weights()
    arrays = {name: live[name] for name in live.shapes}
    return _Opened(live, OriginalArrays(arrays), suspect.label)
