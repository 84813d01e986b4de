"""Writing a mark into a finished checkpoint: no data, no model code, no torch.

First a `Draft` is computed (which bytes would change, at what cost), then it is written: as a copy
or in place. Nothing of the input is touched before the draft is complete.
"""

import glob
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from neuralmark.checkpoints import Checkpoint, open_checkpoint, open_file, root_of
from neuralmark.checkpoints.contract import Edits
from neuralmark.core.bound import SECURITY_BITS, boundary
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Placement
from neuralmark.errors import (
    CheckpointError,
    InfeasibleError,
    OutputError,
    ParameterError,
    RecordError,
)
from neuralmark.keys.key import Key
from neuralmark.marking.attempts import claimed
from neuralmark.marking.checking import Check, strongest
from neuralmark.marking.copies import (
    check_whole,
    left_out_of,
    links_in,
    mark_copies,
    other_copies,
    refuse_unmarkable,
    unmarked_in,
)
from neuralmark.marking.drafting import Draft, MarkingPlan, check_effort, draft, plan
from neuralmark.marking.judging import Looked, judge
from neuralmark.marking.placement import MIN_PER_POOL, WIDE, listed
from neuralmark.marking.reading import Attempt, FileSuspect, Progress, digest_of
from neuralmark.marking.spanning import draft_in_span
from neuralmark.marking.verification import find, verify
from neuralmark.records import Claim, Digest, Verdict
from neuralmark.storage import files, journal


@dataclass(frozen=True)
class Embedding:
    """What embedding did (or, on a dry run, would do).

    Attributes:
        output: Where the marked model was written; None on a dry run or for a live model.
        claim_file: Where the claim was written, if it was.
        claim: The record of where the mark is.
        verdict: What verification says of the result; None on a dry run.
        tensors: Canonical names of the marked tensors, in order.
        strength: The margin of every bit, in units of the spread of unmarked logits.
        change_relative: Norm of the change, as a share of the norm of the marked weights.
        change_largest: The largest change of one weight.
        carriers: How many weights carry the mark.
        weights_per_pool: How many of them share a pool.
        exposure: How well who has the public base finds the moved weights (AUC; 0.5 is not at all).
        warnings: What the owner should know before relying on the mark.
        others: Verdicts of other keys before and after, where their keys were given.

    Examples:
        >>> result = neuralmark.embed("model.safetensors", key)
        >>> result.tensors, result.strength >= 1
        (('layer1.weight', 'layer2.weight'), True)
    """

    output: str | None
    claim_file: str | None
    claim: Claim | None
    verdict: Verdict | None
    tensors: tuple[str, ...]
    strength: float
    change_relative: float
    change_largest: float
    carriers: int
    weights_per_pool: int
    exposure: float | None = None
    warnings: tuple[str, ...] = ()
    others: tuple[tuple[Verdict, Verdict], ...] = ()


def embed(
    model: str | Path,
    key: Key,
    out: str | Path | None = None,
    *,
    tensors: Sequence[str] | str | None = None,
    spread: str = WIDE,
    strength: float | None = None,
    budget: float | None = None,
    base: str | Path | None = None,
    in_span: bool = False,
    in_place: bool = False,
    overwrite: bool = False,
    check: Check | None = None,
    other_keys: Sequence[Key] = (),
    progress: Progress | None = None,
) -> Embedding:
    """Write the key's mark into a copy of the model at `out`, or into the model itself.

    With neither `out` nor `in_place`, nothing is written (a dry run). By default the strength is 2,
    or what a change of 2 % buys, but at least 1.

    Args:
        model: Path of the checkpoint to mark.
        key: The key to mark it with.
        out: Where the marked copy goes; its claim is written beside it.
        tensors: Names of the tensors to mark; without, `spread` chooses them.
        spread: How many tensors are chosen, `wide` (many, of all depths), `quick` (the few largest)
            or `all`.
        strength: The margin of every bit, in units of the spread of unmarked logits.
        budget: The change of the marked weights in percent, instead of a strength.
        base: The public checkpoint that the model was fine-tuned from, for the mark to hide
            behind the fine-tuning.
        in_span: Whether to keep the mark inside the span of a merged adapter; needs `base`.
        in_place: Whether to mark the model itself, under a journal, instead of a copy.
        overwrite: Whether an output that is there already may be replaced.
        check: Your own test of a candidate (its path in, True or False out); the strongest mark
            that passes is written.
        other_keys: Keys whose marks are verified before and after.
        progress: Called with what is being done, bytes done, and bytes in all.

    Returns:
        What was done, with the claim, the verdict on the result and what it cost.

    Raises:
        UsageError: The call cannot be carried out, such as tensors that are too small or an output
            that exists.
        InputError: The model cannot be read, or holds NaN or infinity where the mark would go.

    Examples:
        >>> result = neuralmark.embed("model.safetensors", key, "mine.safetensors", strength=1.5)
        >>> result.verdict.verified, result.strength, result.claim_file
        (True, 1.5, 'mine.safetensors.claim.json')
    """
    if not isinstance(model, str | Path):
        raise ParameterError(
            f"embed takes the path of a checkpoint, not a {type(model).__name__}: save the state"
            " dict first, or write into the live module with neuralmark.imprint"
        )
    model, tensors = Path(model), listed(tensors)
    target = _target(root_of(model), out, in_place, overwrite)
    if in_place:
        recover(model)  # what is only read is never changed unasked
    with journal.exclusive(root_of(model)) if in_place else nullcontext():
        checkpoint = open_checkpoint(model)
        check_effort(strength, budget)
        check_whole(checkpoint, model, out, named=bool(tensors))
        if not in_place:
            refuse_unmarkable(checkpoint, root_of(model))
        public = None if base is None else open_checkpoint(base)
        planned = plan(checkpoint, key, tensors, spread, public)
        notes = _notes(model, planned, named=bool(tensors))
        if in_span and budget is not None:
            raise ParameterError("a mark in an adapter's span takes a strength, not a budget")
        compute = (
            partial(draft_in_span, planned, strength=strength, progress=progress)
            if in_span
            else partial(draft, planned, strength=strength, budget=budget, progress=progress)
        )
        claims = _claims_beside(model)
        before = [verify(model, o, claim=claims.get(o.fingerprint)) for o in other_keys]
        if target is None:
            result = _result(compute(), None, None, None)
            return replace(result, warnings=result.warnings + notes)
        if check is not None:
            compute = partial(strongest, compute(), check, target, fixed=strength is not None)
        if in_place:
            result = _write_in_place(compute(), model, progress)
        else:
            copying = Copying(checkpoint, key, model, target, overwrite)
            result = _write_copy(copying, compute, progress)
    marked = _same_part(model, target)
    after = [verify(marked, o, claim=claims.get(o.fingerprint)) for o in other_keys]
    others = tuple(zip(before, after, strict=True))
    return replace(result, others=others, warnings=result.warnings + notes)


def _claims_beside(model: Path) -> dict[str, Claim]:
    """Readable claims of the model, by the fingerprint of their key."""
    usual = claim_path(model)
    found = {}
    stem = glob.escape(usual.name.removesuffix(".claim.json"))
    beside = [*usual.parent.glob(f"{stem}.claim.json"), *usual.parent.glob(f"{stem}.*.claim.json")]
    root = root_of(model)
    inside = root.glob("neuralmark*.claim.json") if root.is_dir() else ()
    for path in sorted({*beside, *inside}):
        try:
            claim = Claim.load_beside(path)
        except RecordError:
            continue
        found[claim.fingerprint] = claim
    return found


def _notes(model: Path, planned: MarkingPlan, *, named: bool) -> tuple[str, ...]:
    """What the owner should know of this mark before relying on it."""
    notes = []
    key = planned.key
    if boundary(key.parameters.bits) is None:
        notes.append(
            f"{key.parameters.bits} bits can never be verified to 2^-{SECURITY_BITS}: make a key"
            " of 256 bits"
        )
    if named and len(planned.tensors) > 1:
        notes.append("tensors named by hand are found again only with the claim (or the names)")
    if not named and planned.quantised:
        notes.append(
            f"{planned.quantised} quantised tensors were passed over; dequantise them to mark them"
        )
    if any("lora_" in name.partition(".")[2] for name, _ in planned.placement):
        notes.append(
            "this marks a LoRA adapter: merging it into its base loses the mark; to keep it, mark"
            " the merged model"
        )
    earlier = [*_claims_beside(model)]
    if key.fingerprint in earlier:
        notes.append("a claim of this very key is beside the input: its mark is there already")
    elif earlier:
        notes.append(
            f"the input carries a claim of another key ({earlier[0][:60]}): that mark stays, unless"
            " this one is very much stronger; other_keys=[...] shows both rates"
        )
    return tuple(notes)


def rebuild_claim(
    model: str | Path, key: Key, *, tensors: Sequence[str] | str | None = None
) -> tuple[Verdict, Claim | None]:
    """The claim of a marked model whose claim was lost.

    Args:
        model: Path of the marked checkpoint.
        key: The key it was marked with.
        tensors: Names of the marked tensors, if they were named by hand.

    Returns:
        The verdict, and the claim or None when the mark is not found.

    Raises:
        InputError: The model cannot be read.
        UsageError: A named tensor is not there or too small.

    Examples:
        >>> verdict, claim = neuralmark.rebuild_claim("marked.safetensors", key)
        >>> [name for name, shape in claim.placement]
        ['layer1.weight', 'layer2.weight']
    """
    verdict = verify(model, key, tensors=listed(tensors))
    if not verdict.verified:
        return verdict, None
    return verdict, _claim(key, verdict.placement, verdict.checkpoint_digest, None)


def few_carriers(carriers: Carriers) -> tuple[str, ...]:
    """A warning where too few weights share a pool."""
    if carriers.per_pool >= MIN_PER_POOL:
        return ()
    return (
        f"only {carriers.per_pool} carriers per pool (fewer than {MIN_PER_POOL}): the mark is"
        " costly and weak; mark more tensors or use a key with fewer rounds",
    )


def claim_path(model: Path) -> Path:
    """Where the claim of a marked model is kept: beside it, never inside a folder to publish."""
    model = root_of(model)
    model = model if model.name not in ("", "..") else model.resolve()
    return model.with_name(f"{model.name}.claim.json")


def _claim(key: Key, placement: Placement, marked: Digest, source: Digest | None) -> Claim:
    return Claim(key.fingerprint, key.commitment, key.parameters, placement, marked, source)


def _draft_claim(drafted: Draft) -> Claim:
    source = digest_of(drafted.checkpoint, drafted.reading.digests)
    marked = replace(source, tensors=drafted.marked_digests())
    return _claim(drafted.key, drafted.placement, marked, source)


def _claim_file(target: Path, key: Key, *, overwrite: bool = False) -> Path:
    """Beside the model; a claim of another key that is already there is kept."""
    usual = claim_path(target)
    with files.writing(usual):
        if usual.is_dir():
            raise OutputError(f"{usual} is a folder, and the claim belongs there: move it away")
        if overwrite or not usual.exists():
            return usual
    try:
        mine = Claim.load_beside(usual).fingerprint == key.fingerprint
    except RecordError:
        mine = False
    short = key.fingerprint.removeprefix("nm1-")[:8]
    stem = usual.name.removesuffix(".claim.json")
    return usual if mine else usual.with_name(f"{stem}.{short}.claim.json")


def _same_part(model: Path, target: Path) -> Path:
    """What stands in `target` for the model as it was named: a named index stays that index."""
    return target if root_of(model) == model else target / model.name


@dataclass(frozen=True)
class Copying:
    """What is copied where, under which key's mark."""

    checkpoint: Checkpoint
    key: Key
    model: Path
    out: Path
    overwrite: bool


def _write_copy(job: Copying, compute: Callable[[], Draft], progress: Progress | None) -> Embedding:
    """Copy while the mark is computed; copy and claim are complete before either gets its name."""
    checkpoint, model, out = job.checkpoint, job.model, job.out
    with ExitStack() as stack:
        claim_file = _claim_file(out, job.key, overwrite=job.overwrite)
        claim_draft = stack.enter_context(files.replacing(claim_file, overwrite=True))
        temporary = stack.enter_context(files.replacing(out, overwrite=job.overwrite))
        drafts: list[Draft] = []

        def edits() -> Edits:
            drafts.append(compute())
            return drafts[0].edits()

        checkpoint.write(temporary, edits)
        drafted = drafts[0]
        written = open_file(_same_part(model, temporary))
        root = root_of(model)
        notes = mark_copies(drafted, written, temporary) + left_out_of(root) + links_in(root)
        verdict = _reread(drafted, _same_part(model, temporary), str(out), progress)
        source = digest_of(checkpoint, drafted.reading.digests)
        claim = _claim(drafted.key, drafted.placement, verdict.checkpoint_digest, source)
        with files.create(claim_draft) as file:
            file.write(claim.to_json().encode("utf-8"))
    result = _result(drafted, out, claim_file, claim, verdict)
    notes = tuple(note.replace(temporary.name, out.name) for note in notes)
    return replace(result, warnings=result.warnings + notes)


def _write_in_place(drafted: Draft, model: Path, progress: Progress | None) -> Embedding:
    checkpoint, root = drafted.checkpoint, root_of(model)
    claim, claim_file = _draft_claim(drafted), _claim_file(root, drafted.key)
    others = other_copies(checkpoint, root, drafted.tensors)
    names = [tensor.info.name for tensor in drafted.tensors]
    change = journal.JournalPlan(checkpoint.in_place_ranges(names), claim_file, claim.to_json())
    with journal.changing(root, change):
        checkpoint.apply(drafted.edits(), lambda file: file)
        verdict = _reread(drafted, model, str(root), progress)
    result = _result(drafted, root, claim_file, claim, verdict)
    left = tuple(
        f"{o.name} holds the marked tensors too, and stays unmarked: use out=..." for o in others
    ) + unmarked_in(root)
    return replace(result, warnings=result.warnings + left)


def _reread(drafted: Draft, path: Path, label: str, progress: Progress | None) -> Verdict:
    """Read the mark back from what was written; anything but a full match is a failure."""
    written = FileSuspect(open_file(path), label)
    attempt = Attempt(drafted.placement, drafted.tensors, "names")
    finding = find(written, drafted.key, attempt, progress)
    looked = Looked.at(written, claimed(written.tensors(), drafted.placement))
    verdict = judge(finding, written, drafted.key, looked)
    if verdict.matched != verdict.bits:
        raise InfeasibleError(
            f"only {verdict.matched} of {verdict.bits} bits were read back from the written file"
        )
    return verdict


def _result(
    drafted: Draft,
    out: Path | None,
    claim_file: Path | None,
    claim: Claim | None,
    verdict: Verdict | None = None,
) -> Embedding:
    carriers = drafted.reading.carriers
    return Embedding(
        output=str(out) if out else None,
        claim_file=str(claim_file) if claim_file else None,
        claim=claim,
        verdict=verdict,
        tensors=tuple(tensor.name for tensor in drafted.tensors),
        strength=drafted.strength,
        change_relative=drafted.change_norm / drafted.reading.norm,
        change_largest=drafted.change_largest,
        carriers=carriers.size,
        weights_per_pool=carriers.per_pool,
        exposure=drafted.exposure,
        warnings=few_carriers(carriers) + _kept(drafted),
    )


def _kept(drafted: Draft) -> tuple[str, ...]:
    """A warning where tensors stay as they are because a mark would show in them."""
    kept = drafted.kept
    if not kept:
        return ()
    name, why = next(iter(kept.items()))
    return (f"{len(kept)} of {len(drafted.tensors)} tensors stay as they are ({name}: {why})",)


def _target(model: Path, out: str | Path | None, in_place: bool, overwrite: bool) -> Path | None:
    """Where the result goes; refuses the input itself unless in-place was asked for."""
    if in_place:
        if out is not None:
            raise OutputError("in_place=True and an output exclude each other; give one of them")
        return model
    if out is None:
        return None
    out = Path(out)
    with files.writing(out):
        if out.exists() and model.exists() and out.samefile(model):
            raise OutputError(
                f"{out} is the input itself: choose another name or pass in_place=True"
            )
        if out.exists() and not overwrite:
            raise OutputError(f"{out} exists already: choose another name or pass overwrite=True")
        if out.is_dir() and not model.is_dir():
            raise OutputError(f"{out} is a folder: give the name of a file")
        if model.is_dir() and out.resolve().is_relative_to(model.resolve()):
            raise OutputError(f"{out} lies inside the input folder: choose a place outside of it")
        if model.resolve().is_relative_to(out.resolve()):
            raise OutputError(f"{out} holds the input: choose a place outside of it")
    return out


def recover(model: str | Path) -> str | None:
    """Undo or complete an in-place embedding that was cut short.

    Args:
        model: Path of the checkpoint that was being marked.

    Returns:
        What was done, in a sentence, or None where there was nothing to do.

    Raises:
        CheckpointError: There is no such file or folder, or its journal cannot be used.

    Examples:
        >>> neuralmark.recover("model.safetensors") is None
        True
    """
    root = root_of(Path(model))
    if not root.exists():
        raise CheckpointError(f"{root}: there is no such file or folder")
    return journal.recover(root)
