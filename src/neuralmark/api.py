"""Public functions that take a checkpoint or a live model alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from neuralmark import schemes
from neuralmark.anchors.effort import AlignOptions
from neuralmark.anchors.heads import check_heads, heads_of
from neuralmark.anchors.originals import Original, OriginalArrays, OriginalCheckpoint
from neuralmark.checkpoints import open_checkpoint, place_of
from neuralmark.errors import (
    ParameterError,
    SandboxError,
    TooFewCarriersError,
    TriggerMismatchError,
    UnknownTensorError,
    UnsuitableTensorError,
)
from neuralmark.keys.key import Key
from neuralmark.marking import leaks, rechecking, verification
from neuralmark.marking.apart import read_apart
from neuralmark.marking.evidence import Evidence, evidence_for
from neuralmark.marking.options import VerifyOptions, options_of
from neuralmark.marking.placement import listed
from neuralmark.marking.reading import Progress
from neuralmark.marking.rechecking import Recheck, Way
from neuralmark.records import Claim, CopyRegister, Lineage, Trace, Verdict, presenting
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
    lies beside the checkpoint is followed (or beside the file that a live module was built from);
    where there is none, the list that `auto` would choose and every tensor that is large enough are
    tried, and the bound is corrected for all of them.

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
        if triggers is not None:
            raise ParameterError(
                "a model at its triggers runs here: leave VerifyOptions(sandbox=...) out"
            )
        given = {"claim": claim, "tensors": listed(tensors)}
        return _verified_apart(model, key, given, wanted, progress)
    way = Way(Claim.given(claim), listed(tensors))
    how = HowRead(wanted, progress, claim_file=_file(claim), triggers=triggers)
    return _verified(model, key, way, how)


def trace(
    suspect: str | Place,
    key: Key,
    buyers: CopyRegister | Sequence[str] | str | Path,
    *,
    claim: Claim | str | Path | None = None,
    options: VerifyOptions | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Say which buyer's copy a suspect was made from, or which buyers' copies were mixed in it.

    Args:
        suspect: The suspect, as a path or a URL (or another place that can be read; see `at_url`).
        key: The owner's key.
        buyers: All buyers: their names, the path of a CSV file with a column `buyer`, the register
            of the copies, or its path (`copies.json`, or the folder), which knows the claim, too.
        claim: The claim of the owner's copy, where no path of a register leads to it.
        options: The anchor, how much is done to align, whether whole files are digested (by
            default those of this machine are), a sandbox to read in; see `VerifyOptions`.
        progress: Called with what is being done, how much is done, and how much there is in all.

    Returns:
        What every mark shows; `.named` are the buyers, `.bound_log2` the chance of naming an
        innocent.

    Raises:
        BuyersError: The list of buyers is empty or names one twice.
        UsageError: The claim is missing, or of another key.
        InputError: The suspect, the claim or the register cannot be read.
        SandboxError: The process that reads in a sandbox died, or took too much (see its kinds).

    Examples:
        >>> buyers = ["Acme Ltd.", "Bolt GmbH"]
        >>> register, _ = neuralmark.issue_copies("model.safetensors", key, buyers, "copies")
        >>> copy = Path("copies") / register.copies[1].path
        >>> neuralmark.trace(copy, key, "copies").named
        ('Bolt GmbH',)
        >>> found = neuralmark.trace("model.safetensors", key, "copies")
        >>> found.named, found.owned
        ((), False)
    """
    wanted = options_of(VerifyOptions, options)
    if wanted.sandbox is None:
        return leaks.trace(suspect, key, buyers, claim=claim, options=wanted, progress=progress)
    given = {"key": key, "buyers": buyers, "claim": claim}
    found = Trace.from_dict(read_apart(_trace_there, suspect, wanted, given, progress))
    if (found.owner.fingerprint, found.suspect) != (key.fingerprint, str(place_of(suspect))):
        raise SandboxError("the sandboxed process answered nonsense")
    return found


def _trace_there(place: Place, **given: Any) -> dict[str, Any]:
    """In the sandboxed process: the trace as plain values."""
    return trace(place, **given).to_dict()


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


def _verified_apart(
    model: Any, key: Key, given: dict[str, Any], options: VerifyOptions, progress: Progress | None
) -> Verdict:
    """Have a sandboxed process verify; what it says is read as any verdict from elsewhere."""
    told = read_apart(_verify_there, model, options, given | {"key": key}, progress)
    verdict = Verdict.from_dict(told)
    if (verdict.fingerprint, verdict.model) != (key.fingerprint, str(place_of(model))):
        raise SandboxError("the sandboxed process answered nonsense")
    return verdict


def _verify_there(place: Place, **given: Any) -> dict[str, Any]:
    """In the sandboxed process: the verdict as plain values."""
    return verify(place, **given).to_dict()


def _file(claim: Any) -> Path | None:
    return Path(claim) if isinstance(claim, str | Path) else None


def _verified(
    model: "str | Place | torch.nn.Module | Mapping[str, Any]", key: Key, way: Way, how: HowRead
) -> Verdict:
    if isinstance(key, Key) and _reads_activations(key):
        verdict = _activations_read(model, key, way, how)
    elif how.triggers is not None:
        raise TriggerMismatchError(
            "this key's scheme reads weights and has no triggers: leave triggers=... out"
        )
    elif how.options.example is not None and isinstance(model, str | Path | FarPlace | Mapping):
        raise ParameterError(
            "weights alone compute nothing: give the live module, or leave example=... out"
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
        suspect = LiveSuspect(model, how.options.example)
        suspect.require_same(key)
        known = _evidence(model, key, way, how)
        if how.options.example is not None and known.anchor is None:
            raise ParameterError(
                "what is read by probing is told by its likeness to the anchor of the mark: give it"
                " (VerifyOptions(anchor=...)), or leave example=... out"
            )
        verdict = verification.examine(
            suspect,
            key,
            claim=known.claim,
            tensors=None if known.beside else way.tensors,
            anchor=known.anchor,
            options=how.options,
            progress=how.progress,
        )
        verdict = verification.followed(verdict, known)
        if suspect.probed is not None:
            verdict = replace(verdict, reason=f"{verdict.reason}; {suspect.probed.told}")
    return replace(
        verdict,
        date=presenting.now(),
        claim_digest=way.claim.digest if way.claim else verdict.claim_digest,
        versions=presenting.versions(),
    )


def _evidence(model: Any, key: Key, way: Way, how: HowRead) -> Evidence:
    """Claim and anchor: given, or beside the file that a module was loaded from."""
    given = how.claim_file or way.claim
    anchor, beside = how.options.anchor, how.beside
    return evidence_for(model, key, claim=given, tensors=way.tensors, anchor=anchor, beside=beside)


def _reads_activations(key: Key) -> bool:
    return isinstance(schemes.get(key.parameters.scheme), schemes.TriggerScheme)


def _activations_read(
    model: "str | Place | torch.nn.Module | Mapping[str, Any]",
    key: Key,
    way: Way,
    how: HowRead,
) -> Verdict:
    """The verdict on a live model at its triggers; anything else is refused before it is opened."""
    if isinstance(model, str | Path | FarPlace | Mapping):
        schemes.require_weights(key.parameters)
    triggers = Triggers.given(how.triggers, key)
    known = Evidence(way.claim)
    if way.tensors is None:
        known = _evidence(model, key, way, replace(how, options=VerifyOptions()))
    from neuralmark.training.activations import examine_activations

    verdict = examine_activations(
        model, key, triggers, claim=known.claim, layers=way.tensors, options=how.options
    )
    return verification.followed(verdict, known)


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
    if wanted.sandbox is not None:
        raise ParameterError("a recheck reads in this process: leave sandbox=... out")
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
        ParameterError: The heads do not fit the first model.

    Examples:
        >>> neuralmark.lineage("model.safetensors", "marked.safetensors").related
        True
    """
    from neuralmark.anchors.choosing import fitting_heads, skeleton_of
    from neuralmark.anchors.lineage import kinships

    one, two = _opened(model), _opened(other)
    known = {tensor.name: tensor for tensor in one.original.tensors()}
    heads = fitting_heads(one.original, check_heads(heads), one.heads)
    skeleton = skeleton_of(one.original, known, heads)
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
        return _Opened(weights, original, str(place), heads_of(checkpoint))
    from neuralmark.training.live import LiveSuspect

    suspect = LiveSuspect(model)
    live = suspect.weights()
    arrays = {name: live[name] for name in live.shapes}
    return _Opened(live, OriginalArrays(arrays), suspect.label)
