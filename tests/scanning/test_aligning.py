"""Who is put back in order is told while it lasts, and starting a reader is no model's time."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from neuralmark import EmbedOptions, ScanOptions, scan
from neuralmark.checkpoints import place_of
from neuralmark.cli import _scanned
from neuralmark.sandbox.limits import SandboxLimits
from neuralmark.sandbox.served import PlaceServer
from neuralmark.scanning import readers
from neuralmark.scanning.contract import WEIGHTS, Errand, ScanTerms, Todo
from neuralmark.scanning.keyring import keyring_of
from neuralmark.scanning.running import Tally
from tests.support.scans import ONE, keys_of, mark, models_in, permuted


def test_models_that_are_put_in_order_are_told(tmp_path: Path) -> None:
    keys = keys_of("a")
    claims = tmp_path / "claims"
    marked = mark(models_in(tmp_path / "models", 1)[0], keys["a.nmkey"], claims, EmbedOptions())
    moved = permuted(marked, tmp_path / "moved.safetensors")
    seen: list[list[str]] = []
    scan(
        [moved],
        keys,
        tmp_path / "out",
        claims=claims,
        options=ONE,
        watch=lambda tally: seen.append(list(tally.aligning)),
    )
    assert [str(moved)] in seen
    assert seen[-1] == []


def test_what_a_worker_makes_up_is_not_kept(tmp_path: Path) -> None:
    keyring = keyring_of(keys_of("a"))
    model = models_in(tmp_path, 1)[0]
    made = readers.LocalReaders(keyring, ScanTerms(1), ScanOptions(jobs=1))
    try:
        made.begin(Errand(WEIGHTS, (Todo(3, str(model)),)))
        for number in (3, 4, -1):
            made._hear("aligning", number, 1)
        assert made.aligning() == [str(model)]
        while not made.wait():
            pass
        assert made.aligning() == []
    finally:
        made.close()


def test_the_line_names_one_of_them() -> None:
    far = _scanned._HowFar()
    assert far.line() == "searching the targets for models"
    tally = Tally(5, 2, marks=1)
    far.take(tally)
    assert far.line() == "2 of 5 models, 1 mark; starting"  # those are of a former call
    far.take(replace(tally, aligning=["a.npz"]))
    assert far.line().endswith("; putting back in order: a.npz")
    far.take(replace(tally, aligning=["a.npz", "b.npz"]))
    assert far.line().endswith("; putting back in order: 2 models, among them a.npz")
    far.take(replace(tally, done=5))
    assert far.line() == ""


class SlowToLoad:
    """Takes two seconds where it arrives, as libraries do on a busy machine."""

    def __reduce__(self) -> tuple[Any, ...]:
        return time.sleep, (2.0,)


def test_loading_libraries_is_no_models_time() -> None:
    server = PlaceServer(place_of)
    limits = SandboxLimits(seconds=0.5)
    worker = readers.started(SlowToLoad(), limits, server)  # type: ignore[arg-type]
    try:
        assert worker.limits == limits
    finally:
        worker.close()
