"""Write the files that a release leaves behind, for `test_releases`.

python -m tests.golden.make_release release-X.Y  (once, when X.Y is released; never again after)

The keys are no secrets: they follow from the name of the release.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import neuralmark
from neuralmark import Key, Parameters
from neuralmark.keys.key import content_bytes

PASSPHRASE = "golden passphrase"


def write(folder: Path) -> None:
    """Keys of every kind, and a small model with its claim."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    salt, secret = (_bytes(folder.name, part) for part in ("salt", "secret"))
    number = folder.name.removeprefix("release-")
    content = content_bytes("Golden", f"release {number}")
    key = Key(Parameters(bits=256, pools=288), content, salt=salt, secret=secret)
    key.save(folder / "plain.nmkey", None)
    key.save(folder / "encrypted.nmkey", PASSPHRASE)
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((16, 24)).astype("<f4")
    Key.raw(matrix, 2, "contiguous", b"raw").save(folder / "raw.nmkey", None)
    weights = (0.05 * rng.standard_normal((128, 160))).astype(np.float16)
    save_file({"layer.weight": weights}, folder / "model.safetensors")
    neuralmark.embed(folder / "model.safetensors", key, folder / "marked.safetensors")
    (folder / "model.safetensors").unlink()


def _bytes(*words: str) -> bytes:
    return hashlib.sha256("/".join(words).encode()).digest()


if __name__ == "__main__":
    write(Path(__file__).parent / sys.argv[1])
