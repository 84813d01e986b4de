"""Small folders in the layouts of the published data sets."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)


def batch(path: Path, count: int, classes: int, label: str, protocol: int, text: bool) -> Any:
    """A batch file of CIFAR; keys as text or bytes. Gives what it holds."""
    held: dict[str, Any] = {
        "batch_label": "some batch",
        label: [int(each) for each in RNG.integers(0, classes, count)],
        "data": RNG.integers(0, 256, (count, 3072), dtype=np.uint8),
        "filenames": [f"image_{number}.png" for number in range(count)],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    keyed = held if text else {key.encode(): value for key, value in held.items()}
    path.write_bytes(pickle.dumps(keyed, protocol))
    return held


def python2_batch(path: Path, count: int) -> Any:
    """A batch of CIFAR-10 as it was published: a pickle of Python 2, opcode by opcode."""
    pixels = RNG.integers(0, 256, (count, 3072), dtype=np.uint8)
    labels = [number % 10 for number in range(count)]

    def short(text: str) -> bytes:
        return b"U" + bytes([len(text)]) + text.encode()

    raw = pixels.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    opcodes = [
        *(b"\x80\x02}q\x01(", short("data"), b"cnumpy.core.multiarray\n_reconstruct\n"),
        *(b"cnumpy\nndarray\nK\x00\x85", short("b"), b"\x87R(K\x01"),
        *(b"M", count.to_bytes(2, "little"), b"M\x00\x0c\x86"),  # the shape
        *(b"cnumpy\ndtype\n", short("u1"), b"K\x00K\x01\x87R(K\x03", short("|")),
        *(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",),
        *(b"T", len(raw).to_bytes(4, "little"), raw, b"tb"),
        *(short("labels"), b"](", *(b"K" + bytes([each]) for each in labels), b"eu."),
    ]
    path.write_bytes(b"".join(opcodes))
    return {"data": pixels, "labels": labels}


def cifar10(folder: Path, count: int = 20) -> list[Any]:
    """All six files; protocol 2 with text, as Python 3 writes it."""
    root = folder / "cifar-10-batches-py"
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    return [batch(root / name, count, 10, "labels", 2, True) for name in names]


def picture(path: Path, width: int = 50, height: int = 40, mode: str = "RGB") -> Path:
    """A photograph of noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (height, width) if mode == "L" else (height, width, len(mode))
    Image.fromarray(RNG.integers(0, 256, shape, dtype=np.uint8), mode).save(path)
    return path


def caltech(root: Path, classes: dict[str, int]) -> Path:
    """A folder for each class."""
    for name, count in classes.items():
        for number in range(1, count + 1):
            picture(root / name / f"image_{number:04}.jpg")
    return root


def tiny(folder: Path, classes: int = 3, count: int = 4) -> Path:
    """As published: images folders, and a table for the validation images."""
    root = folder / "tiny-imagenet-200"
    lines = []
    for label in range(classes):
        name = f"n0{label}"
        for number in range(count):
            picture(root / "train" / name / "images" / f"{name}_{number}.JPEG", 64, 64)
        for number in range(2):
            file = f"val_{2 * label + number}.JPEG"
            picture(root / "val" / "images" / file, 64, 64, "L")
            lines.append(f"{file}\t{name}\t0\t0\t63\t63")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines[::-1]) + "\n")
    return root
