"""One copy of a model for each buyer: the owner's mark, and one that only that copy has.

The owner's mark is written once, by `embed`, into the owner's own copy. Every buyer's copy is that
one with the marked tensors' bytes replaced; what stays is shared with it where the disk can. All
marks are bound to one anchor, of the model before any mark. A buyer's mark is written so that the
change alone shows it (`LeastChange.beyond`): then it is read from the difference from the anchor,
without the noise of the weights themselves, and stays readable where copies are averaged. The other
weights of the marked tensors move as well, at random (`MarkingPlan.covered`): where most copies
agreed, buyers would see what the weights were before.
"""

import hashlib
import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from neuralmark.checkpoints import (
    Checkpoint,
    open_checkpoint,
    open_file,
    place_of,
    root_of,
)
from neuralmark.checkpoints.readers.dtypes import decode
from neuralmark.core.subkeys import plain_label
from neuralmark.errors import InfeasibleError, OutputError, ParameterError, RecordError
from neuralmark.keys.key import Key
from neuralmark.marking.beside import anchor_path, claim_path
from neuralmark.marking.buyers import buyer_parameters, buyers_of
from neuralmark.marking.copies import mark_copies, other_copies
from neuralmark.marking.drafting import Draft, MarkingPlan, draft, plan
from neuralmark.marking.embedding import embed
from neuralmark.marking.options import CopyOptions, EmbedOptions, options_of
from neuralmark.marking.placement import catalogue, listed, select
from neuralmark.marking.reading import Attempt, FileSuspect, Progress, digest_of
from neuralmark.marking.verification import find
from neuralmark.marking.writing import reread, same_part
from neuralmark.records import Claim, ClaimedAnchor, CopyRegister, IssuedCopy
from neuralmark.storage import files, journal
from neuralmark.storage.places import local

REGISTER = "copies.json"
BASE = "owner"
"""The owner's own copy: this name, and the ending of the model."""
_ROUNDS = 4
_SLUG, _SHORT = 40, 8
_LEFTOVER = re.compile(
    r"\.[0-9a-f]{16}\.nm(tmp|old)\."
    rf"({BASE}[^/]*|{re.escape(REGISTER)}|[a-z0-9-]+-[0-9a-f]{{{_SHORT}}}[^/]*)"
)


@dataclass(frozen=True)
class OwnersCopy:
    """The owner's own copy, which all buyers' copies are made from."""

    key: Key
    checkpoint: Checkpoint
    part: Path
    """What was opened: the file, the folder, or the index that was named."""
    claim: Claim
    anchor: ClaimedAnchor
    changing: frozenset[Path]
    """Files that hold a marked tensor, here or in another copy of the weights."""
    digests: dict[Path, str]
    """SHA-256 of the files that hold weights and stay the same in every copy."""

    @property
    def root(self) -> Path:
        """The file or folder."""
        return root_of(self.part)

    def planned(self, key: Key, checkpoint: Checkpoint, *, alone: bool) -> MarkingPlan:
        """The mark of a key in this copy, or in one made from it, bound to the anchor."""
        names = [name for name, _ in self.claim.placement]
        chosen = plan(checkpoint, key, names).bound_to(self.anchor)
        return replace(chosen, named=False, alone=alone)


def issue_copies(
    model: str | Path,
    key: Key,
    buyers: Sequence[str] | str | Path,
    out: str | Path,
    options: CopyOptions | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> tuple[CopyRegister, tuple[str, ...]]:
    """Make a copy of the model for every buyer, each with the owner's mark and one of its own.

    Into the folder `out` go the owner's own copy with its claim and its anchor, the buyers' copies,
    and the register `copies.json`. A run that was cut short goes on where it stopped, and buyers
    who come later are added to the same folder. Only the buyers' copies are to be handed out.

    Args:
        model: Path of the unmarked checkpoint.
        key: The owner's key; the buyers' are derived from it (`Key.sub`).
        buyers: Their names, or the path of a CSV file with a column `buyer`.
        out: The folder; it is made if it is not there.
        options: Which tensors, how strong; see `CopyOptions`.
        overwrite: Whether to begin anew where other copies are there already.
        progress: Called with what is being done, how many copies are done, and how many in all.

    Returns:
        The register, and what the owner should know before relying on the marks.

    Raises:
        BuyersError: The list of buyers is empty, names one twice, or holds control characters.
        UsageError: The call cannot be carried out, such as tensors that are too small, or a folder
            with the copies of another model.
        InputError: The model cannot be read.

    Examples:
        >>> buyers = ["Acme Ltd.", "Bolt GmbH"]
        >>> register, _ = neuralmark.issue_copies("model.safetensors", key, buyers, "copies")
        >>> register.buyers
        ('Acme Ltd.', 'Bolt GmbH')
        >>> neuralmark.trace(Path("copies") / register.copies[1].path, key, "copies").named
        ('Bolt GmbH',)
    """
    options, labels, folder = options_of(CopyOptions, options), buyers_of(buyers), Path(out)
    model = _required(key, model)
    tell = progress or (lambda *_: None)
    with _made(folder), journal.exclusive(folder):
        _sweep(folder)
        tell("the owner's copy", 0, len(labels) + 1)
        register, notes = _begun(model, key, folder, options, overwrite=overwrite)
        base = _opened(model, key, folder, register)
        for number, label in enumerate(labels, 1):
            tell(f"copy for {label}", number, len(labels) + 1)
            known = register.of(label)
            if known is not None and _is_there(folder, known):
                continue
            made = _issued(base, label, folder, options)
            kept = tuple(each for each in register.copies if each is not known)
            register = replace(register, copies=(*kept, made))
            _save(register, folder)
        tell("all copies", len(labels) + 1, len(labels) + 1)
    return register, notes


def _required(key: Key, model: str | Path) -> Path:
    """Where the model is; refuses keys and places that copies cannot be made with."""
    if not isinstance(model, str | Path):
        raise ParameterError(f"model must be the path of a checkpoint, not {type(model).__name__}")
    if key.kind != "native" or key.parameters.scheme != "neuralmark":
        raise ParameterError(
            "copies are marked with the scheme neuralmark and a key that has a secret: make one"
            " with 'neuralmark key new'"
        )
    return local(place_of(model))


def _sweep(folder: Path) -> None:
    """Remove what a killed run left half done: nobody else is at work here."""
    for entry in list(folder.iterdir()):
        if _LEFTOVER.fullmatch(entry.name):
            files.remove(entry)


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """The folder, which is taken away again if it is new and what fails leaves nothing in it."""
    new = not folder.exists()
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if new:
            with suppress(OSError):  # it holds what was finished
                folder.rmdir()
        raise


def _begun(
    model: Path, key: Key, folder: Path, options: CopyOptions, *, overwrite: bool
) -> tuple[CopyRegister, tuple[str, ...]]:
    """The register as an earlier run left it, or a new one beside a new copy for the owner."""
    there = folder / REGISTER
    base = folder / (BASE + ("" if root_of(model).is_dir() else root_of(model).suffix))
    if there.exists() and not overwrite:
        register = CopyRegister.load(there)
        _same(register, model, key, options, folder)
        return register, ()
    notes: tuple[str, ...] = ()
    claim = None if overwrite else _left(base, key)
    found = claim is not None
    if claim is None:
        done = embed(model, key, base, _embedding(options), overwrite=overwrite)
        claim, notes = done.claim, done.warnings
    assert claim is not None
    assert claim.anchor is not None
    assert claim.source_digest is not None
    register = CopyRegister(
        key.fingerprint,
        key.commitment,
        key.parameters,
        claim.placement,
        claim.anchor,
        claim.source_digest,
        base.name,
    )
    if found:
        _same(register, model, key, options, folder)
    _save(register, folder)
    return register, notes


def _left(base: Path, key: Key) -> Claim | None:
    """The claim of the owner's copy, where a killed run made that and no register."""
    try:
        claim = Claim.load(claim_path(base))
    except RecordError:
        return None
    mine = claim.fingerprint == key.fingerprint and claim.anchor is not None
    return claim if mine and claim.source_digest is not None and base.exists() else None


def _embedding(options: CopyOptions) -> EmbedOptions:
    return EmbedOptions(
        tensors=options.tensors,
        spread=options.spread,
        strength=options.strength,
        budget=options.budget,
        heads=options.heads,
        anchor_bits=options.anchor_bits,
    )


def _same(
    register: CopyRegister, model: Path, key: Key, options: CopyOptions, folder: Path
) -> None:
    """Refuse to go on with the copies of another key, model or choice of tensors."""
    there = f"{folder}: holds the copies of another"
    way_out = "choose another folder, or pass overwrite=True"
    if (register.fingerprint, register.commitment) != (key.fingerprint, key.commitment):
        raise OutputError(f"{there} key ({register.fingerprint[:60]}): {way_out}")
    checkpoint = open_checkpoint(model)
    chosen = plan(checkpoint, key, listed(options.tensors), options.spread)
    if chosen.placement != register.placement:
        raise OutputError(f"{there} model, or of other tensors of this one: {way_out}")
    digests = {
        name: _digest_of_pieces(checkpoint, tensor.info.name)
        for tensor, (name, _) in zip(chosen.tensors, chosen.placement, strict=True)
    }
    if digest_of(checkpoint, digests) != register.source_digest:
        raise OutputError(f"{there} model: {way_out}")


def _digest_of_pieces(checkpoint: Checkpoint, name: str) -> str:
    digest = hashlib.sha256()
    for piece in checkpoint.read(name):
        digest.update(piece.data)
    return digest.hexdigest()


def _opened(model: Path, key: Key, folder: Path, register: CopyRegister) -> OwnersCopy:
    """The owner's copy, ready for copies to be made from it."""
    path = folder / register.base
    part = same_part(model, path)
    claim = Claim.load(claim_path(path))
    if claim.anchor != register.anchor or not anchor_path(claim_path(path)).exists():
        raise OutputError(
            f"{path}: its claim or its anchor is not that of the register: choose another folder,"
            " or pass overwrite=True"
        )
    checkpoint = open_checkpoint(part)
    marked = select(catalogue(checkpoint), [name for name, _ in claim.placement])
    changing = {local(checkpoint.span(tensor.info.name).file) for tensor in marked}
    for other in other_copies(checkpoint, root_of(path), marked):
        spans = (other.checkpoint.span(tensor.info.name) for tensor in other.tensors)
        changing |= {local(span.file) for span in spans}
    still = [file for file in map(local, checkpoint.files()) if file not in changing]
    digests = {file: _file_digest(file) for file in still}
    return OwnersCopy(key, checkpoint, part, claim, register.anchor, frozenset(changing), digests)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_there(folder: Path, known: IssuedCopy) -> bool:
    """Whether a copy of the register is there, as large as it was."""
    path = folder / known.path
    held = [path / name if path.is_dir() else path for name in known.files]
    return all(file.is_file() for file in held) and _size(held) == known.size


def _size(held: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in held)


def _issued(base: OwnersCopy, label: str, folder: Path, options: CopyOptions) -> IssuedCopy:
    """Make one copy; it gets its name when both marks were read back from it."""
    shape = buyer_parameters(base.key.parameters, base.claim.placement)
    sub = base.key.sub(label, parameters=shape)
    target = folder / file_name(label, sub, "" if base.root.is_dir() else base.root.suffix)
    planned = replace(base.planned(sub, base.checkpoint, alone=True), covered=options.cover)
    drafted = draft(planned, strength=options.strength, budget=options.budget)
    with files.replacing(target, overwrite=True) as temporary:
        files.clone_tree(base.root, temporary, base.changing)
        places = {
            file: temporary if base.root.is_file() else temporary / file.name
            for file in map(local, base.checkpoint.files())
        }
        base.checkpoint.apply(drafted.edits(), lambda file: places[local(file)])
        there = same_part(base.part, temporary)
        reread(drafted, there, str(target), None)
        _keep_owner(base, drafted, there)
        mark_copies(drafted, open_file(there), temporary)
        change = _change(base, open_file(there))
        digests = {
            target.name if base.root.is_file() else file.name: base.digests.get(file)
            or _file_digest(copied)
            for file, copied in places.items()
        }
        size = _size(list(places.values()))
    return IssuedCopy(
        label,
        sub.fingerprint,
        target.name,
        digests,
        size,
        drafted.strength,
        change,
    )


def _change(base: OwnersCopy, written: Checkpoint) -> float:
    """How far a copy is from the owner's, as a share of the marked weights' norm."""
    square = whole = 0.0
    for tensor in select(catalogue(written), [name for name, _ in base.claim.placement]):
        name, dtype = tensor.info.name, tensor.info.dtype
        for one, two in zip(base.checkpoint.read(name), written.read(name), strict=True):
            before = decode(one, dtype).astype(np.float64)
            square += float(np.square(decode(two, dtype) - before).sum())
            whole += float(np.square(before).sum())
    return math.sqrt(square / whole)


def _keep_owner(base: OwnersCopy, drafted: Draft, there: Path) -> None:
    """See that the owner's mark is whole beside the buyer's; write what it lost, and look again."""
    keys = ((base.key, False), (drafted.key, True))
    for _ in range(_ROUNDS):
        written = open_file(there)
        broken = [(key, alone) for key, alone in keys if _lost(base, key, written)]
        if not broken:
            return
        for key, alone in broken:
            planned = base.planned(key, written, alone=alone)
            again = draft(planned, strength=drafted.strength).edits()
            whole = {name: [b"".join(pieces())] for name, pieces in again.items()}
            edits = {name: partial(iter, data) for name, data in whole.items()}
            written.apply(edits, lambda file: file)
    raise InfeasibleError(
        "the owner's mark and the buyer's disturb each other: these tensors are too small for both;"
        " mark more of them (tensors=[...]), or use a key with fewer bits"
    )


def _lost(base: OwnersCopy, key: Key, written: Checkpoint) -> int:
    """Bits of a key's mark that a copy does not show."""
    tensors = select(catalogue(written), [name for name, _ in base.claim.placement])
    attempt = Attempt(base.claim.placement, tensors, "names", anchor=base.anchor.bytes)
    finding = find(FileSuspect(written, str(written.path)), key, attempt)
    return key.parameters.bits - finding.matched


def file_name(label: str, sub: Key, ending: str) -> str:
    """A name for a buyer's copy: plain letters of the label, and the sub-key's own digits.

    >>> file_name("../Müller & Söhne", neuralmark.Key.new(), ".npz").rpartition("-")[0]
    'muller-sohne'
    """
    plain = unicodedata.normalize("NFKD", plain_label(label)).encode("ascii", "ignore").decode()
    slug = re.sub("[^a-z0-9]+", "-", plain.lower()).strip("-")[:_SLUG].strip("-") or "copy"
    return f"{slug}-{sub.fingerprint.removeprefix('nm1-')[:_SHORT]}{ending}"


def _save(register: CopyRegister, folder: Path) -> None:
    text = register.to_json()
    files.write_text(folder / REGISTER, text, overwrite=True, mode=files.PRIVATE)
