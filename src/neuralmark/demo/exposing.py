"""A thief without the key looks for the mark: as published, and as this library writes it."""

from pathlib import Path

from neuralmark.attacks import get, launch
from neuralmark.core.key import PUBLISHED_ROUNDS, TILED, Parameters
from neuralmark.demo import digits
from neuralmark.demo.page import Exposed
from neuralmark.keys.key import Key
from neuralmark.records import Claim


def published_key() -> Key:
    """A key with the filter of the paper."""
    return Key.new(Parameters(rounds=PUBLISHED_ROUNDS, filter=TILED), owner="NeuralMark demo")


def expose(name: str, path: Path, claim: Claim, key: Key, data: digits.DemoDigits) -> Exposed:
    """Launch `expose` on a marked file; it sees the file and the key's parameters, not the key."""
    state = digits.read(path)
    result = launch(get("expose")(), path, key, claim=claim)
    assert result.before is not None
    assert result.after is not None
    assert result.weights is not None
    erased = {**state, **{name: digits.tensor(w) for name, w in result.weights.items()}}
    return Exposed(
        name,
        accuracy=(digits.accuracy(state, data), digits.accuracy(erased, data)),
        matched=(result.before.matched, result.after.matched),
        verified=(result.before.verified, result.after.verified),
        change=result.change,
        found=result.note,
    )
