"""The keys of a scan, their claims and their anchors: which marks are looked for."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from neuralmark import schemes
from neuralmark.anchors.chunks import is_sealed, read_public
from neuralmark.anchors.sealed import SUFFIX, load_anchor
from neuralmark.core.encoding import canonical_json
from neuralmark.core.key import Placement
from neuralmark.errors import InputError, KeyFileError, LiveModelError, ParameterError
from neuralmark.keys.key import Key
from neuralmark.marking.attempts import check_claim
from neuralmark.marking.beside import anchor_path, claim_path, claims_beside
from neuralmark.records import Claim
from neuralmark.remote import is_url
from neuralmark.scanning.contract import TargetName

KEY_SUFFIX = ".nmkey"
CLAIM_SUFFIX = ".claim.json"

AnyKeys = Mapping[str, Key] | Sequence[Key | str | Path] | str | Path
"""Keys by the names of their files; keys, key files and folders of these, several or one."""
Places = Sequence[str | Path] | str | Path
"""Files, and folders of them."""


@dataclass(frozen=True)
class Sought:
    """One mark that is looked for: a key, and where it was put if that is known."""

    key: Key
    name: str
    """The name of the key's file."""
    claim: Claim | None = None
    claim_file: str | None = None
    anchor: str | None = None
    """The file of its anchor."""
    placement: Placement = ()
    """What was marked, as far as the claim or the anchor tells."""
    anchor_digest: bytes = b""


_Sealed = dict[tuple[str, bytes], Sought]
"""By the fingerprint of the key, and the digest of the anchor."""


@dataclass(frozen=True)
class Keyring:
    """All marks that are looked for."""

    sought: tuple[Sought, ...]
    passed_over: tuple[str, ...] = ()
    """Keys, claims and anchors that are not looked for, and why."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """Every key once."""
        return tuple({each.key.fingerprint: each.key for each in self.sought}.values())

    @property
    def unplaced(self) -> bool:
        """Whether neither a claim nor an anchor says where any mark is, and some may have one."""
        placed = any(each.claim is not None or each.anchor is not None for each in self.sought)
        return not placed and any(key.kind == "native" for key in self.keys)

    @property
    def digest(self) -> str:
        """The same for the same marks."""
        marks = [
            [
                each.key.fingerprint,
                each.claim.digest if each.claim is not None else None,
                each.anchor_digest.hex() if each.anchor else None,
            ]
            for each in self.sought
        ]
        return hashlib.sha256(canonical_json(marks)).hexdigest()


def key_files(folder: str | Path) -> list[Path]:
    """The key files in a folder, sorted; a key file itself stands for itself."""
    path = Path(folder)
    if not path.exists():
        raise KeyFileError(f"{path}: there is no such file or folder")
    found = [path] if path.is_file() else sorted(path.rglob(f"*{KEY_SUFFIX}"))
    if not found:
        raise KeyFileError(f"{path}: there is no key file ({KEY_SUFFIX}) in it")
    return found


def named_files(places: Places) -> dict[str, Path]:
    """Key files by name, each once: in a folder by the way to it, in full where names clash."""
    named: dict[str, Path] = {}
    known: set[Path] = set()
    for place in (places,) if isinstance(places, str | Path) else places:
        for path in key_files(place):
            if path.resolve() in known:
                continue
            known.add(path.resolve())
            name = path.name if path == Path(place) else str(path.relative_to(place))
            named[str(path.absolute()) if name in named else name] = path
    return named


def keyring_of(keys: AnyKeys, claims: Places | None = None, anchors: Places = ()) -> Keyring:
    """Put together what is looked for; a key with several claims is looked for once for each."""
    named = _named(keys)
    notes: list[str] = []
    usable: dict[str, tuple[str, Key]] = {}
    for name, key in named.items():
        try:
            schemes.require_weights(key.parameters)
            usable.setdefault(key.fingerprint, (name, key))
        except LiveModelError as error:
            notes.append(f"{name}: {error}")
    if not usable:
        raise ParameterError("none of the keys can be looked for in files; " + "; ".join(notes))
    sealed = _anchors(anchors, usable, notes)
    found = [*_claimed(claims, usable, sealed, notes)]
    found += [each for each in sealed.values() if not _taken(each, found)]
    with_place = {each.key.fingerprint for each in found}
    found += [Sought(key, name) for mark, (name, key) in usable.items() if mark not in with_place]
    found.sort(key=lambda each: (each.name, each.claim.digest if each.claim else ""))
    return Keyring(tuple(found), tuple(notes))


def _named(keys: AnyKeys) -> dict[str, Key]:
    if isinstance(keys, str | Path):
        keys = (keys,)
    if isinstance(keys, Mapping):
        named = dict(keys)
    else:
        files = named_files([each for each in keys if isinstance(each, str | Path)])
        named = {name: Key.load(path) for name, path in files.items()}
        alone = [each for each in keys if not isinstance(each, str | Path)]
        named |= {key.fingerprint if isinstance(key, Key) else "?": key for key in alone}
    if not named or not all(isinstance(key, Key) for key in named.values()):
        raise ParameterError(
            "keys must be a folder of key files, or a list of keys, key files and folders"
        )
    return named


def _files(places: Places | None, suffix: str) -> Iterator[Path]:
    given = () if places is None else (places,) if isinstance(places, str | Path) else places
    for place in map(Path, given):
        yield from sorted(place.rglob(f"*{suffix}")) if place.is_dir() else (place,)


def _anchors(places: Places, usable: Mapping[str, tuple[str, Key]], notes: list[str]) -> _Sealed:
    """Anchors of these keys; two keys may have the same in the same model."""
    found: _Sealed = {}
    for path in _files(places, SUFFIX):
        mark = read_public(path).fingerprint
        if mark not in usable:
            notes.append(f"{path.name}: an anchor of none of the keys")
            continue
        name, key = usable[mark]
        anchor = load_anchor(path, key)
        found[mark, anchor.digest] = Sought(
            key,
            name,
            anchor=str(path),
            placement=anchor.placement,
            anchor_digest=anchor.digest,
        )
    return found


def _claimed(
    places: Places | None,
    usable: Mapping[str, tuple[str, Key]],
    sealed: _Sealed,
    notes: list[str],
) -> Iterator[Sought]:
    seen: set[str] = set()
    for path in _files(places, CLAIM_SUFFIX):
        claim = Claim.load(path)
        if claim.fingerprint not in usable:
            notes.append(f"{path.name}: a claim of none of the keys")
            continue
        if claim.digest in seen:
            continue
        seen.add(claim.digest)
        name, key = usable[claim.fingerprint]
        check_claim(claim, key)
        anchor = _anchor_of(claim, path, key, sealed)
        digest = claim.anchor_digest
        yield Sought(key, name, claim, str(path), anchor, claim.placement, digest)


def _anchor_of(claim: Claim, path: Path, key: Key, sealed: _Sealed) -> str | None:
    """The anchor that was given, or lies beside the claim, if it is the claim's."""
    if claim.anchor is None:
        return None
    given = sealed.get((claim.fingerprint, claim.anchor_digest))
    if given is not None:
        return given.anchor
    beside = anchor_path(path)
    if not is_sealed(beside):
        return None
    anchor = load_anchor(beside, key, links=False)
    fits = anchor.digest == claim.anchor_digest and anchor.placement == claim.placement
    return str(beside) if fits else None


def _taken(each: Sought, found: Sequence[Sought]) -> bool:
    mine = each.key.fingerprint, each.anchor_digest
    return any((other.key.fingerprint, other.anchor_digest) == mine for other in found)


def keys_beside(target: TargetName, listed: Callable[[Path], Sequence[str]]) -> set[str]:
    """Fingerprints of keys of which a claim lies beside a model.

    Args:
        target: The model.
        listed: The names of the claims in a folder, which may be remembered.

    Returns:
        None for what is far: only what lies on this machine has anything beside it.
    """
    if is_url(target):
        return set()
    path = Path(target)
    usual = claim_path(path)
    stem = usual.name.removesuffix(CLAIM_SUFFIX)
    near = any(name.startswith(f"{stem}.") for name in listed(usual.parent))
    inside = path.is_dir() and any(claim_names(path))
    return set(claims_beside(path)) if near or inside else set()


def claim_names(folder: Path) -> tuple[str, ...]:
    """The names of the claims in a folder."""
    try:
        with os.scandir(folder) as entries:
            return tuple(entry.name for entry in entries if entry.name.endswith(CLAIM_SUFFIX))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror or error})") from None
