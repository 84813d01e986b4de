"""Where embed must not or cannot write: named errors, no partial output, the input untouched."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.checks import content_of
from tests.support.commands import (
    PYTHON,
    Result,
    call,
    clean_environment,
    command_line,
    limited,
    run,
)
from tests.support.models import gaussian_model, plain_key, sharded_model

# Root without CAP_DAC_OVERRIDE (1) and CAP_DAC_READ_SEARCH (2) is refused like anybody else.
_OBEY_MODES = (
    "import ctypes, os, sys; [ctypes.CDLL(None).prctl(24, n, 0, 0, 0) for n in (1, 2)];"
    " os.execv(sys.argv[1], sys.argv[1:])"
)


def obeying(*args: object) -> Result:
    """Run where modes matter, whoever we are."""
    done = subprocess.run(
        [PYTHON, "-c", _OBEY_MODES, *command_line(*args)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def test_output_equal_to_input(model: Path, key: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.safetensors"
    link.symlink_to(model)
    hard = tmp_path / "hard.safetensors"
    hard.hardlink_to(model)
    before = content_of(tmp_path)
    for out in (model, link, hard, tmp_path / "." / model.name):
        for options in ((), ("--force",)):
            result = call("embed", model, "--key", key, "-o", out, *options)
            assert "--in-place" in result.failed(2, "OutputError")
    assert content_of(tmp_path) == before


def test_output_inside_or_around_the_input(key: Path, tmp_path: Path) -> None:
    around = tmp_path / "models"
    around.mkdir()
    folder = sharded_model(around / "model")
    before = content_of(tmp_path)
    for out in (folder / "out", folder / "model-00001-of-00002.safetensors", around, tmp_path):
        result = call("embed", folder, "--key", key, "-o", out, "--force")
        assert "outside" in result.failed(2, "OutputError")
    single = folder / "model-00001-of-00002.safetensors"
    for out in (folder, around, Path("/")):
        result = call("embed", single, "--key", key, "-o", out, "--force")
        assert "folder" in result.failed(2, "OutputError")
    assert content_of(tmp_path) == before


def test_a_folder_is_never_replaced_by_a_file(model: Path, key: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    taken = tmp_path / "out.safetensors.claim.json"
    taken.mkdir()
    before = content_of(tmp_path)
    for command in (
        ("embed", model, "--key", key, "-o", precious, "--force"),
        ("embed", model, "--key", key, "-o", tmp_path / "out.safetensors"),
        ("embed", model, "--key", key, "-o", tmp_path / "out.safetensors", "--force"),
    ):
        call(*command).failed(2, "OutputError")
        assert content_of(tmp_path) == before
    out = tmp_path / "m.safetensors"
    assert call("embed", model, "--key", key, "-o", out).code == 0
    before = content_of(tmp_path)
    call("verify", out, "--key", key, "--report", precious).failed(2, "OutputError")
    call("claim", out, "--key", key, "-o", precious, "--force").failed(2, "OutputError")
    assert content_of(tmp_path) == before


@pytest.mark.parametrize("where", ["no/out.safetensors", "file/out.safetensors", "x" * 250])
def test_places_that_are_not_there(model: Path, key: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    before = content_of(tmp_path)
    call("embed", model, "--key", key, "-o", tmp_path / where).failed(2, "OutputError")
    assert content_of(tmp_path) == before


def test_a_name_that_no_disk_takes(model: Path, key: Path, tmp_path: Path) -> None:
    call("embed", model, "--key", key, "-o", tmp_path / ("x" * 300)).failed(2, "OutputError")


def test_kernel_folder(model: Path, key: Path) -> None:
    before = model.read_bytes()
    result = call("embed", model, "--key", key, "-o", "/proc/out.safetensors")
    assert result.code == 2 or result.failed(3, "InputError"), result
    assert "Traceback" not in result.err
    assert model.read_bytes() == before


def test_read_only_folder(key: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    model = gaussian_model(folder / "m.safetensors")
    before = content_of(tmp_path)
    folder.chmod(0o555)
    for options in (("-o", folder / "out.safetensors"), ("--in-place",)):
        result = obeying("embed", model, "--key", key, *options)
        assert "cannot be written" in result.failed(2, "OutputError")
        assert content_of(tmp_path) == before
    folder.chmod(0o755)


def test_read_only_file_leaves_no_journal(key: Path, tmp_path: Path) -> None:
    folder = sharded_model(tmp_path / "model")
    before = content_of(tmp_path)
    (folder / "model-00002-of-00002.safetensors").chmod(0o444)
    result = obeying("embed", folder, "--key", key, "--in-place")
    assert "cannot be written" in result.failed(2, "OutputError")
    assert content_of(tmp_path) == before


def test_unreadable_inputs(model: Path, key: Path) -> None:
    model.chmod(0)
    obeying("verify", model, "--key", key).failed(3, "CheckpointError")
    obeying("inspect", model).failed(3, "CheckpointError")
    key.chmod(0)
    obeying("verify", model, "--key", key).failed(3, "KeyFileError")


def test_links_are_not_changed_in_place(model: Path, key: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.safetensors"
    link.symlink_to(model)
    before = content_of(tmp_path)
    assert "use -o" in call("embed", link, "--key", key, "--in-place").failed(2, "OutputError")
    assert content_of(tmp_path) == before
    assert call("embed", link, "--key", key, "-o", tmp_path / "out.safetensors").code == 0


@pytest.mark.parametrize("limit", [0, 100, 4096, 100_000])
def test_full_disk(model: Path, key: Path, tmp_path: Path, limit: int) -> None:
    before = content_of(tmp_path)
    for options in (("-o", tmp_path / "out.safetensors"), ("--in-place",)):
        result = limited(limit, "embed", model, "--key", key, *options)
        assert "no space left" in result.failed(2, "OutputError")
        assert content_of(tmp_path) == before


def test_full_disk_for_a_folder_and_a_key(key: Path, tmp_path: Path) -> None:
    folder = sharded_model(tmp_path / "model")
    before = content_of(tmp_path)
    for options in (("-o", tmp_path / "out"), ("--in-place",)):
        limited(4096, "embed", folder, "--key", key, *options).failed(2, "OutputError")
        assert content_of(tmp_path) == before
    result = limited(16, "key", "new", tmp_path / "a.nmkey", "--no-passphrase")
    result.failed(2, "OutputError")
    assert content_of(tmp_path) == before
    assert not (tmp_path / "out").exists()


def test_disk_really_full(tmp_path: Path) -> None:
    """On a mounted disk of 160 KB, where mounting is allowed; else the limits above stand alone."""
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)]
    mount = shutil.which("mount")
    if mount is None or subprocess.run(words, capture_output=True, check=False).returncode:
        return
    try:
        model, key = gaussian_model(disk / "m.safetensors"), plain_key(tmp_path / "k.nmkey")
        before = content_of(disk)
        for options in (("-o", disk / "out.safetensors"), ("--in-place",)):
            result = run("embed", model, "--key", key, *options)
            assert "no space left" in result.failed(2, "OutputError")
            assert content_of(disk) == before
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_claims_of_others_are_kept(model: Path, key: Path, tmp_path: Path) -> None:
    other = plain_key(tmp_path / "other.nmkey")
    out = tmp_path / "out.safetensors"
    call("embed", model, "--key", other, "-o", out)
    out.unlink()
    before = content_of(tmp_path)
    told = call("embed", model, "--key", key, "-o", out, "--json").json
    assert told["claim_file"] != f"{out}.claim.json"
    after = content_of(tmp_path)
    assert {name: after[name] for name in before} == before


def test_report_never_replaces_an_input(marked: Path, key: Path, tmp_path: Path) -> None:
    claim = Path(f"{marked}.claim.json")
    before = content_of(tmp_path)
    for report in (marked, key, claim):
        result = call("verify", marked, "--key", key, "--claim", claim, "--report", report)
        result.failed(2, "OutputError")
    assert content_of(tmp_path) == before
