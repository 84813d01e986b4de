"""What happened to many tensors, in few lines: one for each kind of change, with where it was."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from neuralmark.records.alignment import Alignment, TensorFate

_NUMBER = re.compile(r"\d[\d,.]*(?:e[+-]?\d+)?(?<![,.])")
_ASIDE = re.compile(r" (?=(?:was|were) set aside$)")
_BRIEF = re.compile(r"^(.*) (?:was|were) (?=set aside$)")
_ZEROS = re.compile(r"(.*) of the weights are zeros and were not read$")
_DIFFERS = re.compile(r"what the suspect differs by is (.* times the anchor)$")
_PLURALS = {
    "dummy dropped": "dummies dropped",
    "channel missing": "channels missing",
    "channel not matched": "channels not matched",
    "outlier was set aside": "outliers were set aside",
}


def gathered_changes(fates: Sequence[TensorFate]) -> list[tuple[str, int]]:
    """What was done to the tensors, and to how many of them; without counts of channels.

    >>> one, two = (TensorFate("", "", 0, 0, 1, (words,)) for words in ("1 dummy dropped",
    ...                                                                "3 dummies dropped"))
    >>> gathered_changes([one, two])
    [('dummies dropped', 2)]
    """
    counts = Counter(kind for fate in fates for kind in {_kind(change) for change in fate.changes})
    return counts.most_common()


def _kind(change: str) -> str:
    plain = re.sub(r"^[\d,]+ |: raise align_limit to \d+$", "", change)
    return _PLURALS.get(plain, plain)


def gathered_notes(told: Alignment) -> list[str]:
    """What was set aside, one line for each kind of change, with the tensors it was found in.

    >>> notes = tuple(f"h.{i}.fc.weight: a change of rank {8 + i} was set aside" for i in range(3))
    >>> gathered_notes(Alignment("00", 1, (), notes=notes))
    ['a change of rank 8 to 10 in layers 0 to 2 was set aside']
    """
    kinds: dict[str, list[tuple[str, str]]] = {}
    for note in told.notes:
        name, _, words = note.partition(": ")
        for one, many in _PLURALS.items():
            words = words.replace(one, many)
        kinds.setdefault(_NUMBER.sub("#", words), []).append((name, words))
    return [_line(kind, found) for kind, found in kinds.items()]


def with_asides(told: Alignment) -> tuple[TensorFate, ...]:
    """What became of the tensors, with what was set aside in each among its changes.

    >>> fate = TensorFate("fc.weight", "fc.weight", 0.5, 0.9, 1.0)
    >>> notes = ("fc.weight: a change of rank 4 was set aside",)
    >>> with_asides(Alignment("00", 1, (fate,), notes=notes))[0].changes
    ('a change of rank 4 set aside',)
    """
    notes: dict[str, list[str]] = {}
    for note in told.notes:
        name, _, words = note.partition(": ")
        notes.setdefault(name, []).append(words)
    return tuple(
        replace(fate, changes=(*fate.changes, *_asides(notes.get(fate.name, ()))))
        for fate in told.tensors
    )


def _asides(notes: Sequence[str]) -> tuple[str, ...]:
    """What was set aside, in a few words; where nothing was, by how much the tensor differs."""
    found = tuple(_BRIEF.sub(r"\1 ", note) for note in notes if _BRIEF.search(note))
    found += tuple(f"{zeros[1]} zeros not read" for zeros in map(_ZEROS.match, notes) if zeros)
    differs = tuple(f"differs by {size[1]}" for size in map(_DIFFERS.match, notes) if size)
    return found or differs


def _line(form: str, found: Sequence[tuple[str, str]]) -> str:
    """One kind of change: its numbers as ranges, and where it was."""
    numbers = zip(*(_NUMBER.findall(words) for _, words in found), strict=True)
    words = form
    for each in numbers:
        least, most = min(each, key=_value), max(each, key=_value)
        words = words.replace("#", least if least == most else f"{least} to {most}", 1)
    place = where([name for name, _ in found])
    return _ASIDE.sub(f" {place} ", words) if _ASIDE.search(words) else f"{words}, {place}"


def _value(number: str) -> float:
    try:
        return float(number.replace(",", ""))
    except ValueError:  # such as 1.2.3
        return 0.0


def where(names: Sequence[str]) -> str:
    """Which tensors these are: their layers where they are numbered, else the first and the last.

    >>> where(["h.0.fc.weight"]), where(["h.0.a", "h.1.a"]), where(["h.0.a", "h.4.a"])
    ('in h.0.fc.weight', 'in layers 0 to 1', 'in 2 layers from 0 to 4')
    >>> where(["conv1.weight", "layer1.0.conv2.weight", "fc.weight"])
    'in 3 tensors from conv1.weight to fc.weight'
    """
    if len(names) == 1:
        return f"in {names[0]}"
    numbered = [_layer(name) for name in names]
    layers = sorted({layer for _, layer in numbered})
    if len({stem for stem, _ in numbered}) > 1 or layers[0] < 0:
        return f"in {len(names)} tensors from {names[0]} to {names[-1]}"
    if len(layers) == 1:
        return f"in {len(names)} tensors of layer {layers[0]}"
    span = f"{layers[0]} to {layers[-1]}"
    whole = layers[-1] - layers[0] + 1 == len(layers)
    return f"in layers {span}" if whole else f"in {len(layers)} layers from {span}"


def _layer(name: str) -> tuple[str, int]:
    """What stands before the first number among the parts of a name, and that number; else -1."""
    parts = name.split(".")
    stem = list(takewhile(lambda part: not part.isdecimal(), parts))
    return ".".join(stem), int(parts[len(stem)]) if len(stem) < len(parts) else -1
