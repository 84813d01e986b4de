"""Several files that belong together get their names together, or not at all."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from neuralmark.errors import OutputError
from neuralmark.storage import files
from tests.support.checks import content_of

NAMES = ("a.anchor", "a.claim", "a.bin")


def write_all(folder: Path, text: str = "new", *, overwrite: bool = False) -> None:
    outs = {folder / name: overwrite for name in NAMES}
    with files.replacing_together(outs) as temporaries:
        for temporary in temporaries:
            temporary.write_text(text)


def old_ones(folder: Path) -> dict[str, bytes]:
    for name in NAMES:
        (folder / name).write_text("old")
    return content_of(folder)


def test_all_get_their_names(tmp_path: Path) -> None:
    write_all(tmp_path)
    assert content_of(tmp_path) == dict.fromkeys(NAMES, b"new")
    write_all(tmp_path, "newer", overwrite=True)
    assert content_of(tmp_path) == dict.fromkeys(NAMES, b"newer")


def test_one_that_is_there_keeps_all_away(tmp_path: Path) -> None:
    (tmp_path / "a.claim").write_text("old")
    with pytest.raises(OutputError, match="overwrite=True"):
        write_all(tmp_path)
    assert content_of(tmp_path) == {"a.claim": b"old"}


def test_a_failure_inside_leaves_what_was_there(tmp_path: Path) -> None:
    before = old_ones(tmp_path)
    outs = {tmp_path / name: True for name in NAMES}
    with pytest.raises(ZeroDivisionError), files.replacing_together(outs) as temporaries:
        temporaries[0].write_text(f"new {1 / 0}")
    assert content_of(tmp_path) == before


def failing(nth: int, original: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
    count = 0

    def replace(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == nth:
            raise OSError(errno.EACCES, "not now")
        return original(self, target)

    return replace


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("fresh", [True, False])
def test_a_name_that_cannot_be_given_takes_the_others_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int, fresh: bool
) -> None:
    before = {} if fresh else old_ones(tmp_path)
    monkeypatch.setattr(Path, "replace", failing(nth, Path.replace))
    with pytest.raises(OutputError):
        write_all(tmp_path, overwrite=True)
    assert content_of(tmp_path) == before


def test_a_folder_is_put_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "w").write_text("old")
    outs = {folder: True, tmp_path / "model.claim": True}

    def write(text: str) -> None:
        with files.replacing_together(outs) as (new, claim):
            new.mkdir()
            (new / "w").write_text(text)
            claim.write_text(text)

    write("new")
    after = {"model/w": b"new", "model.claim": b"new"}
    assert content_of(tmp_path) == after
    # moving the old one aside and the new one in are two steps; the claim's name is the third
    monkeypatch.setattr(Path, "replace", failing(3, Path.replace))
    with pytest.raises(OutputError):
        write("newer")
    assert content_of(tmp_path) == after


def test_where_files_have_one_name_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    old_ones(tmp_path)
    monkeypatch.setattr(os, "link", refuse)
    write_all(tmp_path, overwrite=True)
    assert content_of(tmp_path) == dict.fromkeys(NAMES, b"new")


@pytest.mark.parametrize("steps", range(3))
def test_killed_between_two_names_those_that_come_first_are_there(
    tmp_path: Path, steps: int
) -> None:
    """The model comes last: it never lies there without its anchor and its claim."""
    child = os.fork()
    if child == 0:
        original, left = Path.replace, [steps]

        def replace(self: Path, target: Path) -> Path:
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return original(self, target)

        Path.replace = replace  # type: ignore[method-assign, assignment]
        write_all(tmp_path)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    there = [name for name in NAMES if (tmp_path / name).exists()]
    assert there == list(NAMES[:steps])
    write_all(tmp_path, "again", overwrite=True)
    assert {name: (tmp_path / name).read_bytes() for name in NAMES} == dict.fromkeys(
        NAMES, b"again"
    )
