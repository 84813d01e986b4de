"""Writing a drafted mark: into a copy, or in place under a journal; then reading it back."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from neuralmark.checkpoints import Checkpoint, open_file, root_of
from neuralmark.checkpoints.contract import Copying
from neuralmark.errors import InfeasibleError, OutputError
from neuralmark.marking.attempts import claimed
from neuralmark.marking.beside import Places
from neuralmark.marking.claiming import claim_of
from neuralmark.marking.copies import left_out_of, links_in, mark_copies, other_copies, unmarked_in
from neuralmark.marking.drafting import Draft
from neuralmark.marking.judging import Looked, judge
from neuralmark.marking.reading import Attempt, FileSuspect, Progress, digest_of
from neuralmark.marking.verification import find
from neuralmark.records import Claim, Digest, Verdict
from neuralmark.storage import files, journal


@dataclass(frozen=True)
class Written:
    """A mark that was written and read back."""

    places: Places
    claim: Claim
    verdict: Verdict
    notes: tuple[str, ...]


@dataclass(frozen=True)
class MarkedCopy:
    """A copy of a model that is being made while its mark is computed."""

    model: Path
    places: Places
    drafts: Places
    """Names of what is not complete yet."""
    copying: Copying

    def finish(self, drafted: Draft, progress: Progress | None) -> Written:
        """Put the mark into the copy, read it back, and write the claim."""
        self.copying.finish(drafted.edits())
        temporary, out = self.drafts.out, self.places.out
        there, root = same_part(self.model, temporary), root_of(self.model)
        written = open_file(there)
        notes = mark_copies(drafted, written, temporary) + left_out_of(root) + links_in(root)
        verdict = reread(drafted, there, str(out), progress)
        source = digest_of(drafted.checkpoint, drafted.reading.digests)
        claim = _claim(drafted, verdict.checkpoint_digest, source)
        with files.create(self.drafts.claim, files.PRIVATE) as file:
            file.write(claim.to_json().encode("utf-8"))
        told = tuple(note.replace(temporary.name, out.name) for note in notes)
        return Written(self.places, claim.at(self.places.claim), verdict, told)


@contextmanager
def copy_of(
    checkpoint: Checkpoint, model: Path, places: Places, *, overwrite: bool
) -> Iterator[MarkedCopy]:
    """Begin a copy; it, its claim and its anchor get their names when all are complete.

    The copy comes last: it never lies there without what finds its mark again.
    """
    anchor = {} if places.anchor is None else {places.anchor: True}
    together = {**anchor, places.claim: True, places.out: overwrite}
    with files.replacing_together(together) as temporaries:
        *sealed, claim, out = temporaries
        drafts = Places(out, claim, sealed[0] if sealed else None)
        with checkpoint.copying(out) as copying:
            yield MarkedCopy(model, places, drafts, copying)


@contextmanager
def anchor_draft(places: Places) -> Iterator[Path | None]:
    """A name for the anchor of a model that is marked in place, until all is complete."""
    if places.anchor is None:
        yield None
        return
    draft = journal.draft_of(places.anchor)
    with files.writing(places.out):
        try:
            yield draft
        finally:
            with files.uninterrupted():
                files.remove(draft)


def write_in_place(
    drafted: Draft, model: Path, places: Places, anchor: Path | None, progress: Progress | None
) -> Written:
    """Change the model itself, under a journal that undoes whatever is cut short."""
    checkpoint, root = drafted.checkpoint, root_of(model)
    claim = _foretold(drafted)
    others = other_copies(checkpoint, root, drafted.tensors)
    names = [tensor.info.name for tensor in drafted.tensors]
    sealed = None
    if anchor is not None and places.anchor is not None:
        files.sync(anchor)
        sealed = (anchor, places.anchor)
    ranges = checkpoint.in_place_ranges(names)
    change = journal.JournalPlan(ranges, places.claim, claim.to_json(), sealed)
    with journal.changing(root, change):
        checkpoint.apply(drafted.edits(), lambda file: file)
        verdict = reread(drafted, model, str(root), progress)
    left = tuple(
        f"{o.name} holds the marked tensors too, and stays unmarked: use out=..." for o in others
    )
    return Written(places, claim.at(places.claim), verdict, left + unmarked_in(checkpoint, root))


def _foretold(drafted: Draft) -> Claim:
    """The claim of what is about to be written."""
    source = digest_of(drafted.checkpoint, drafted.reading.digests)
    return _claim(drafted, replace(source, tensors=drafted.marked_digests()), source)


def _claim(drafted: Draft, marked: Digest, source: Digest) -> Claim:
    return claim_of(drafted.key, drafted.placement, marked, source, drafted.plan.anchor)


def same_part(model: Path, target: Path) -> Path:
    """What stands in `target` for the model as it was named: a named index stays that index."""
    return target if root_of(model) == model else target / model.name


def reread(drafted: Draft, path: Path, label: str, progress: Progress | None) -> Verdict:
    """Read the mark back from what was written; anything but a full match is a failure."""
    written = FileSuspect(open_file(path), label)
    anchor = b"" if drafted.plan.anchor is None else drafted.plan.anchor.bytes
    attempt = Attempt(drafted.placement, drafted.tensors, "names", anchor=anchor)
    finding = find(written, drafted.key, attempt, progress)
    ways = claimed(written.tensors(), drafted.placement, anchor)
    looked = Looked.at(written, [attempt] if anchor else ways, trials=len(ways))
    verdict = judge(finding, written, drafted.key, looked)
    if verdict.matched != verdict.bits:
        raise InfeasibleError(
            f"only {verdict.matched} of {verdict.bits} bits were read back from the written file"
        )
    return verdict


def target_of(model: Path, out: str | Path | None, in_place: bool, overwrite: bool) -> Path | None:
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
