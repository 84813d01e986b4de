"""Triggers: which are drawn, their digest, their sealed file, and the data they come from."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from neuralmark import Key, Triggers, schemes
from neuralmark.errors import (
    CheckpointError,
    LiveModelError,
    OutputError,
    ParameterError,
    TriggerError,
    TriggerMismatchError,
)
from tests.support.models import QUICK

INPUTS = np.random.default_rng(0).standard_normal((60, 1, 4, 4)).astype(np.float32)
CLASSES = np.arange(60, dtype=np.int64) % 3


def key_of(name: str = "deepsigns", number: int = 1) -> Key:
    chosen = schemes.parameters(name, bits=240)  # 3 classes, 15 triggers
    return Key(chosen, b"", salt=bytes(32), secret=bytes([number]) * 32)


def test_the_digest_tells_every_number_and_label_apart() -> None:
    one = Triggers.of(INPUTS, CLASSES)
    changed = INPUTS.copy()
    changed[59, 0, 3, 3] = np.nextafter(changed[59, 0, 3, 3], np.float32(9))
    others = (
        Triggers.of(changed, CLASSES),
        Triggers.of(INPUTS, CLASSES[::-1]),
        Triggers.of(INPUTS[::-1], CLASSES),
        Triggers.of(INPUTS.reshape(60, 16), CLASSES),
        Triggers.of(INPUTS),
        Triggers.of(INPUTS[:59], CLASSES[:59]),
    )
    assert len({one.digest, *(other.digest for other in others)}) == 7
    assert Triggers.of(INPUTS.astype(np.float64), list(CLASSES)).digest == one.digest


def test_a_key_draws_the_same_again_and_another_key_others() -> None:
    data = Triggers.of(INPUTS, CLASSES)
    drawn = Triggers.draw(data, key_of(), count=4)
    assert drawn.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert Triggers.draw(data, key_of(), count=4).digest == drawn.digest
    assert Triggers.draw(data, key_of(number=2), count=4).digest != drawn.digest
    some = Triggers.draw(data, key_of(), count=2, classes=[2, 0])
    assert some.labels.tolist() == [0, 0, 2, 2]
    rows = {row.tobytes() for row in INPUTS}
    assert all(row.tobytes() in rows for row in drawn.inputs)
    assert len(Triggers.draw(data, key_of("featuremap"))) == 15
    unlabelled = Triggers.draw(Triggers.of(INPUTS), key_of("featuremap"), count=3)
    assert unlabelled.labels.tolist() == [-1, -1, -1]


def test_what_cannot_be_drawn_is_named() -> None:
    data = Triggers.of(INPUTS, CLASSES)
    with pytest.raises(TriggerMismatchError, match=r"20 inputs of class 0, too few for 21"):
        Triggers.draw(data, key_of(), count=21)
    with pytest.raises(TriggerMismatchError, match="no input is of class 7"):
        Triggers.draw(data, key_of(), classes=[7])
    with pytest.raises(TriggerMismatchError, match="no labels"):
        Triggers.draw(Triggers.of(INPUTS), key_of())
    with pytest.raises(ParameterError, match="count"):
        Triggers.draw(data, key_of(), count=0)
    with pytest.raises(LiveModelError, match="needs no triggers"):
        Triggers.draw(data, Key.new(QUICK))
    raw = Key.chosen(schemes.parameters("deepsigns", bits=8), np.ones((4, 8), np.float32))
    with pytest.raises(ParameterError, match="raw key"):
        Triggers.draw(data, raw)


def test_what_is_no_set_of_inputs_is_refused() -> None:
    for wrong in ([], 3.0, [["a"]], [[np.nan]], [[1.0], [1.0, 2.0]]):
        with pytest.raises(TriggerError):
            Triggers.of(wrong)
    for labels in ([0], [0, -2], [[0, 1]], ["a", "b"]):
        with pytest.raises(TriggerError):
            Triggers.of([[1.0], [2.0]], labels)


@pytest.mark.parametrize("inputs", [INPUTS, np.arange(60).reshape(20, 3)])
def test_a_sealed_file_opens_with_its_key_only(inputs: np.ndarray, tmp_path: Path) -> None:
    triggers = Triggers.of(inputs, np.arange(len(inputs)))
    path, key = tmp_path / "t.triggers", key_of()
    triggers.save(path, key)
    assert path.stat().st_mode & 0o777 == 0o600
    again = Triggers.load(path, key)
    assert again.digest == triggers.digest
    assert again.inputs.dtype == triggers.inputs.dtype
    with pytest.raises(OutputError):
        triggers.save(path, key)
    with pytest.raises(TriggerMismatchError, match="not of this one"):
        Triggers.load(path, key_of(number=2))
    assert INPUTS[0].tobytes() not in path.read_bytes()


def test_a_damaged_file_is_named_wherever_it_is_damaged(tmp_path: Path) -> None:
    path, key = tmp_path / "t.triggers", key_of()
    Triggers.of(INPUTS, CLASSES).save(path, key)
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((TriggerError, TriggerMismatchError)):
            Triggers.load(path, key)
        path.write_bytes(whole[:at])
        with pytest.raises(TriggerError):
            Triggers.load(path, key)
    path.write_bytes(whole + b"x")
    with pytest.raises(TriggerError):
        Triggers.load(path, key)
    with pytest.raises(TriggerError):
        Triggers.load(tmp_path, key)
    with pytest.raises(TriggerError, match="cannot be read"):
        Triggers.load(tmp_path / "none", key)
    with pytest.raises(ParameterError, match="triggers must be"):
        Triggers.given(3, key)


def test_data_comes_from_npz_safetensors_and_folders(tmp_path: Path) -> None:
    key = key_of()
    np.savez(tmp_path / "d.npz", inputs=INPUTS, labels=CLASSES)
    save_file({"inputs": INPUTS, "labels": CLASSES}, tmp_path / "d.safetensors")
    wanted = Triggers.draw(Triggers.of(INPUTS, CLASSES), key, count=3).digest
    for name in ("d.npz", "d.safetensors"):
        assert Triggers.draw(tmp_path / name, key, count=3).digest == wanted
    folder = tmp_path / "images"
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for number in range(3):
            pixels = np.full((4, 5, 3), 51 * number, np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")
    drawn = Triggers.draw(folder, key, count=2)
    assert (drawn.inputs.shape, drawn.labels.tolist()) == ((4, 3, 4, 5), [0, 0, 1, 1])
    assert set(np.unique(drawn.inputs)) <= {np.float32(0), np.float32(0.2), np.float32(0.4)}


def test_data_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    key, path = key_of(), tmp_path / "d.npz"
    with pytest.raises(CheckpointError):
        Triggers.draw(tmp_path / "none.npz", key)
    np.savez(path, images=INPUTS)
    with pytest.raises(TriggerError, match="no array named inputs"):
        Triggers.draw(path, key)
    np.savez(path, inputs=np.zeros((3, 4), np.uint8))
    with pytest.raises(TriggerError, match="as the model takes"):
        Triggers.draw(path, key)
    for labels in (CLASSES[:59], CLASSES.astype(np.float32), CLASSES - 1):
        np.savez(path, inputs=INPUTS, labels=labels)
        with pytest.raises(TriggerError, match="labels must be"):
            Triggers.draw(path, key)
    folder = tmp_path / "images"
    folder.mkdir()
    with pytest.raises(TriggerError, match="holds no images"):
        Triggers.draw(folder, key)
    (folder / "a.png").write_bytes(b"no image")
    with pytest.raises(TriggerError, match="no image that can be read"):
        Triggers.draw(folder, key)
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(folder / "a.png")
    Image.fromarray(np.zeros((5, 4), np.uint8)).save(folder / "b.png")
    with pytest.raises(TriggerError, match="the first image"):
        Triggers.draw(folder, key_of("featuremap"))


def test_a_set_of_triggers_shows_what_it_is_and_no_input() -> None:
    made = Triggers.of(np.zeros((4, 3, 2)), [0, 0, 7, 7])
    begins = made.digest.hex()[:16]
    assert repr(made) == f"Triggers(4 of 3 x 2, labels 0, 7, digest {begins}...)"
    assert "no labels" in repr(Triggers.of(np.zeros((4, 3))))
    assert "labels 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...," in repr(Triggers.of(np.eye(12), range(12)))
