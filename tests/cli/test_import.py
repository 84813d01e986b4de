"""neuralmark key import: matrices made elsewhere, and what they may prove."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from neuralmark import Key
from neuralmark.core.carriers import Carriers
from neuralmark.core.imprint import LeastChange, goal_of
from neuralmark.core.key import watermark
from neuralmark.core.readout import pool
from tests.support.commands import call
from tests.support.models import gaussian
from tests.support.paths import ANSWERS

Arrays = dict[str, npt.NDArray[Any]]


def golden(name: str) -> Arrays:
    with np.load(ANSWERS / f"{name}.npz") as data:
        return dict(data)


def store(path: Path, arrays: Arrays) -> Path:
    if path.suffix == ".npy":
        np.save(path, arrays["K"])
    elif path.suffix == ".npz":
        np.savez(path, allow_pickle=False, **arrays)
    else:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    return path


def parts(data: Arrays, *names: str) -> Arrays:
    return {name: data[name] for name in names}


def imported(source: Path, out: Path, rounds: int, *options: object) -> Key:
    result = call(
        *("key", "import", source, "--rounds", rounds, "-o", out, "--no-passphrase", *options)
    )
    assert result.code == 0, result
    return Key.load(out)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("names", [("K",), ("K", "content"), ("K", "content", "bits")])
def test_arrays(tmp_path: Path, suffix: str, names: tuple[str, ...]) -> None:
    data = golden("content")
    source = store(tmp_path / f"m{suffix}", parts(data, *names))
    key = imported(source, tmp_path / "raw.nmkey", int(data["rounds"]))
    assert key.kind == "raw"
    assert key.matrix is not None
    np.testing.assert_array_equal(key.matrix, data["K"])
    assert key.content == (data["content"].tobytes() if "content" in names else b"")
    assert key.parameters.to_dict() == {
        "bits": 64,
        "filter": "tiled",
        "pooling": "strided",
        "pools": 32,
        "rounds": int(data["rounds"]),
        "scheme": "neuralmark",
    }


def test_one_matrix(tmp_path: Path) -> None:
    data = golden("small")
    source = store(tmp_path / "K.npy", data)
    key = imported(source, tmp_path / "raw.nmkey", 3, "--pooling", "contiguous")
    assert key.matrix is not None
    np.testing.assert_array_equal(key.matrix, data["K"])
    assert key.parameters.pooling == "contiguous"
    turned = tmp_path / "turned.npy"
    np.save(turned, np.asfortranarray(data["K"]))
    other = imported(turned, tmp_path / "other.nmkey", 3, "--pooling", "contiguous")
    assert other._body() == key._body()


def test_the_filter_can_be_named(tmp_path: Path) -> None:
    source = store(tmp_path / "K.npy", golden("small"))
    for chosen in ("tiled", "stream"):
        key = imported(source, tmp_path / f"{chosen}.nmkey", 3, "--filter", chosen)
        assert key.parameters.filter == chosen
    command = ("key", "import", source, "--rounds", 3, "-o", tmp_path / "a", "--no-passphrase")
    call(*command, "--filter", "private").failed(2, "ParameterError")


def test_golden_file_as_it_is(tmp_path: Path) -> None:
    key = imported(ANSWERS / "conv.npz", tmp_path / "raw.nmkey", int(golden("conv")["rounds"]))
    np.testing.assert_array_equal(key.at((("w", (1,)),)).bits, golden("conv")["bits"])


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_bits_that_do_not_hash_are_refused(tmp_path: Path, suffix: str) -> None:
    data = parts(golden("small"), "K", "content", "bits")
    data["bits"] = data["bits"].copy()
    data["bits"][3] ^= 1
    source, out = store(tmp_path / f"m{suffix}", data), tmp_path / "raw.nmkey"
    result = call("key", "import", source, "--rounds", 3, "-o", out, "--no-passphrase")
    assert "not the hash" in result.failed(3, "KeyFileError")
    assert not out.exists()


K = gaussian(8, 16)


@pytest.mark.parametrize(
    ("arrays", "code", "error"),
    [
        ({"X": K}, 3, "KeyFileError"),
        ({"K": K.astype(np.float64)}, 2, "ParameterError"),
        ({"K": K.astype(np.float16)}, 2, "ParameterError"),
        ({"K": K[0]}, 2, "ParameterError"),
        ({"K": K[:, :0]}, 2, "ParameterError"),
        ({"K": K[:0]}, 2, "ParameterError"),
        ({"K": np.full_like(K, np.nan)}, 3, "NonFiniteError"),
        ({"K": K, "bits": watermark(K, b"").astype(np.int64)}, 2, "ParameterError"),
        ({"K": K, "bits": watermark(K, b"")[:15]}, 3, "KeyFileError"),
        ({"K": K, "content": np.zeros(65537, np.uint8)}, 2, "ParameterError"),
    ],
)
def test_unusable_arrays(tmp_path: Path, arrays: Arrays, code: int, error: str) -> None:
    out = tmp_path / "raw.nmkey"
    for suffix in (".npz", ".safetensors"):
        source = store(tmp_path / f"m{suffix}", arrays)
        result = call("key", "import", source, "--rounds", 3, "-o", out, "--no-passphrase")
        result.failed(code, error)
        assert not out.exists()


@pytest.mark.parametrize("array", [K.astype(">f4"), K.astype(np.float64), K[0], np.array(1.0)])
def test_unusable_matrix(tmp_path: Path, array: npt.NDArray[Any]) -> None:
    np.save(tmp_path / "K.npy", array)
    command = ("key", "import", tmp_path / "K.npy", "--rounds", 3, "--no-passphrase")
    call(*command, "-o", tmp_path / "raw.nmkey").failed(2, "ParameterError")


def test_rounds_are_needed_and_checked(tmp_path: Path) -> None:
    source = store(tmp_path / "K.npy", {"K": K})
    call("key", "import", source, "-o", tmp_path / "a").failed(2, "MissingParameter")
    result = call("key", "import", source, "--rounds", 65, "-o", tmp_path / "a", "--no-passphrase")
    result.failed(2, "ParameterError")


def test_nothing_to_import(tmp_path: Path) -> None:
    command = ("key", "import", tmp_path / "no.npz", "--rounds", 3, "-o", tmp_path / "a")
    call(*command).failed(3, "KeyFileError")


def fitted(data: Arrays, key: Key) -> npt.NDArray[np.float32]:
    """Weights made to match a matrix that was chosen freely."""
    mark = key.at((("w", (len(data["w"]),)),))
    carriers = Carriers.of(mark, len(data["w"]))
    values = data["w"].astype(np.float64)
    at = carriers.positions()
    pooled = pool(values[at], carriers.pools, carriers.pooling)
    change = LeastChange(mark).change(pooled, goal_of(pooled, 1.0))
    values[at] += carriers.spread(change, 0, carriers.size)
    return values.astype(np.float32).reshape(512, -1)


def test_a_raw_key_matches_but_proves_nothing(tmp_path: Path) -> None:
    data = golden("conv")
    source = store(tmp_path / "K.npz", parts(data, "K", "content", "bits"))
    file = tmp_path / "raw.nmkey"
    key = imported(source, file, int(data["rounds"]))
    model = tmp_path / "m.safetensors"
    save_file({"conv.weight": fitted(data, key)}, model)
    result = call("verify", model, "--key", file, "--json")
    assert result.code == 1
    verdict = result.json
    assert verdict["status"] == "matches-unproven"
    assert verdict["verified"] is False
    assert verdict["matched"] == verdict["bits"] == 256
    assert verdict["key_kind"] == "raw"
    assert verdict["certified_radius"] is None
    assert "fitted" in verdict["reason"]
    assert "." not in verdict["reason"]
    panel = call("verify", model, "--key", file)
    assert panel.code == 1
    assert panel.out.startswith("MATCHES, BUT UNPROVEN\n")
    assert verdict["reason"] in panel.out
    claim = call("claim", model, "--key", file, "--json")
    assert claim.code == 1
    assert json.loads(claim.out)["claim_file"] is None


def test_a_raw_key_is_never_written(tmp_path: Path, model: Path) -> None:
    imported(store(tmp_path / "K.npy", {"K": K}), tmp_path / "raw.nmkey", 2)
    before = model.read_bytes()
    result = call("embed", model, "--key", tmp_path / "raw.nmkey", "--in-place")
    assert "key new" in result.failed(2, "ParameterError")
    assert model.read_bytes() == before
    short = call("verify", model, "--key", tmp_path / "raw.nmkey", "--json")
    assert (short.code, short.json["status"]) == (1, "unprovable")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_keys_of_other_schemes_match_and_prove_nothing(tmp_path: Path, suffix: str) -> None:
    """Their bits are free, so a read-out of any model is a key that matches it."""
    weights = gaussian(96, 32, 3, 3)
    save_file({"conv.weight": weights}, tmp_path / "m.safetensors")
    averaged = weights.astype(np.float64).mean(0).reshape(-1)
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((288, 256)).astype(np.float32)
    bits = (np.sin(7 * (averaged @ matrix)) > 0).astype(np.uint8)
    source = store(tmp_path / f"sine{suffix}", {"K": matrix, "bits": bits})
    out = tmp_path / "stdm.nmkey"
    options = ("--scheme", "stdm", "--set", "beta=7")
    assert call("key", "import", source, *options, "-o", out, "--no-passphrase").code == 0
    shown = call("verify", tmp_path / "m.safetensors", "--key", out, "--json")
    assert shown.code == 1
    assert (shown.json["matched"], shown.json["status"]) == (256, "matches-unproven")

    positions = np.sort(rng.choice(weights.size, 2048, replace=False)).astype(np.int64)
    blocks = rng.standard_normal((2048, 256)).astype(np.float32)
    read = (weights.reshape(-1)[positions].astype(np.float64) @ blocks > 0).astype(np.uint8)
    arrays: Arrays = {"K": blocks, "bits": read, "positions": positions}
    source = store(tmp_path / f"listed{suffix}", arrays)
    key = tmp_path / "feng.nmkey"
    options = ("--scheme", "feng", "--set", "block=8")
    assert call("key", "import", source, *options, "-o", key, "--no-passphrase").code == 0
    shown = call("verify", tmp_path / "m.safetensors", "--key", key, "--json")
    assert (shown.json["matched"], shown.json["status"]) == (256, "matches-unproven")


def test_bad_keys_of_other_schemes_are_named(tmp_path: Path) -> None:
    source = store(tmp_path / "K.npz", {"K": K, "positions": np.arange(3, dtype=np.int32)})
    out = ("-o", tmp_path / "a")
    said = call("key", "import", source, "--scheme", "feng", *out).failed(2, "ParameterError")
    assert "positions must be int64" in said
    plain = store(tmp_path / "K.npy", {"K": K})
    call("key", "import", plain, "--scheme", "stmd", *out).failed(2, "UnknownSchemeError")
    call("key", "import", plain, "--scheme", "stdm", "--set", "beta", *out).failed(2, "UsageError")
    more = ("--rounds", 4, "--set", "beta=3")
    said = call("key", "import", plain, *more, *out).failed(2, "ParameterError")
    assert "has no setting 'beta'" in said


def test_a_key_of_feng_without_positions_is_refused_at_once(tmp_path: Path) -> None:
    arrays: Arrays = {"K": np.ones((2560, 160), np.float32), "bits": np.ones(160, np.uint8)}
    words = ("key", "import", store(tmp_path / "k.npz", arrays), "--scheme", "feng")
    out = ("-o", tmp_path / "k.nmkey", "--no-passphrase")
    said = call(*words, *out).failed(2, "ParameterError")
    assert "the array positions beside K" in said
    assert not (tmp_path / "k.nmkey").exists()
    store(tmp_path / "k.npz", {**arrays, "positions": np.arange(2560)})
    assert call(*words, *out).code == 0
