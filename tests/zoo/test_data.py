"""Data sets in the usual layouts: read as they are, checked, and never executed."""

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from neuralmark import zoo
from neuralmark.errors import (
    DamagedDataSetError,
    InputError,
    MissingDataSetError,
    MissingExtraError,
    ParameterError,
    UnsafeError,
)
from neuralmark.torchvision_loading import load
from neuralmark.zoo.sets._batches import read_batch
from neuralmark.zoo.sets._images import reader
from tests.support import layouts
from tests.support.checks import one_line

EVERY = ["caltech101", "caltech256", "cifar10", "cifar100", "digits", "tinyimagenet"]


def test_names() -> None:
    assert zoo.datasets() == EVERY
    with pytest.raises(ParameterError, match="no data set 'cifar'; did you mean 'cifar10'"):
        zoo.data("cifar", "/nowhere")


def test_cifar10(tmp_path: Path) -> None:
    *train, test = layouts.cifar10(tmp_path)
    data = zoo.data("cifar10", tmp_path)
    assert data.train_images.dtype == torch.uint8
    assert data.train_labels.dtype == torch.int64
    assert data.train_images.shape == (100, 3, 32, 32)
    for number, held in enumerate(train):
        part = slice(20 * number, 20 * number + 20)
        assert np.array_equal(data.train_images[part].reshape(20, -1).numpy(), held["data"])
        assert data.train_labels[part].tolist() == held["labels"]
    assert np.array_equal(data.test_images.reshape(20, -1).numpy(), test["data"])
    assert data.classes == 10
    assert data.note == "100 of 50,000 training images, 20 of 10,000 test images"


def test_inner_folder_and_limit(tmp_path: Path) -> None:
    layouts.cifar10(tmp_path)
    whole = zoo.data("cifar10", tmp_path)
    some = zoo.data("cifar10", tmp_path / "cifar-10-batches-py", limit=25, test_limit=3)
    assert torch.equal(some.train_images, whole.train_images[:25])
    assert torch.equal(some.test_labels, whole.test_labels[:3])
    assert some.note.startswith("the first 25 of 50,000 training images, the first 3 of")
    assert some.digest != whole.digest
    assert zoo.data("cifar10", tmp_path, limit=100, test_limit=20).digest == whole.digest


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("text", [True, False])
def test_every_kind_of_pickle(tmp_path: Path, protocol: int, text: bool) -> None:
    path = tmp_path / "train"
    held = layouts.batch(path, 7, 100, "fine_labels", protocol, text)
    if not text and protocol < 3:  # Python 3 has no bytes there: the keys are calls
        with pytest.raises(DamagedDataSetError, match="not a batch of CIFAR"):
            read_batch(path, "fine_labels", 100)
        return
    pixels, labels = read_batch(path, "fine_labels", 100)
    assert np.array_equal(pixels.reshape(7, -1), held["data"])
    assert labels.tolist() == held["fine_labels"]


def test_pickle_of_python2(tmp_path: Path) -> None:
    held = layouts.python2_batch(tmp_path / "data_batch_1", 12)
    read = pickle.loads((tmp_path / "data_batch_1").read_bytes(), encoding="bytes")
    assert np.array_equal(read[b"data"], held["data"])  # it is a sound pickle
    pixels, labels = read_batch(tmp_path / "data_batch_1", "labels", 10)
    assert np.array_equal(pixels.reshape(12, -1), held["data"])
    assert labels.tolist() == held["labels"]


def test_hostile_pickle_is_not_executed(tmp_path: Path) -> None:
    layouts.cifar10(tmp_path)
    proof = tmp_path / "executed"

    class Hostile:
        def __reduce__(self) -> Any:
            return Path.touch, (proof,)

    held = {"labels": [0], "data": Hostile()}
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(pickle.dumps(held))
    with pytest.raises(DamagedDataSetError, match="data_batch_2: not a batch of CIFAR"):
        zoo.data("cifar10", tmp_path)
    assert not proof.exists()


def test_damaged_batches(tmp_path: Path) -> None:
    path = tmp_path / "b"
    layouts.batch(path, 5, 10, "labels", 4, True)
    sound = path.read_bytes()
    rng = np.random.default_rng(1)
    for number in range(300):
        damaged = bytearray(sound[: rng.integers(len(sound))] if number % 3 == 0 else sound)
        for place in rng.integers(0, min(400, len(damaged)) or 1, 3):
            if damaged and number % 3:
                damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        complaint = ""
        try:
            pixels, labels = read_batch(path, "labels", 10)
        except InputError as error:
            complaint = one_line(error)
        assert str(path) in complaint if complaint else len(pixels) == len(labels)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ([1], "no dictionary"),
        ({}, "its 'data' is not a table"),
        ({"data": np.zeros((2, 10), np.uint8), "labels": [0, 0]}, "its 'data' is not a table"),
        ({"data": np.zeros((2, 3072), np.int8), "labels": [0, 0]}, "its 'data' is not a table"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "not 2 numbers from 0 to 9"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 10]}, "not 2 numbers from 0 to 9"),
        ({"data": np.zeros((2, 3072), np.uint8)}, "not 2 numbers from 0 to 9"),
        ({"data": np.zeros((3072, 2), np.uint8).T, "labels": [0, 1]}, "its 'data' is not a table"),
    ],
)
def test_batches_that_are_none(tmp_path: Path, held: Any, message: str) -> None:
    (tmp_path / "b").write_bytes(pickle.dumps(held, 2))
    with pytest.raises(DamagedDataSetError, match=message):
        read_batch(tmp_path / "b", "labels", 10)


def test_missing_files_are_named_with_where_to_get_them(tmp_path: Path) -> None:
    for name in set(EVERY) - {"digits"}:
        with pytest.raises(MissingDataSetError, match=r"get it from https://") as caught:
            zoo.data(name, tmp_path)
        assert zoo.source(name).title in one_line(caught.value)
    layouts.cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(
        MissingDataSetError, match=r"no file 'data_batch_4' in .*expected cifar-10-"
    ):
        zoo.data("cifar10", tmp_path)
    with pytest.raises(MissingDataSetError, match="no such folder"):
        zoo.data("cifar100", tmp_path / "nowhere")
    with pytest.raises(ParameterError, match="data=DIR"):
        zoo.data("cifar100")


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "9"])
def test_bad_limits(limit: Any) -> None:
    with pytest.raises(ParameterError, match="limit must be a positive whole number"):
        zoo.data("digits", limit=limit)
    with pytest.raises(ParameterError, match="test_limit must be a positive whole number"):
        zoo.data("digits", test_limit=limit)


@pytest.mark.parametrize("inner", ["caltech101/", "caltech-101/", ""])
def test_caltech101(tmp_path: Path, inner: str) -> None:
    root = tmp_path / f"{inner}101_ObjectCategories"
    layouts.caltech(root, {"anchor": 5, "yin_yang": 9, "BACKGROUND_Google": 3})
    (root / "anchor" / "notes.txt").write_text("no image")
    data = zoo.data("caltech101", tmp_path)
    assert data.classes == 2
    assert torch.bincount(data.train_labels).tolist() == [4, 7]  # four fifths, rounded down
    assert torch.bincount(data.test_labels).tolist() == [1, 2]
    assert data.note == "2 of 101 classes, 14 of 8,677 images"
    read = reader()
    assert np.array_equal(data.test_images[0].numpy(), read(root / "anchor" / "image_0005.jpg"))
    assert np.array_equal(data.train_images[1].numpy(), read(root / "yin_yang" / "image_0001.jpg"))


def test_limits_take_classes_in_turn(tmp_path: Path) -> None:
    classes = {"001.ak47": 5, "002.flag": 5, "257.clutter": 5}
    layouts.caltech(tmp_path / "256_ObjectCategories", classes)
    data = zoo.data("caltech256", tmp_path, limit=4)
    assert data.train_labels.tolist() == [0, 1, 2, 0]
    assert data.note.endswith("15 of 30,607 images, the first 4 of 12 training images")


def test_tinyimagenet(tmp_path: Path) -> None:
    root = layouts.tiny(tmp_path)
    data = zoo.data("tinyimagenet", tmp_path)
    assert data.train_labels.tolist() == [0, 1, 2] * 4
    assert data.test_labels.tolist() == [2, 2, 1, 1, 0, 0]  # in the order of the table
    assert data.classes == 3
    read = reader()
    assert np.array_equal(data.test_images[0].numpy(), read(root / "val" / "images" / "val_5.JPEG"))
    assert data.note.startswith("3 of 200 classes, 12 of 100,000 training images, 6 of 10,000")


def test_tinyimagenet_with_sorted_validation_images(tmp_path: Path) -> None:
    root = layouts.tiny(tmp_path)
    (root / "val" / "val_annotations.txt").unlink()
    with pytest.raises(MissingDataSetError, match=r"no file 'val_annotations\.txt'"):
        zoo.data("tinyimagenet", tmp_path)
    for label in range(3):
        layouts.picture(root / "val" / f"n0{label}" / "images" / "a.JPEG")
    assert zoo.data("tinyimagenet", tmp_path).test_labels.tolist() == [0, 1, 2]


def test_tinyimagenet_with_a_foreign_class(tmp_path: Path) -> None:
    root = layouts.tiny(tmp_path)
    with (root / "val" / "val_annotations.txt").open("a") as file:
        file.write("val_0.JPEG\tn99\t0\t0\t1\t1\n")
    with pytest.raises(DamagedDataSetError, match="line 7 names no class"):
        zoo.data("tinyimagenet", tmp_path)


@pytest.mark.parametrize(
    "size", [(50, 40), (40, 50), (32, 32), (33, 32), (300, 211), (20, 30), (101, 35), (64, 64)]
)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_images_as_torchvision_makes_them(tmp_path: Path, size: tuple[int, int], mode: str) -> None:
    path = layouts.picture(tmp_path / "a.png", *size, mode)
    transforms = load().transforms
    usual = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(32)])
    with Image.open(path) as image:
        expected = np.asarray(usual(image.convert("RGB"))).transpose(2, 0, 1)
    assert np.array_equal(reader()(path), expected)


def test_damaged_images(tmp_path: Path) -> None:
    root = layouts.caltech(tmp_path / "101_ObjectCategories", {"anchor": 3, "bass": 3})
    broken = root / "bass" / "image_0002.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(
        DamagedDataSetError, match=r"bass/image_0002\.jpg: a damaged image"
    ) as caught:
        zoo.data("caltech101", tmp_path)
    one_line(caught.value)
    broken.write_bytes(b"no image at all")
    with pytest.raises(DamagedDataSetError, match=r"image_0002\.jpg"):
        zoo.data("caltech101", tmp_path)


def test_class_with_one_image(tmp_path: Path) -> None:
    layouts.caltech(tmp_path / "101_ObjectCategories", {"anchor": 3, "bass": 1})
    with pytest.raises(DamagedDataSetError, match="bass: 1 images; a class needs two"):
        zoo.data("caltech101", tmp_path)


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "bmp"])
def test_mutated_images_give_named_errors(tmp_path: Path, suffix: str) -> None:
    path = layouts.picture(tmp_path / f"a.{suffix}", 24, 20)
    sound, rng, read = path.read_bytes(), np.random.default_rng(0), reader()
    for _ in range(150):
        damaged = bytearray(sound)
        for place in rng.integers(0, len(damaged), 4):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        complaint = ""
        try:
            pixels = read(path)
        except InputError as error:
            complaint = one_line(error)
        assert str(path) in complaint if complaint else pixels.shape == (3, 32, 32)


def test_bombs(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("1", (9000, 9000)).save(path)  # 10 KB
    with pytest.raises(UnsafeError, match="9000 x 9000 pixels"):
        reader()(path)
    Image.new("1", (20000, 20000)).save(path)
    with pytest.raises(UnsafeError, match="more pixels than any photograph"):
        reader()(path)
    Image.new("1", (100_000, 1)).save(path)
    with pytest.raises(DamagedDataSetError, match="100000 x 1 pixels"):
        reader()(path)


def test_digits() -> None:
    data = zoo.data("digits", limit=100)
    assert data.train_images.shape == (100, 1, 8, 8)
    assert len(data.test_labels) == 449
    assert int(data.test_images.max()) == 255
    assert data.note == "the first 100 of 1,348 training images"
    generator = torch.Generator().manual_seed(0)
    index = torch.arange(5)
    assert torch.equal(data.augmented(index, generator), data.trained(index))


def test_digest_follows_what_was_read(tmp_path: Path) -> None:
    layouts.cifar10(tmp_path)
    first = zoo.data("cifar10", tmp_path).digest
    assert zoo.data("cifar10", tmp_path).digest == first
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    held = pickle.loads(path.read_bytes())
    held["data"][3, 7] ^= 1
    path.write_bytes(pickle.dumps(held, 5))
    assert zoo.data("cifar10", tmp_path).digest != first
    held["data"][3, 7] ^= 1
    path.write_bytes(pickle.dumps(held, 5))
    assert zoo.data("cifar10", tmp_path).digest == first  # however it is stored


def test_normalise() -> None:
    images = torch.randint(0, 256, (4, 3, 5, 6), dtype=torch.uint8)
    mean, deviation = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    expected = load().transforms.Normalize(mean, deviation)(images.float() / 255)
    assert torch.allclose(zoo.normalise(images, mean, deviation), expected, atol=1e-5)
    with pytest.raises(ParameterError, match=r"images must be \(N, 3, height, width\)"):
        zoo.normalise(images[:, :2], mean, deviation)


def test_augment_is_a_crop_and_a_flip_of_each() -> None:
    images = torch.randint(1, 256, (64, 3, 12, 10), dtype=torch.uint8)
    made = zoo.augment(images, torch.Generator().manual_seed(0))
    bordered = torch.nn.functional.pad(images, [4] * 4)
    seen = set()
    for image, whole in zip(made, bordered, strict=True):
        places = [
            (down, right, flipped)
            for down in range(9)
            for right in range(9)
            for flipped in (False, True)
            if torch.equal(
                image.flip(2) if flipped else image,
                whole[:, down : down + 12, right : right + 10],
            )
        ]
        assert len(places) == 1
        seen.add(places[0])
    assert {down for down, _, _ in seen} == set(range(9)) == {right for _, right, _ in seen}
    assert {flipped for _, _, flipped in seen} == {True, False}


def test_augment_follows_its_generator_alone() -> None:
    images = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
    first = zoo.augment(images, torch.Generator().manual_seed(1))
    torch.manual_seed(99)
    assert torch.equal(zoo.augment(images, torch.Generator().manual_seed(1)), first)
    assert not torch.equal(zoo.augment(images, torch.Generator().manual_seed(2)), first)
    still = zoo.augment(images, torch.Generator().manual_seed(1), padding=0, flip=False)
    assert torch.equal(still, images)
    with pytest.raises(ParameterError, match="padding must not be negative"):
        zoo.augment(images, torch.Generator(), padding=-1)
    with pytest.raises(ParameterError, match=r"images must be \(N, C, height, width\)"):
        zoo.augment(images[0], torch.Generator())


def test_as_data(tmp_path: Path) -> None:
    layouts.cifar10(tmp_path)
    data = zoo.data("cifar10", tmp_path)
    all_of_it = data.as_data()
    assert all_of_it.inputs.dtype == torch.float32
    assert torch.equal(all_of_it.inputs[:9], data.trained(torch.arange(9)))
    assert torch.equal(all_of_it.test_labels, data.test_labels)


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"neuralmark\[vision\]"):
        reader()
