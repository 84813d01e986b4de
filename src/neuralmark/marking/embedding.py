"""Writing a mark into a finished checkpoint: no data, no model code, no torch.

The road is plan (which tensors), draft (which bytes would change, at what cost), write (a copy, or
in place) and read back. Nothing of the input is touched before the draft is complete.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from neuralmark import schemes
from neuralmark.checkpoints import Checkpoint, open_checkpoint, place_of, root_of
from neuralmark.core.bound import SECURITY_BITS, boundary
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Mark
from neuralmark.errors import CheckpointError, NeuralMarkWarning, ParameterError
from neuralmark.keys.key import Key
from neuralmark.marking.anchoring import anchored
from neuralmark.marking.beside import claims_beside, places_for
from neuralmark.marking.checking import strongest
from neuralmark.marking.copies import check_whole, refuse_unmarkable
from neuralmark.marking.drafting import Draft, MarkingPlan, draft, plan
from neuralmark.marking.options import EmbedOptions, options_of
from neuralmark.marking.placement import MIN_PER_POOL, listed
from neuralmark.marking.reading import Progress
from neuralmark.marking.spanning import draft_in_span
from neuralmark.marking.verification import verify
from neuralmark.marking.writing import (
    Written,
    anchor_draft,
    copy_of,
    same_part,
    target_of,
    write_in_place,
)
from neuralmark.records import Claim, Verdict
from neuralmark.storage import journal
from neuralmark.storage.places import local

FIRM_ALONE = 4.0
"""A mark in one layer alone should have this strength (`benchmarks.against_anchor`)."""


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
        exposure: How well somebody with the public base finds the moved weights (AUC; 0.5: not
            at all).
        warnings: What the owner should know before relying on the mark.
        others: Verdicts of other keys before and after, where their keys were given.
        anchor_file: Where the anchor was written, if it was; like the claim, it is for the owner
            and a judge only.

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
    anchor_file: str | None = None


def embed(
    model: str | Path,
    key: Key,
    out: str | Path | None = None,
    options: EmbedOptions | None = None,
    *,
    in_place: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Embedding:
    """Write the key's mark into a copy of the model at `out`, or into the model itself.

    With neither `out` nor `in_place`, nothing is written (a dry run).

    Args:
        model: Path of the checkpoint to mark.
        key: The key to mark it with.
        out: Where the marked copy goes; its claim and its anchor are written beside it.
        options: Which tensors, how strong, hidden behind which base; see `EmbedOptions`.
        in_place: Whether to mark the model itself, under a journal, instead of a copy.
        overwrite: Whether an output that is there already may be replaced.
        progress: Called with what is being done, bytes done, and bytes in all.

    Returns:
        What was done, with the claim, the verdict on the result and what it cost.

    Raises:
        UsageError: The call cannot be carried out, such as tensors that are too small or an output
            that exists.
        InputError: The model cannot be read, or holds NaN or infinity where the mark would go.

    Examples:
        >>> options = neuralmark.EmbedOptions(strength=1.5)
        >>> result = neuralmark.embed("model.safetensors", key, "mine.safetensors", options)
        >>> result.verdict.verified, result.strength, result.claim_file
        (True, 1.5, 'mine.safetensors.claim.json')
        >>> result.anchor_file
        'mine.safetensors.anchor'
    """
    model, options = _path_of(model), options_of(EmbedOptions, options)
    target = target_of(root_of(model), out, in_place, overwrite)
    with _alone(model) if in_place else nullcontext():
        checkpoint = open_checkpoint(model)
        check_whole(checkpoint, model, out, named=bool(options.tensors))
        if not in_place:
            refuse_unmarkable(checkpoint, root_of(model))
        planned = _planned(checkpoint, key, options)
        wanted = options.anchor is not False
        notes = _notes(model, planned, anchor=wanted)
        claims = claims_beside(model)
        before = _verdicts(model, options.other_keys, claims)
        written = None
        if target is None:
            planned, more = anchored(planned, options, None, progress)
            return _embedding(_drafted(planned, options, progress), None, notes + more)
        places = places_for(
            root_of(target), key, anchor=wanted, overwrite=overwrite, in_place=in_place
        )
        if in_place:
            with anchor_draft(places) as draft_file:
                planned, more = anchored(planned, options, draft_file, progress)
                drafted = _checked(_drafted(planned, options, progress), options, target)
                written = write_in_place(drafted, model, places, draft_file, progress)
        else:
            with copy_of(checkpoint, model, places, overwrite=overwrite) as copy:
                planned, more = anchored(planned, options, copy.drafts.anchor, progress)
                drafted = _checked(_drafted(planned, options, progress), options, target)
                written = copy.finish(drafted, progress)
    after = _verdicts(same_part(model, target), options.other_keys, claims)
    return _embedding(drafted, written, notes + more, tuple(zip(before, after, strict=True)))


def _path_of(model: str | Path) -> Path:
    if not isinstance(model, str | Path):
        raise ParameterError(
            f"embed takes the path of a checkpoint, not a {type(model).__name__}: save the state"
            " dict first, or write into the live module with neuralmark.imprint"
        )
    return local(place_of(model))


@contextmanager
def _alone(model: Path) -> Iterator[None]:
    """Let nobody else change the model; what an earlier change left half done comes first."""
    done = recover(model)  # what is only read is never changed unasked
    if done is not None:
        warnings.warn(done, NeuralMarkWarning, stacklevel=4)
    with journal.exclusive(root_of(model)):
        yield


def _planned(checkpoint: Checkpoint, key: Key, options: EmbedOptions) -> MarkingPlan:
    public = None if options.base is None else open_checkpoint(options.base)
    return plan(checkpoint, key, listed(options.tensors), options.spread, public)


def _drafted(planned: MarkingPlan, options: EmbedOptions, progress: Progress | None) -> Draft:
    if options.in_span:
        return draft_in_span(planned, strength=options.strength, progress=progress)
    return draft(planned, strength=options.strength, budget=options.budget, progress=progress)


def _checked(drafted: Draft, options: EmbedOptions, target: Path) -> Draft:
    """The mark as it was drafted, or the strongest that passes the owner's check."""
    if options.check is None:
        return drafted
    return strongest(drafted, options.check, target, fixed=options.strength is not None)


def _verdicts(model: Path, keys: Sequence[Key], claims: dict[str, Claim]) -> tuple[Verdict, ...]:
    return tuple(verify(model, key, claim=claims.get(key.fingerprint)) for key in keys)


def _embedding(
    drafted: Draft,
    written: Written | None,
    notes: tuple[str, ...],
    others: tuple[tuple[Verdict, Verdict], ...] = (),
) -> Embedding:
    carriers = drafted.reading.carriers
    anchor = None if written is None else written.places.anchor
    return Embedding(
        output=None if written is None else str(written.places.out),
        claim_file=None if written is None else str(written.places.claim),
        anchor_file=None if anchor is None else str(anchor),
        claim=None if written is None else written.claim,
        verdict=None if written is None else written.verdict,
        tensors=tuple(tensor.name for tensor in drafted.tensors),
        strength=drafted.strength,
        change_relative=drafted.change_norm / drafted.reading.norm,
        change_largest=drafted.change_largest,
        carriers=carriers.size,
        weights_per_pool=carriers.per_pool,
        exposure=drafted.exposure,
        warnings=few_carriers(drafted.plan.mark, carriers)
        + _kept(drafted)
        + _one_alone(drafted)
        + (written.notes if written else ())
        + notes,
        others=others,
    )


def _notes(model: Path, planned: MarkingPlan, *, anchor: bool) -> tuple[str, ...]:
    """What the owner should know of this mark before relying on it."""
    notes = []
    key = planned.key
    if boundary(key.parameters.bits) is None:
        notes.append(
            f"{key.parameters.bits} bits can never be verified to 2^-{SECURITY_BITS}: make a key"
            " of 256 bits"
        )
    if planned.named and len(planned.tensors) > 1 and not anchor:
        notes.append("tensors named by hand are found again only with the claim (or the names)")
    if not planned.named and planned.quantised:
        notes.append(
            f"{planned.quantised} quantised tensors were passed over; dequantise them to mark them"
        )
    if any("lora_" in name.partition(".")[2] for name, _ in planned.placement):
        notes.append(
            "this marks a LoRA adapter: merging it into its base loses the mark; to keep it, mark"
            " the merged model"
        )
    earlier = [*claims_beside(model)]
    if key.fingerprint in earlier:
        notes.append("a claim of this very key is beside the input: its mark is there already")
    elif earlier:
        notes.append(
            f"the input carries a claim of another key ({earlier[0][:60]}): that mark stays, unless"
            " this one is very much stronger; other_keys=[...] shows both rates"
        )
    return tuple(notes)


def few_carriers(mark: Mark, carriers: Carriers) -> tuple[str, ...]:
    """A warning where too few weights share a pool."""
    if carriers.per_pool >= MIN_PER_POOL or not schemes.of(mark).pooled:
        return ()
    return (
        f"only {carriers.per_pool} carriers per pool (fewer than {MIN_PER_POOL}): the mark is"
        " costly and weak; mark more tensors or use a key with fewer rounds",
    )


def _kept(drafted: Draft) -> tuple[str, ...]:
    """A warning where tensors stay as they are because a mark would show in them."""
    kept = drafted.kept
    if not kept:
        return ()
    name, why = next(iter(kept.items()))
    return (f"{len(kept)} of {len(drafted.tensors)} tensors stay as they are ({name}: {why})",)


def _one_alone(drafted: Draft) -> tuple[str, ...]:
    """A warning where all of the mark is in one layer that was named, and not strong."""
    if not (drafted.plan.named and len(drafted.tensors) == 1 and drafted.strength < FIRM_ALONE):
        return ()
    return (
        "one tensor alone has all of the mark: whoever has data can hide it by changes in"
        " directions that the layer's inputs never take; mark more tensors, or with strength"
        f" {FIRM_ALONE:g} (see docs/anchors.md)",
    )


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
    root = root_of(local(place_of(model)))
    if not root.exists():
        raise CheckpointError(f"{root}: there is no such file or folder")
    return journal.recover(root)
