"""neuralmark key new, show, fingerprint and passphrase."""

import stat
from pathlib import Path

import pytest

from neuralmark import Key
from neuralmark.keys.sealing import is_encrypted
from tests.support.commands import VARIABLE, call, on_terminal, run
from tests.support.models import gaussian_model

WORD = {VARIABLE: "correct horse"}
VANILLA = ("--scheme", "vanillamark")


def new(file: Path, *options: object, passphrase: str = "correct horse") -> Path:
    result = call("key", "new", file, *options, env={VARIABLE: passphrase})
    assert result.code == 0, result
    return file


def test_new_key_is_encrypted_and_private(tmp_path: Path) -> None:
    file = new(tmp_path / "a.nmkey")
    assert is_encrypted(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    key = Key.load(file, "correct horse")
    assert key.parameters.to_dict() == {
        "bits": 256,
        "filter": "stream",
        "pooling": "strided",
        "pools": 512,
        "rounds": 1,
        "scheme": "neuralmark",
    }
    assert key.secret is not None
    assert key.secret.hex() not in file.read_text()


def test_two_keys_differ(tmp_path: Path) -> None:
    first = Key.load(new(tmp_path / "a.nmkey", "--no-passphrase"))
    second = Key.load(new(tmp_path / "b.nmkey", "--no-passphrase"))
    assert first.secret != second.secret
    assert first.fingerprint != second.fingerprint


def test_parameters_owner_and_content(tmp_path: Path) -> None:
    options = ("--owner", "Ümlaut & Co", "--content", "two\nlines", "--bits", 200)
    file = new(tmp_path / "a.nmkey", *options, "--pools", 300, "--rounds", 2)
    key = Key.load(file, "correct horse")
    assert (key.parameters.bits, key.parameters.pools, key.parameters.rounds) == (200, 300, 2)
    assert key.content.decode() == "owner=Ümlaut & Co\ntwo\nlines"
    shown = call("key", "show", file, env=WORD)
    assert "owner=Ümlaut & Co | two | lines" in shown.out


def test_the_published_filter_has_the_published_rounds(tmp_path: Path) -> None:
    file = new(tmp_path / "a.nmkey", "--filter", "tiled")
    parameters = Key.load(file, "correct horse").parameters
    assert (parameters.filter, parameters.rounds) == ("tiled", 4)
    assert "4 rounds, tiled filter" in call("key", "show", file, env=WORD).out
    other = new(tmp_path / "b.nmkey", "--filter", "tiled", "--rounds", 2)
    assert Key.load(other, "correct horse").parameters.rounds == 2
    plain = call("key", "show", new(tmp_path / "c.nmkey"), env=WORD).out
    assert "1 round, stream filter" in plain


def test_whole_numbers_and_rounds_are_asked_for_alike(tmp_path: Path) -> None:
    command = ("key", "new", tmp_path / "a.nmkey", "--no-passphrase", "--scheme")
    for scheme, setting in (("deepipr", "version=2.0"), ("feng", "block=16.0")):
        said = call(*command, scheme, "--set", setting).failed(2, "ParameterError")
        assert f"{setting.partition('=')[0]} must be a whole number" in said
    none = call(*command, "deepipr", "--filter", "stream", "--rounds", 0)
    assert "rounds must be at least 1 with the filter stream" in none.failed(2, "ParameterError")
    assert not (tmp_path / "a.nmkey").exists()


def test_filters_belong_to_schemes(tmp_path: Path) -> None:
    for chosen in ("private", "none"):
        command = ("key", "new", tmp_path / "a.nmkey", "--filter", chosen, "--no-passphrase")
        assert "stream or tiled" in call(*command).failed(2, "ParameterError")
        file = tmp_path / f"{chosen}.nmkey"
        result = call(*("key", "new", file, "--filter", chosen, "--no-passphrase"), *VANILLA)
        assert result.code == 0, result
        assert Key.load(file).parameters.filter == chosen
    call("key", "new", tmp_path / "a.nmkey", "--filter", "hashed").failed(2, "BadParameter")
    assert not (tmp_path / "a.nmkey").exists()


def test_the_help_names_the_filters_and_their_rounds() -> None:
    text = " ".join(call("key", "new", "--help").out.split())
    assert "--filter [stream|tiled|private|none]" in text
    assert "default 1; tiled: 4" in text
    imported = " ".join(call("key", "import", "--help").out.split())
    assert "--filter [tiled|stream|private|none]" in imported
    assert "default: tiled, or as is usual for the scheme" in imported


def test_pools_follow_the_bits(tmp_path: Path) -> None:
    key = Key.load(new(tmp_path / "a.nmkey", "--bits", 400), "correct horse")
    assert key.parameters.pools == 800


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--bits", 0), "bits"),
        (("--bits", 65537), "bits"),
        (("--bits", 65536, "--pools", 65536), "bits x pools"),
        (("--pools", -1), "pools"),
        (("--rounds", 65), "rounds"),
        (("--rounds", 0), "rounds"),
        (("--content", "x" * 65537), "content"),
        (("--owner", "two\nlines"), "owner"),
        (("--owner", "\udcff"), "Unicode"),
        (("--content", "\udcff"), "Unicode"),
    ],
)
def test_parameters_out_of_range(tmp_path: Path, options: tuple[object, ...], word: str) -> None:
    file = tmp_path / "a.nmkey"
    result = call("key", "new", file, "--no-passphrase", *options)
    assert word in result.failed(2, "ParameterError")
    assert not file.exists()


def test_no_passphrase_says_so(tmp_path: Path) -> None:
    file = tmp_path / "a.nmkey"
    result = call("key", "new", file, "--no-passphrase")
    assert result.code == 0
    assert "without a passphrase" in result.err
    assert not is_encrypted(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_never_overwrites(tmp_path: Path) -> None:
    file = new(tmp_path / "a.nmkey")
    before = file.read_bytes()
    for command in (("new", file), ("import", tmp_path / "K.npy", "--rounds", 1, "-o", file)):
        result = call("key", *command, "--no-passphrase")
        assert "never overwritten" in result.failed(2, "OutputError")
    assert file.read_bytes() == before


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    result = call("key", "new", tmp_path / "no" / "a.nmkey", "--no-passphrase")
    assert "create it first" in result.failed(2, "OutputError")


def test_name_that_is_too_long(tmp_path: Path) -> None:
    result = call("key", "new", tmp_path / ("a" * 254), "--no-passphrase")
    result.failed(2, "OutputError")
    assert list(tmp_path.iterdir()) == []


def test_json(tmp_path: Path) -> None:
    file = tmp_path / "a.nmkey"
    made = call("key", "new", file, "--owner", "Acme", "--json", env=WORD).json
    assert made["file"] == str(file)
    assert made["kind"] == "native"
    assert made["content"] == "owner=Acme"
    shown = call("key", "show", file, "--json", env=WORD)
    assert shown.json == made
    public = call("key", "fingerprint", file, "--json").json
    assert public == {name: made[name] for name in ("fingerprint", "commitment")}
    key = Key.load(file, "correct horse")
    assert key.secret is not None
    assert key.secret.hex() not in shown.out


def test_fingerprint_needs_no_passphrase(tmp_path: Path) -> None:
    file = new(tmp_path / "a.nmkey")
    key = Key.load(file, "correct horse")
    assert call("key", "fingerprint", file).out == f"{key.fingerprint}\n"


def test_for_explains_its_choice(tmp_path: Path) -> None:
    model = gaussian_model(tmp_path / "m.safetensors", rows=512)
    file = tmp_path / "a.nmkey"
    result = call("key", "new", file, "--for", model, "--no-passphrase")
    assert result.code == 0
    assert "256 bits, 512 pools, 1 round on wide" in result.err
    assert "weights" in result.err
    assert Key.load(file).parameters.rounds == 1
    told = call("key", "new", tmp_path / "b.nmkey", "--for", model, "--no-passphrase", "--json")
    assert "1 round on wide" in told.json["why"]


def test_for_takes_rounds_off_the_published_filter(tmp_path: Path) -> None:
    model = gaussian_model(tmp_path / "m.safetensors", rows=512)
    command = ("key", "new", tmp_path / "a.nmkey", "--for", model, "--filter", "tiled")
    told = call(*command, "--no-passphrase", "--json").json
    assert "3 rounds" in told["why"]
    parameters = Key.load(tmp_path / "a.nmkey").parameters
    assert (parameters.filter, parameters.rounds) == ("tiled", 3)


def test_for_takes_pools_and_bits_off_for_a_small_model(tmp_path: Path) -> None:
    model = gaussian_model(tmp_path / "m.safetensors", rows=64)
    result = call("key", "new", tmp_path / "a.nmkey", "--for", model, "--no-passphrase")
    assert result.code == 0, result
    parameters = Key.load(tmp_path / "a.nmkey").parameters
    assert (parameters.bits, parameters.pools, parameters.rounds) == (256, 512, 1)
    smaller = gaussian_model(tmp_path / "n.safetensors", rows=8)
    result = call("key", "new", tmp_path / "b.nmkey", "--for", smaller, "--no-passphrase")
    assert result.code == 0, result
    parameters = Key.load(tmp_path / "b.nmkey").parameters
    assert (parameters.bits, parameters.pools, parameters.rounds) == (256, 320, 1)


def test_for_a_model_that_is_too_small(tmp_path: Path) -> None:
    model = gaussian_model(tmp_path / "m.safetensors", rows=8)
    file = tmp_path / "a.nmkey"
    result = call("key", "new", file, "--for", model, "--pools", 4096, "--no-passphrase")
    assert "only a larger model" in result.failed(2, "TooFewCarriersError")
    assert not file.exists()


def test_wrong_and_missing_passphrase(tmp_path: Path) -> None:
    file = new(tmp_path / "a.nmkey")
    call("key", "show", file, env={VARIABLE: "wrong"}).failed(3, "WrongPassphraseError")
    missing = call("key", "show", file).failed(2, "PassphraseError")
    assert VARIABLE in missing
    assert "--passphrase-file" in missing


def test_passphrase_file(tmp_path: Path) -> None:
    word = tmp_path / "word"
    word.write_text("first line\nsecond line\n")
    file = tmp_path / "a.nmkey"
    assert call("key", "new", file, "--passphrase-file", word).code == 0
    Key.load(file, "first line")
    # the file goes before the variable
    shown = call("key", "show", file, "--passphrase-file", word, env={VARIABLE: "wrong"})
    assert shown.code == 0


@pytest.mark.parametrize("content", [b"", b"\nsecond\n", b"\xff\xfe\n", None])
def test_bad_passphrase_file(tmp_path: Path, content: bytes | None) -> None:
    word = tmp_path / "word"
    if content is not None:
        word.write_bytes(content)
    result = call("key", "new", tmp_path / "a.nmkey", "--passphrase-file", word)
    result.failed(2, "PassphraseError")
    assert not (tmp_path / "a.nmkey").exists()


def test_passphrase_that_is_not_text(tmp_path: Path) -> None:
    result = call("key", "new", tmp_path / "a.nmkey", env={VARIABLE: "\udcff"})
    assert "Unicode" in result.failed(2, "PassphraseError")


def test_unicode_forms_of_a_passphrase_are_one(tmp_path: Path) -> None:
    file = new(tmp_path / "a.nmkey", passphrase="caf\u00e9")
    assert call("key", "show", file, env={VARIABLE: "cafe\u0301"}).code == 0


def test_passphrase_changes(tmp_path: Path) -> None:
    file, word = new(tmp_path / "a.nmkey"), tmp_path / "word"
    word.write_text("another\n")
    before = Key.load(file, "correct horse")
    changed = call("key", "passphrase", file, "--new-passphrase-file", word, "--json", env=WORD)
    assert changed.json["fingerprint"] == before.fingerprint
    call("key", "show", file, env=WORD).failed(3, "WrongPassphraseError")
    after = Key.load(file, "another")
    assert (after.secret, after.salt) == (before.secret, before.salt)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    plain = call("key", "passphrase", file, "--no-passphrase", "--passphrase-file", word)
    assert "without a passphrase" in plain.err
    assert Key.load(file).secret == before.secret
    again = call("key", "passphrase", file, "--new-passphrase-file", word)
    assert again.code == 0
    assert is_encrypted(file)


def test_changing_needs_the_old_passphrase(tmp_path: Path) -> None:
    file, word = new(tmp_path / "a.nmkey"), tmp_path / "word"
    word.write_text("another\n")
    before = file.read_bytes()
    result = call("key", "passphrase", file, "--new-passphrase-file", word, env={VARIABLE: "no"})
    result.failed(3, "WrongPassphraseError")
    assert file.read_bytes() == before


def test_prompt_twice_on_a_terminal(tmp_path: Path) -> None:
    file = tmp_path / "a.nmkey"
    code, screen = on_terminal("key", "new", file, answers=["open sesame", "open sesame"])
    assert code == 0, screen
    assert "New passphrase" in screen
    assert "The same again" in screen
    assert "open sesame" not in screen
    Key.load(file, "open sesame")
    code, screen = on_terminal("key", "show", file, answers=["open sesame"])
    assert code == 0, screen
    assert f"Passphrase of {file}" in screen


def test_differing_passphrases_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.nmkey"
    code, screen = on_terminal("key", "new", file, answers=["open sesame", "open barley"])
    assert code == 2
    assert "PassphraseError" in screen
    assert "differ" in screen
    assert not file.exists()


def test_passphrase_is_changed_on_a_terminal(tmp_path: Path) -> None:
    file = new(tmp_path / "a.nmkey")
    answers = ["correct horse", "battery", "battery"]
    code, screen = on_terminal("key", "passphrase", file, answers=answers)
    assert code == 0, screen
    Key.load(file, "battery")


def test_no_terminal_no_prompt(tmp_path: Path) -> None:
    result = run("key", "new", tmp_path / "a.nmkey", text="piped\npiped\n")
    assert "no terminal" in result.failed(2, "PassphraseError")
