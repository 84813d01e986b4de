"""Keys made elsewhere: read from .npy, .npz and checkpoints, never evaluated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from neuralmark.core.key import watermark
from neuralmark.errors import KeyFileError, NeuralMarkError, ParameterError
from neuralmark.marking.matrices import import_key

MATRIX = np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32)


def imported(path: Path, **arrays: Any) -> Any:
    np.savez(path, **arrays)
    return import_key(path, rounds=1)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(12, 8), (96, 1), (2, 48)])
def test_a_matrix_in_a_file_of_numpy(tmp_path: Path, order: Any, shape: tuple[int, int]) -> None:
    matrix = np.array(MATRIX.reshape(shape), order=order)
    np.save(tmp_path / "k.npy", matrix)
    key = import_key(tmp_path / "k.npy", rounds=3, pooling="contiguous")
    assert key.kind == "raw"
    assert key.matrix is not None
    assert np.array_equal(key.matrix, matrix)
    assert key.content == b""
    chosen = (key.parameters.bits, key.parameters.pools, key.parameters.rounds)
    assert chosen == (shape[1], shape[0], 3)
    assert key.parameters.pooling == "contiguous"


@pytest.mark.parametrize("wrong", [MATRIX.astype(np.float64), MATRIX[0], MATRIX.reshape(2, 6, 8)])
def test_what_is_no_matrix_of_float32_is_refused(tmp_path: Path, wrong: Any) -> None:
    np.save(tmp_path / "k.npy", wrong)
    with pytest.raises(ParameterError, match="float32 matrix"):
        import_key(tmp_path / "k.npy", rounds=1)
    with pytest.raises(ParameterError, match="float32 matrix"):
        imported(tmp_path / "k.npz", K=wrong)


@pytest.mark.parametrize("change", [b"x", -1, -4])
def test_a_file_that_is_cut_off_or_longer_is_refused(tmp_path: Path, change: bytes | int) -> None:
    np.save(tmp_path / "k.npy", MATRIX)
    data = (tmp_path / "k.npy").read_bytes()
    (tmp_path / "k.npy").write_bytes(data + change if isinstance(change, bytes) else data[:change])
    with pytest.raises(KeyFileError, match="cut off"):
        import_key(tmp_path / "k.npy", rounds=1)


def test_a_header_of_another_length_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "k.npy", MATRIX)
    data = bytearray((tmp_path / "k.npy").read_bytes())
    data[8] += 1
    (tmp_path / "k.npy").write_bytes(bytes(data))
    with pytest.raises(KeyFileError, match=r"not a \.npy file"):
        import_key(tmp_path / "k.npy", rounds=1)


def test_a_header_of_more_entries_than_a_key_has_is_refused_unread(tmp_path: Path) -> None:
    np.save(tmp_path / "k.npy", MATRIX)
    data = (tmp_path / "k.npy").read_bytes()
    huge = data.replace(b"(12, 8), }" + b" " * 12, b"(1048576, 1048576), }" + b" ")
    assert len(huge) == len(data)
    (tmp_path / "k.npy").write_bytes(huge)
    with pytest.raises(ParameterError, match="entries"):
        import_key(tmp_path / "k.npy", rounds=1)


def test_a_matrix_that_cannot_be_read_as_it_is_stored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="K cannot be read: it is in Fortran order"):
        imported(tmp_path / "k.npz", K=np.asfortranarray(MATRIX))


def test_content_and_bits_come_with_the_matrix(tmp_path: Path) -> None:
    content = np.frombuffer(b"owner", np.uint8)
    bits = watermark(MATRIX, b"owner")
    for kind in (np.uint8, np.int8, np.bool_):
        key = imported(tmp_path / "k.npz", K=MATRIX, content=content, bits=bits.astype(kind))
        assert key.content == b"owner"
    with pytest.raises(KeyFileError, match="not the hash"):
        imported(tmp_path / "k.npz", K=MATRIX, content=content, bits=1 - bits)
    with pytest.raises(ParameterError, match="one element per bit"):
        imported(tmp_path / "k.npz", K=MATRIX, content=content, bits=bits.astype(np.int32))
    assert imported(tmp_path / "k.npz", K=MATRIX).content == b""


def test_the_longest_content(tmp_path: Path) -> None:
    assert len(imported(tmp_path / "k.npz", K=MATRIX, content=np.zeros(65536, np.uint8)).content)
    with pytest.raises(ParameterError, match="65,537"):
        imported(tmp_path / "k.npz", K=MATRIX, content=np.zeros(65537, np.uint8))


def test_what_holds_no_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="named K"):
        imported(tmp_path / "k.npz", L=MATRIX)
    (tmp_path / "text").write_text("no key")
    for path in (tmp_path / "text", tmp_path / "absent", tmp_path):
        with pytest.raises(NeuralMarkError):
            import_key(path, rounds=1)


def test_rounds_have_to_be_given_and_neuralmark_has_no_settings_of_its_own(tmp_path: Path) -> None:
    np.save(tmp_path / "k.npy", MATRIX)
    with pytest.raises(ParameterError, match="give the rounds"):
        import_key(tmp_path / "k.npy")
    with pytest.raises(ParameterError, match="has no setting 'a'"):
        import_key(tmp_path / "k.npy", rounds=1, own={"b": 1, "a": 2})
    assert import_key(tmp_path / "k.npy", rounds=1, own={}).parameters.scheme == "neuralmark"


def test_other_schemes_take_any_bits_and_the_pools_of_a_filter(tmp_path: Path) -> None:
    bits = np.array([0, 1, 1, 1, 0, 1, 0, 0], np.uint8)
    np.savez(tmp_path / "k.npz", K=MATRIX, bits=bits)
    plain = import_key(tmp_path / "k.npz", scheme="vanillamark")
    assert (plain.parameters.pools, plain.parameters.rounds, plain.parameters.bits) == (0, 0, 8)
    same = import_key(tmp_path / "k.npz", scheme="vanillamark", filter="none")
    assert same.parameters == plain.parameters
    placement = (("a.weight", (3, 4)),)
    assert plain.at(placement).bits.tolist() == bits.tolist()
    filtered = import_key(tmp_path / "k.npz", scheme="vanillamark", filter="stream", rounds=2)
    assert (filtered.parameters.pools, filtered.parameters.rounds) == (12, 2)
    assert filtered.parameters.filter == "stream"


def test_positions_come_with_the_matrix(tmp_path: Path) -> None:
    chosen = np.arange(24, dtype=np.int64)[::-1].copy()

    def made(positions: Any) -> Any:
        np.savez(tmp_path / "k.npz", K=MATRIX, positions=positions)
        return import_key(tmp_path / "k.npz", scheme="vanillamark", filter="private", rounds=1)

    assert made(chosen).more["filter"].tolist() == chosen.tolist()
    with pytest.raises(ParameterError, match="positions must be int64"):
        made(chosen.astype(np.int32))


def test_a_million_bits_are_too_many(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="bits has 1,048,577 bytes, over 1,048,576"):
        imported(tmp_path / "k.npz", K=MATRIX, bits=np.zeros((1 << 20) + 1, np.uint8))


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_a_matrix_of_more_than_two_megabytes_is_read_in_pieces(tmp_path: Path, ending: str) -> None:
    matrix = np.random.default_rng(1).standard_normal((8192, 80)).astype(np.float32)
    path = tmp_path / f"k.{ending}"
    if ending == "npz":
        np.savez(path, K=matrix)
    else:
        save_file({"K": matrix}, path)
    assert np.array_equal(import_key(path, rounds=1).matrix, matrix)  # type: ignore[arg-type]
