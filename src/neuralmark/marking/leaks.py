"""Which buyer's copy a suspect was made from: every sub-key looked for, one bound for all.

The suspect is put in order once, through the anchor; then every buyer's mark is read from what it
differs by from the anchor. What is read follows from suspect and anchor alone, before any sub-key
is derived with the anchor's digest, so for a buyer whose copy played no part each bit is a fair
coin, whoever mixed which other copies (docs/method.md, section 5).
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from neuralmark.anchors.anchor import Anchor
from neuralmark.anchors.chunks import is_sealed
from neuralmark.anchors.effort import AlignOptions
from neuralmark.checkpoints import open_checkpoint, place_of
from neuralmark.core.bound import boundary
from neuralmark.core.carriers import Carriers
from neuralmark.core.key import Float, Mark
from neuralmark.core.subkeys import plain_label
from neuralmark.errors import (
    CheckpointError,
    NeuralMarkWarning,
    NonFiniteError,
    ParameterError,
    UnsuitableTensorError,
)
from neuralmark.keys.key import Key
from neuralmark.marking.anchored import RestoredFile
from neuralmark.marking.attempts import by_names
from neuralmark.marking.beside import anchor_path, claim_path
from neuralmark.marking.buyers import buyer_parameters, buyers_of
from neuralmark.marking.claiming import claim_of
from neuralmark.marking.evidence import evidence_for
from neuralmark.marking.issuing import REGISTER
from neuralmark.marking.judging import held_back
from neuralmark.marking.options import VerifyOptions
from neuralmark.marking.reading import Attempt, FileSuspect, Progress, digest_of, require_carriers
from neuralmark.marking.showing import register_of
from neuralmark.marking.verification import margins_of
from neuralmark.records import (
    LEAST_FOUND,
    Alignment,
    Claim,
    CopyRegister,
    MarkRead,
    Trace,
    presenting,
)
from neuralmark.storage.places import Place

ONE_WAY, TWO_WAYS = 1, 2
"""Where the weights lie; and, with the anchor, put in order and read against it."""


@dataclass(frozen=True)
class MarkHolder:
    """Somebody whose mark is looked for: a buyer, or the owner (without a label)."""

    label: str
    key: Key


def trace(
    suspect: str | Place,
    key: Key,
    buyers: CopyRegister | Sequence[str] | str | Path,
    *,
    claim: Claim | str | Path | None,
    options: VerifyOptions,
    progress: Progress | None,
) -> Trace:
    """Say which buyers' copies a suspect was made from, reading it in this process."""
    if options.among != 1:
        raise ParameterError("a trace counts its own ways of looking: leave among=... out")
    listed, suspect = _listed(buyers), place_of(suspect)
    claim, anchor = _evidence(suspect, key, listed, claim, options)
    opened = open_checkpoint(suspect, options.base)
    checkpoint = opened.with_others()
    before = checkpoint.stamps()
    looked = _LeakSearch(FileSuspect(checkpoint, str(suspect)), claim, anchor, options.aligning())
    shape = buyer_parameters(key.parameters, claim.placement)
    subs = (MarkHolder(label, key.sub(label, parameters=shape)) for label in listed.labels)
    parties = [MarkHolder("", key), *subs]
    found = looked.at(parties, progress)
    near = isinstance(suspect, Path)
    whole = near if options.full_digest is None else options.full_digest
    files = digest_of(checkpoint, {}, full=whole).files
    if checkpoint.stamps() != before:
        raise CheckpointError(f"{suspect}: changed while it was read; trace it again")
    return Trace(
        suspect=str(suspect),
        parameters=key.parameters,
        owner=found.reads[0],
        buyers=found.reads[1:],
        ways=looked.ways,
        reason=f"{opened.wants}; {found.reason}" if opened.wants else found.reason,
        identical=None if listed.register is None else listed.register.owner_of(files or {}),
        sha256=files,
        pins=checkpoint.pins(),
        anchor=claim.anchor_digest.hex(),
        alignment=found.alignment,
        date=presenting.now(),
    )


@dataclass(frozen=True)
class _Listed:
    """The buyers, and what else is known where their list is a register."""

    labels: tuple[str, ...]
    register: CopyRegister | None = None
    folder: Path | None = None


def _listed(buyers: CopyRegister | Sequence[str] | str | Path) -> _Listed:
    if isinstance(buyers, CopyRegister):
        return _of_register(buyers, None)
    if isinstance(buyers, str | Path):
        path = Path(buyers) / REGISTER if Path(buyers).is_dir() else Path(buyers)
        if path.suffix.lower() == ".json":
            return _of_register(register_of(path), path.parent)
    return _Listed(buyers_of(buyers))


def _of_register(register: CopyRegister, folder: Path | None) -> _Listed:
    return _Listed(buyers_of(register.buyers), register, folder)


def _evidence(
    suspect: Place,
    key: Key,
    listed: _Listed,
    claim: Claim | str | Path | None,
    options: VerifyOptions,
) -> tuple[Claim, Anchor | None]:
    """The claim of the owner's mark and its anchor: given, of the register, or found beside."""
    register, anchor = listed.register, options.anchor
    if register is not None and claim is None:
        source = register.source_digest
        claim = claim_of(key, register.placement, source, source, register.anchor)
        claim = replace(claim, fingerprint=register.fingerprint, commitment=register.commitment)
    if register is not None and listed.folder is not None and anchor is None:
        near = anchor_path(claim_path(listed.folder / register.base))
        anchor = near if is_sealed(near) else None
    elif register is None and isinstance(claim, str | Path):
        _warn_of_others(Path(claim).parent / REGISTER, listed.labels)
    known = evidence_for(suspect, key, claim=claim, anchor=anchor)
    if known.claim is None:
        raise ParameterError(
            "a trace needs to know what was marked: give claim=..., the claim of the owner's copy,"
            f" or the register of the copies ({REGISTER}) as the list of buyers"
        )
    return known.claim, known.anchor


def _warn_of_others(path: Path, labels: Sequence[str]) -> None:
    """Say that a register beside the claim has more buyers: the bound is to be for all of them."""
    if not path.is_file():
        return
    all_of_them, given = (
        set(map(plain_label, many)) for many in (register_of(path).buyers, labels)
    )
    others = len(all_of_them - given)
    if others:
        warnings.warn(
            f"{path} knows {others} more, and the bound does not count who is not in the list: give"
            " the register as the list of buyers",
            NeuralMarkWarning,
            stacklevel=5,
        )


@dataclass(frozen=True)
class _LeakFound:
    """What was read, party by party."""

    reads: tuple[MarkRead, ...]
    reason: str
    alignment: Alignment | None


@dataclass(frozen=True)
class _LeakSearch:
    """The ways of looking, fixed before anything is read: one trial for each buyer and way."""

    suspect: FileSuspect
    claim: Claim
    anchor: Anchor | None
    aligning: AlignOptions

    @property
    def ways(self) -> int:
        """In how many ways every key is looked for."""
        return ONE_WAY if self.anchor is None else TWO_WAYS

    def at(self, parties: Sequence[MarkHolder], progress: Progress | None) -> _LeakFound:
        """Read the marks of all, the owner's first."""
        tell = progress or (lambda *_: None)
        placement, digest = self.claim.placement, self.claim.anchor_digest
        place, why = self._place()
        restored, record = self._restored(tell)
        reads = []
        try:
            for number, party in enumerate(parties):
                tell("reading marks", number, len(parties))
                mark = party.key.at(placement, digest)
                carriers = require_carriers(mark, placement)
                here = there = None
                if place is not None:
                    here = _matched(mark, self.suspect.read(place, carriers).pooled)
                if restored is not None:
                    read = restored.pooled_beyond if party.label else restored.pooled
                    there = _matched(mark, read(carriers))
                    if not party.label:  # all copies have it: to the buyers' marks it is noise
                        restored.clear(carriers)
                reads.append(MarkRead(party.label, party.key.fingerprint, here, there))
        finally:
            if restored is not None:
                restored.close()
        return _LeakFound(tuple(reads), self._reason(reads[1:], why, record), record)

    def _place(self) -> tuple[Attempt | None, str]:
        """Where the weights lie, if they can be read there; else why not."""
        placement, digest = self.claim.placement, self.claim.anchor_digest
        attempt = by_names(self.suspect.tensors(), placement, digest)
        if attempt is None:
            return None, "too few tensors have the names and shapes of the mark"
        everything = Carriers.everything(sum(math.prod(shape) for _, shape in placement), 1)
        try:
            self.suspect.read(attempt, everything)
        except (NonFiniteError, UnsuitableTensorError) as error:
            return None, str(error)
        return attempt, ""

    def _restored(self, tell: Progress) -> tuple[RestoredFile | None, Alignment | None]:
        """The weights put in order, once for all; nothing where too little of them was found."""
        if self.anchor is None:
            return None, None
        from neuralmark.anchors.restoring import restore  # slow to import

        restoration = restore(self.suspect.weights(), self.anchor, self.aligning, tell)
        restored = RestoredFile(restoration, self.anchor)
        record = restoration.record()
        if not record.enough:
            restored.close()
            return None, record
        return restored, record

    def _reason(self, buyers: Sequence[MarkRead], why: str, record: Alignment | None) -> str:
        bits, trials = self.claim.parameters.bits, self.ways * len(buyers)
        needed, most = boundary(bits, trials), max(each.matched for each in buyers)
        whose = f"{len(buyers)} buyer{'s' * (len(buyers) > 1)}"
        ways = f"{trials} ways of looking ({whose}, {self.ways} each)"
        if needed is None:
            return f"{bits} bits can never name one of {len(buyers)} buyers: use a key with more"
        if most >= needed:
            return f"{most} of {bits} bits match; {needed} would have sufficed in {ways}"
        read = any(bits is not None for each in buyers for bits in (each.position, each.aligned))
        said = f"{most} of {bits} bits match at most; {needed} are needed in {ways}"
        said = said if read else "nothing was read in which a mark could be"
        said += f"; not read where they lie: {why}" if why else ""
        if record is None:
            return f"{said}; without the anchor, mixed or rearranged copies are not found"
        if not record.enough:
            return f"{said}; less than {LEAST_FOUND:.0%} of the marked weights were found"
        return said + held_back(record, self.claim.placement)


def _matched(mark: Mark, pooled: Float) -> int:
    """Bits that match; a zero logit never does."""
    return int((margins_of(mark, pooled) > 0).sum())
