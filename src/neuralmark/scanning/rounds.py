"""A scan: one round, or one after the other for whoever watches."""

import hashlib
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neuralmark.core.encoding import canonical_json
from neuralmark.marking.options import options_of
from neuralmark.records import presenting
from neuralmark.remote import RemoteOptions, is_url
from neuralmark.sandbox.confined import Protection
from neuralmark.scanning import journal, results
from neuralmark.scanning.contract import (
    ALIKE,
    LOCAL,
    NOTHING,
    VERIFIED,
    Aligning,
    ScanOptions,
    ScanRow,
    ScanTerms,
    kept_name,
)
from neuralmark.scanning.family import looks, told
from neuralmark.scanning.journal import About, Listing, RoundJournal
from neuralmark.scanning.keyring import AnyKeys, Keyring, Places, keyring_of
from neuralmark.scanning.readers import LocalReaders, Readers
from neuralmark.scanning.running import RoundRunner, Tally, Watch
from neuralmark.scanning.targets import stamp_of, targets_of

UNANCHORED = (
    "no claim of these keys was given, and a mark with an anchor, which is what embed writes by"
    " default, is found only by its claim"
)

MOST_REMEMBERED = 1 << 18
"""Targets up to which one that is named twice is looked at once."""


@dataclass(frozen=True)
class ScanResult:
    """What a scan found, up to and with its last round.

    Attributes:
        folder: Where its results are.
        rows_file: The file of its rows.
        targets: How many models were looked at in the last round.
        marks: How many marks were looked for: keys, or claims where a key has several.
        counts: Rows by status, of all rounds.
        new: Rows by status, of the last round.
        correction: In words, what the bound is corrected for.
        round: The number of the last round.
        protection: By what the workers of all rounds were confined, also of earlier calls; None
            where some were not, or there was nothing to do.
        passed_over: Keys, claims and anchors that were not looked for, and why.
        added: Models that came after the list of targets was made, by an earlier call: they were
            not looked at. Only counted on this machine, and without watching.
        align: Which models were put back in order, as `ScanOptions.align` says.
        notes: What was left out that could find more.

    Examples:
        >>> found = neuralmark.scan(["marked.safetensors"], [key], "results")
        >>> found.verified, found.counts
        (True, {'verified': 1})
    """

    folder: Path
    rows_file: Path
    targets: int
    marks: int
    counts: dict[str, int]
    new: dict[str, int]
    correction: str
    round: int = 1
    protection: Protection | None = None
    passed_over: tuple[str, ...] = ()
    added: int = 0
    align: Aligning = ALIKE
    notes: tuple[str, ...] = ()

    @property
    def verified(self) -> bool:
        """Whether any mark was verified in any model."""
        return self.counts.get(VERIFIED, 0) > 0

    def rows(self) -> Iterator[ScanRow]:
        """All rows, one after the other.

        Returns:
            An iterator: a scan may have more rows than fit into memory.

        Examples:
            >>> found = neuralmark.scan(["marked.safetensors"], [key], "again")
            >>> [row.status for row in found.rows()]
            ['verified']
        """
        return results.read_rows(self.rows_file)


Finished = Callable[[ScanResult], None]


def scan(
    targets: Sequence[str | Path],
    keys: AnyKeys,
    out: str | Path,
    *,
    claims: Places | None = None,
    anchors: Places = (),
    lists: Sequence[str | Path] = (),
    options: ScanOptions | None = None,
    watch: Watch = lambda tally: None,
    finished: Finished = lambda result: None,
) -> ScanResult:
    """Look for the marks of all keys in all models, and give every finding its verdict.

    The bound is corrected for marks x targets x ways: the chance that anything at all is verified
    by luck stays below 2^-128. A model that cannot be read becomes a row. Called again with the
    same arguments, a scan that was stopped goes on; one that is complete gives its results. Both
    keep to the list of targets that the first call made: `ScanResult.added` says how many came
    since.

    Args:
        targets: Files, folders (searched for models), globs, URLs of files and folders.
        keys: A folder of key files, a key file, or several of these; keys by name, or keys.
        out: The folder for the results; it is made.
        claims: Claims, or folders of them: where the keys' marks were put. Without a claim a key is
            looked for where a search finds it, or where a claim beside a model says.
        anchors: Anchors, or folders of them; those beside the claims are found.
        lists: Files that hold targets, one in a line.
        options: Workers, limits, forms, watching; see `ScanOptions`.
        watch: Called with how far the round is.
        finished: Called with the results after each round.

    Returns:
        What was found, up to and with the last round.

    Raises:
        KeyFileError: A key cannot be read.
        ScanMismatchError: The folder holds the results of another scan, or is damaged.
        OutputError: The folder cannot be made or written.
        SandboxError: Workers cannot be started.
        MissingExtraError: Ray or Parquet is asked for, and not installed.

    Examples:
        >>> neuralmark.scan(["model.safetensors"], [key], "found").verified
        False
    """
    chosen = options_of(ScanOptions, options)
    results.require_form(chosen.form)
    keyring = keyring_of(keys, claims, anchors)
    folder, named = Path(out), list(map(str, targets))
    parts = _parts(keyring, named, map(str, lists), chosen)
    watches = chosen.every is not None
    about = journal.begin(folder, parts, watches=watches, overwrite=chosen.overwrite)
    made = _Scan(folder, keyring, chosen, named, tuple(lists), watch)
    added = 0 if watches else made.added()
    if about.finished and not watches:
        result = made.result(about, added)
        finished(result)
        return result
    left = chosen.rounds or (None if about.watches else 1)
    while True:
        begun = time.monotonic()
        about = made.round(about)
        about = replace(about, finished=about.finished + 1)
        result = made.result(about, added)
        finished(result)
        journal.keep(folder, about)  # not before: a round of which nobody was told is told again
        left = None if left is None else left - 1
        if left == 0:
            return result
        assert chosen.every is not None
        time.sleep(max(0.0, chosen.every - (time.monotonic() - begun)))


def _parts(
    keyring: Keyring, targets: Iterable[str], lists: Iterable[str], options: ScanOptions
) -> dict[str, Any]:
    """What makes a scan another one: with the same parts, rows are the same."""
    return {
        journal.KEYS: _digest([key.fingerprint for key in keyring.keys]),
        journal.PLACES: keyring.digest,
        f"{journal.OWN}targets": _digest(map(kept_name, targets)),
        f"{journal.OWN}lists of targets": _digest(map(kept_name, lists)),
        "align": options.align,
        "effort": float(options.effort),
        "align_limit": options.align_limit,
        "allow_private": options.remote.allow_private,
    }


def _digest(names: Iterable[str]) -> str:
    return hashlib.sha256(canonical_json(list(names))).hexdigest()


@dataclass(frozen=True)
class _Scan:
    """What stays the same from round to round."""

    folder: Path
    keyring: Keyring
    options: ScanOptions
    targets: list[str]
    lists: tuple[str | Path, ...]
    watch: Watch

    def round(self, about: About) -> About:
        """Carry out the round that comes next, or the rest of it."""
        turn = about.finished + 1
        listing = self._listing(turn, watches=about.watches)
        progress = RoundJournal(self._journal(turn), len(listing))
        try:
            marks = len(self.keyring.sought)
            tally = Tally(len(listing), marks=marks, turn=turn)
            _recount(tally, progress)
            self.watch(tally)
            if tally.done < len(listing):
                among = looks(marks, len(listing), turn if about.watches else None)
                readers = self._readers(among, listing.date)
                try:
                    about = about.protected(readers.protection if self.options.sandbox else None)
                    journal.keep(self.folder, about)
                    RoundRunner(listing, progress, readers, tally, self.watch).run()
                finally:
                    readers.close()
        finally:
            progress.close()
        if about.watches:
            journal.remember(self.folder, listing)
        return about

    def _readers(self, among: int, date: str) -> Readers:
        chosen = self.options
        effort = chosen.align, chosen.effort, chosen.align_limit
        terms = ScanTerms(among, *effort, date, chosen.remote)
        if chosen.engine == LOCAL:
            return LocalReaders(self.keyring, terms, chosen)
        from neuralmark.scanning.cluster import RayReaders

        return RayReaders(self.keyring, terms, chosen)

    def _journal(self, turn: int) -> Path:
        return self.folder / f"journal-{turn:04}.jsonl"

    def _targets(self, turn: int) -> Path:
        return self.folder / f"targets-{turn:04}.jsonl"

    def added(self) -> int:
        """How many models of this machine came after the list of the only round was made."""
        if not self._targets(1).is_file():
            return 0
        listing = Listing(self._targets(1))
        numbers = range(len(listing))
        known = array("q", sorted(hash(todo.target) for todo, _ in listing.read(numbers)))
        near = [target for target in self.targets if not is_url(target)]
        named = targets_of(near, (), self.folder)
        found = (hash(target) for target, _ in _stamped(named, self.options.since, None))
        return sum(not _holds(known, mark) for mark in found)

    def _listing(self, turn: int, *, watches: bool) -> Listing:
        """The targets of a round: those that are new, where somebody watches."""
        path = self._targets(turn)
        remote = self.options.remote
        named = targets_of(self.targets, self.lists, self.folder, remote)
        found = _stamped(named, self.options.since, remote if watches else None)
        if not watches:
            return Listing.of(path, found, presenting.now())
        with closing(journal.seen_before(self.folder)) as seen:
            fresh = (pair for pair in found if not journal.was_seen(seen, *pair))
            return Listing.of(path, fresh, presenting.now())

    def result(self, about: About, added: int) -> ScanResult:
        """Write the rows of all rounds, and count them."""
        counts: Counter[str] = Counter()
        new: Counter[str] = Counter()

        def rows() -> Iterator[ScanRow]:
            for turn in range(1, about.finished + 1):
                for row in self._rows(turn):
                    counts[row.status] += 1
                    new[row.status] += turn == about.finished
                    yield row

        path = results.write_rows(self.folder, self.options.form, rows())
        turn, marks = about.finished, len(self.keyring.sought)
        targets = len(Listing(self._targets(turn)))
        return ScanResult(
            self.folder,
            path,
            targets,
            marks,
            dict(sorted(counts.items())),
            {name: count for name, count in sorted(new.items()) if count},
            told(marks, targets, turn if about.watches else None),
            turn,
            about.protection,
            self.keyring.passed_over,
            added,
            self.options.align,
            (UNANCHORED,) if counts[NOTHING] and self.keyring.unplaced else (),
        )

    def _rows(self, turn: int) -> Iterator[ScanRow]:
        listing = Listing(self._targets(turn))
        progress = RoundJournal(self._journal(turn), len(listing))
        try:
            yield from progress.rows()
        finally:
            progress.close()


def _holds(known: Sequence[int], mark: int) -> bool:
    """Whether a sorted list holds a number."""
    place = bisect_left(known, mark)
    return place < len(known) and known[place] == mark


def _recount(tally: Tally, progress: RoundJournal) -> None:
    """What was done before the scan was stopped."""
    if any(progress.done):
        tally.done = sum(progress.done)
        for row in progress.rows():
            tally.by_status[row.status] = tally.by_status.get(row.status, 0) + 1


def _stamped(
    targets: Iterator[str], since: float | None, far: RemoteOptions | None
) -> Iterator[tuple[str, str | None]]:
    """Each target once, with its stamp, if it was changed lately enough."""
    known: set[int] = set()
    for target in targets:
        mark = hash(target)
        if mark in known:
            continue
        if len(known) < MOST_REMEMBERED:
            known.add(mark)
        stamp, changed = stamp_of(target, far)
        if since is None or changed is None or changed >= since:
            yield target, stamp
