"""Small CNNs trained on CIFAR-10 with and without a mark, kept on disk and shared by benchmarks.

    python -m benchmarks._networks --data DIR --work DIR

trains the whole matrix on one core (about half an hour) and may be killed at any time: it goes on
where it stopped. The files are named by the settings, not by the code: when the training code
changes, begin with an empty folder.
"""

import argparse
import hashlib
import json
import sys
import warnings
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import neuralmark
from neuralmark import Key, Parameters, zoo
from neuralmark.attacks import Data
from neuralmark.core.key import Filter
from neuralmark.errors import NeuralMarkWarning
from neuralmark.lab.execution.training import TrainingCourse
from neuralmark.lab.execution.training import train as train_epochs
from neuralmark.marking.options import Mode
from neuralmark.records import Claim

NAME = "conv4.weight"
"""The marked tensor: 256·256·3·3 weights."""
IMAGES, TEST_IMAGES, EPOCHS = 10_000, 2_000, 3
RATE, BATCH = 0.01, 64


@dataclass(frozen=True)
class Setting:
    """How one network is trained: which key (none: clean), and how its mark is written."""

    filter: Filter | None = None
    rounds: int = 0
    mode: Mode | None = None
    strength: float = 0.0
    number: int = 0
    """Which of the benchmark's keys."""
    seed: int = 0
    epochs: int = EPOCHS

    @property
    def key(self) -> Key | None:
        """The same key in every run: these networks protect nothing."""
        if not self.filter:
            return None
        secret = hashlib.sha256(f"neuralmark benchmarks {self.number}".encode()).digest()
        parameters = Parameters(rounds=self.rounds, filter=self.filter)
        return Key(parameters, b"", salt=hashlib.sha256(secret).digest(), secret=secret)

    @property
    def label(self) -> str:
        """For tables.

        >>> Setting("stream", 1, "projection", 2.0, number=1).label
        'stream R=1, projection 2, key 1'
        """
        words = [f"{self.filter} R={self.rounds}", f"{self.mode} {self.strength:g}"]
        parts = words if self.filter else ["clean"]
        parts += [f"key {self.number}"] if self.number else []
        parts += [f"seed {self.seed}"] if self.seed else []
        parts += [f"{self.epochs} epochs"] if self.epochs != EPOCHS else []
        return ", ".join(parts)


CLEAN = Setting()
LONGER = Setting(epochs=EPOCHS + 1)
"""The clean network one epoch later: a neighbouring release."""
TILED = tuple(Setting("tiled", 4, "gradient", strength) for strength in (1.0, 4.0))
STREAM4 = tuple(Setting("stream", 4, "gradient", strength) for strength in (1.0, 4.0))
GRADIENT = tuple(Setting("stream", 1, "gradient", strength) for strength in (0.25, 1.0, 4.0))
PROJECTION = tuple(
    Setting("stream", 1, "projection", strength) for strength in (1.0, 2.0, 4.0, 8.0, 16.0)
)
AGAIN = (
    Setting("tiled", 4, "gradient", 1.0, number=1),
    Setting("stream", 1, "projection", 2.0, number=1),
)
MATRIX = (CLEAN, *TILED, *GRADIENT, *PROJECTION, *STREAM4, LONGER, *AGAIN, Setting(seed=1))


@dataclass(frozen=True, eq=False)
class Network:
    """A trained network, and how its training went."""

    model: torch.nn.Module = field(repr=False)
    key: Key | None
    claim: Claim | None
    accuracy: float
    """Share of the test images."""
    moved: float
    """‖w - start‖/‖start‖ of the marked tensor."""
    row: dict[str, Any] = field(repr=False)

    @property
    def weight(self) -> torch.Tensor:
        """The marked tensor."""
        return self.model.get_parameter(NAME).detach()

    @property
    def bits(self) -> int | None:
        """Matching bits; None without a key."""
        if self.key is None:
            return None
        return neuralmark.verify(self.model, self.key, claim=self.claim).matched


def train(
    data_folder: Path,
    key: Key | None,
    mode: Mode | None = None,
    strength: float = 0.0,
    *,
    images: int = IMAGES,
    epochs: int = EPOCHS,
    seed: int = 0,
    cache: Path,
) -> Network:
    """The network of these settings: from the cache, or trained now and put there.

    A training that was interrupted goes on, and one of fewer epochs is carried on.
    """
    cache.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    model = zoo.architecture("smallcnn").build(classes=10)
    stem = _stem(key, mode, strength, images, seed)
    path = cache / f"{stem}-{epochs}.safetensors"
    if not path.with_suffix(".json").is_file():
        attach = None if key is None else partial(_attach, key=key, mode=mode, strength=strength)
        course = TrainingCourse(epochs, RATE, BATCH, seed=seed)
        state = path.with_suffix(".state")
        shorter = path.with_name(f"{stem}-{epochs - 1}.state")
        if shorter.is_file() and not state.is_file():
            state.write_bytes(shorter.read_bytes())
        made = train_epochs(
            model, _data(data_folder, images), course, attach, state, _silent, [NAME]
        )
        save_file(model.state_dict(), path)
        kept = {"row": made.row, "claim": made.claim and made.claim.to_dict()}
        path.with_suffix(".json").write_text(json.dumps(kept))
    model.load_state_dict(load_file(path))
    model.eval()
    kept = json.loads(path.with_suffix(".json").read_text())
    row, claim = kept["row"], kept["claim"]
    claim = None if claim is None else Claim.from_dict(claim)
    return Network(model, key, claim, row["accuracy"], row["moved"], row)


def network(data_folder: Path, setting: Setting, cache: Path) -> Network:
    """One network of the matrix."""
    return train(
        data_folder,
        setting.key,
        setting.mode,
        setting.strength,
        epochs=setting.epochs,
        seed=setting.seed,
        cache=cache,
    )


def start(seed: int = 0) -> torch.Tensor:
    """The marked tensor before any training."""
    torch.manual_seed(seed)
    model: torch.nn.Module = zoo.architecture("smallcnn").build(classes=10)
    return model.get_parameter(NAME).detach()


def examples(data_folder: Path) -> Data:
    """The data of all networks as attacks take it: a few training images, all test images."""
    whole = _data(data_folder, IMAGES)
    few = torch.arange(BATCH)
    every = torch.arange(len(whole.test_labels))
    return Data(whole.trained(few), whole.train_labels[few], whole.tested(every), whole.test_labels)


def options(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the folders that every benchmark on these networks takes."""
    made.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10")
    made.add_argument(
        "--work",
        type=Path,
        default=Path("/tmp/nmnetworks"),
        help="folder of the trained networks; what is missing is trained (2 minutes each)",
    )
    return made


@cache
def _data(folder: Path, images: int) -> zoo.DataSet:
    return zoo.data("cifar10", folder, limit=images, test_limit=TEST_IMAGES)


def _attach(
    model: torch.nn.Module, optimizer: Any, key: Key, mode: Mode | None, strength: float
) -> neuralmark.LiveMark:
    return neuralmark.attach(
        model,
        optimizer,
        key,
        options=neuralmark.AttachOptions(tensors=[NAME], mode=mode, strength=strength),
    )


def _stem(key: Key | None, mode: Mode | None, strength: float, images: int, seed: int) -> str:
    """Name of the files, without the epochs."""
    if key is None:
        return f"clean-s{seed}-{images}"
    parameters = key.parameters
    drawn = key.fingerprint[-8:]
    filtered = f"{parameters.filter}{parameters.rounds}"
    return f"{filtered}-{mode}-{strength:g}-{drawn}-s{seed}-{images}"


def _silent(_done: int, _all: int) -> None:
    """Nobody waits for an epoch."""


def main(arguments: list[str] | None = None) -> int:
    chosen = options(argparse.ArgumentParser(description=__doc__)).parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", NeuralMarkWarning)
    for setting in MATRIX:
        made = network(chosen.data, setting, chosen.work)
        told = {"accuracy": made.accuracy, "moved": made.moved, "bits": made.bits}
        print(setting.label, json.dumps(told), json.dumps(asdict(setting)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
