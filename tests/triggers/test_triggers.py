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
from tests.support.checks import one_line
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


def test_nothing_of_an_input_is_changed_in_silence(tmp_path: Path) -> None:
    """In Python and in a file alike: the kinds of numbers, and the labels."""
    key, path = key_of("featuremap"), tmp_path / "d.npz"
    rows = np.arange(60).reshape(20, 3)
    for wrong, said in (
        (rows + 1j, "not complex128"),
        (rows.astype(np.uint8), "uint8: give pixels in float32"),
        (rows.astype(np.int8), "int8: give pixels"),
        (rows > 3, "not bool"),
        (rows.astype(np.uint64) + np.uint64(2**63), "too large for int64"),
        (np.where(rows == 30, np.nan, rows), "input 10 holds NaN or infinity: leave it out"),
        (np.where(rows == 30, 1e60, rows), r"input 10 holds .* too large for float32 \(up to 1e"),
    ):
        with pytest.raises(TriggerError, match=said):
            Triggers.of(wrong)
        np.savez(path, inputs=wrong)
        with pytest.raises(TriggerError, match=said) as caught:
            Triggers.draw(path, key, count=3)
        assert str(path) in str(caught.value)
        one_line(caught.value)
    labels = np.arange(20) % 4
    for sound in (np.int8, np.int16, np.uint8, np.uint32, np.int64):
        np.savez(path, inputs=rows.astype(np.uint16), labels=labels.astype(sound))
        drawn = Triggers.draw(path, key, count=3)
        again = Triggers.draw(
            Triggers.of(rows.astype(np.uint16), labels.astype(sound)), key, count=3
        )
        assert (drawn.digest, str(drawn.inputs.dtype)) == (again.digest, "int64")
    for unsound in (labels + 0.7, labels.astype(np.float32), labels > 2):
        with pytest.raises(TriggerError, match="labels must be whole numbers"):
            Triggers.of(rows, unsound)
        np.savez(path, inputs=rows, labels=unsound)
        with pytest.raises(TriggerError, match="labels must be whole numbers"):
            Triggers.draw(path, key, count=3)
    for none in (None, [[None]], [{"a": 1}]):
        with pytest.raises(TriggerError, match="not object") as caught:
            Triggers.of(none)
        one_line(caught.value)
    np.savez(path, inputs=rows[:0], labels=labels[:0])
    with pytest.raises(TriggerError, match="inputs is empty"):
        Triggers.draw(path, key_of(), count=3)


def test_tensors_of_torch_come_without_their_graph(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_tensors

    rows = torch.arange(60.0).reshape(20, 3) / 8
    known = Triggers.of(rows.numpy()).digest
    for given in (rows.bfloat16(), rows.half(), rows.double(), rows.clone().requires_grad_()):
        assert Triggers.of(given).digest == known
    assert Triggers.of(list(rows.clone().requires_grad_())).digest == known
    assert Triggers.of(rows, torch.arange(20, dtype=torch.uint8)).labels[-1] == 19
    with pytest.raises(TriggerError, match="not complex64"):
        Triggers.of(rows.to(torch.complex64))
    with pytest.raises(TriggerError, match="arrays of numbers"):
        Triggers.of(rows.to("meta"))
    save_tensors({"inputs": rows.bfloat16()}, tmp_path / "d.safetensors")
    key = key_of("featuremap")
    drawn = Triggers.draw(tmp_path / "d.safetensors", key, count=3)
    assert drawn.digest == Triggers.draw(Triggers.of(rows), key, count=3).digest


def test_what_is_drawn_from_what_and_by_whom_is_checked() -> None:
    data, key = Triggers.of(INPUTS, CLASSES), key_of()
    for count in ("8", 8.0, True):
        with pytest.raises(ParameterError, match="count must be a whole number"):
            Triggers.draw(data, key, count=count)  # type: ignore[arg-type]
    for classes in ("1,2", 1, [1.0], []):
        with pytest.raises(ParameterError, match="classes are a list of whole numbers"):
            Triggers.draw(data, key, count=2, classes=classes)  # type: ignore[arg-type]
    with pytest.raises(TriggerMismatchError, match="leave classes out"):
        Triggers.draw(Triggers.of(INPUTS), key_of("featuremap"), count=3, classes=[0])
    with pytest.raises(ParameterError, match="drawn from a file"):
        Triggers.draw(INPUTS, key)  # type: ignore[arg-type]
    for call in (
        lambda: Triggers.draw(data, "k.nmkey"),  # type: ignore[arg-type]
        lambda: data.save("t.triggers", "k.nmkey"),  # type: ignore[arg-type]
        lambda: Triggers.load("t.triggers", "k.nmkey"),  # type: ignore[arg-type]
        lambda: Triggers.given(None, "k.nmkey"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ParameterError, match="expected a Key, not str") as caught:
            call()
        one_line(caught.value)
    with pytest.raises(TriggerError, match=r"Triggers\.of"):
        Triggers([[1.0]], [0])  # type: ignore[arg-type]
    with pytest.raises(TriggerError, match="one label, a whole number"):
        Triggers(INPUTS, CLASSES + 0.5)  # type: ignore[arg-type]


def test_a_key_of_deepipr_is_told_which_version_takes_triggers() -> None:
    for version in (1, 2):
        own = {"version": version}
        key = Key.new(schemes.parameters("deepipr", own=own))
        with pytest.raises(LiveModelError, match=r"made with own=\{'version': 3\} take some"):
            Triggers.draw(Triggers.of(INPUTS), key)
    with pytest.raises(LiveModelError, match=r"needs no triggers$"):
        Triggers.draw(Triggers.of(INPUTS), Key.new(schemes.parameters("trapdoor")))


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
