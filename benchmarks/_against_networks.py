"""Part of against_anchor: real networks, attacked as the attack suite does."""

import copy
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import resnets
from benchmarks._against import Anchored, Array, Reading
from benchmarks._common import Report
from neuralmark import Parameters, zoo
from neuralmark.attacks import Data
from neuralmark.attacks.contract import Attack, Scene
from neuralmark.attacks.finetune import Finetune
from neuralmark.attacks.nullspace import Nullspace
from neuralmark.checkpoints.readers.memory import MemoryCheckpoint
from neuralmark.marking.placement import auto, catalogue, placement_of

THRESHOLDS = (1e-3, 1e-2, 0.1)
AMOUNTS = (0.25, 1.0, 2.0, 4.0, 16.0, 64.0, 256.0, 1000.0)
POINT = 1.0
TESTED, SHOWN, TUNED = 2000, 512, 2500
BATCH = 250


@dataclass(frozen=True)
class Trained:
    """A network, what it was trained on, and another task."""

    model: nn.Module = field(repr=False)
    data: Data = field(repr=False)
    other: Data = field(repr=False)
    names: tuple[str, ...]
    tunings: tuple[Attack, ...] = ()
    quality: Callable[[nn.Module], float] | None = None
    """In percent; None: the share of test images whose class is right."""

    def score(self, model: nn.Module) -> float:
        """How well a model does, in percent."""
        return accuracy(model, self.data) if self.quality is None else self.quality(model)


class Transformer(nn.Module):
    """Two blocks, 128 wide, over the 16 squares of 2 x 2 pixels of a digit."""

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.enter = nn.Linear(4, width)
        self.place = nn.Parameter(torch.randn(16, width) * 0.02)
        parts = {"norm1": nn.LayerNorm, "norm2": nn.LayerNorm}
        self.blocks = nn.ModuleList()
        for _ in range(2):
            block = nn.ModuleDict({name: kind(width) for name, kind in parts.items()})
            block["qkv"] = nn.Linear(width, 3 * width)
            block["out"] = nn.Linear(width, width)
            block["up"], block["down"] = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.blocks.append(block)
        self.classifier = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of images [n, 8, 8]."""
        squares = x.reshape(-1, 4, 2, 4, 2).transpose(2, 3).reshape(len(x), 16, 4)
        stream = self.enter(squares) + self.place
        for block in self.blocks:
            assert isinstance(block, nn.ModuleDict)
            q, k, v = (
                part.reshape(len(x), 16, self.heads, -1).transpose(1, 2)
                for part in block["qkv"](block["norm1"](stream)).chunk(3, dim=-1)
            )
            seen = functional.scaled_dot_product_attention(q, k, v)
            stream = stream + block["out"](seen.transpose(1, 2).reshape(stream.shape))
            stream = stream + block["down"](functional.gelu(block["up"](block["norm2"](stream))))
        scores: Tensor = self.classifier(stream.mean(1))
        return scores


def digits(model: nn.Module, names: tuple[str, ...], rate: float) -> Trained:
    """Trained here on real digits below 5; the others are another task."""
    loaded = load_digits()
    images = torch.from_numpy(loaded.images).float() / 16
    labels = torch.from_numpy(loaded.target)
    train = torch.arange(len(labels)) % 4 != 0
    low = labels < 5
    parts = [
        Data(images[train & low], labels[train & low], images[~train & low], labels[~train & low]),
        Data(
            images[train & ~low], labels[train & ~low], images[~train & ~low], labels[~train & ~low]
        ),
    ]
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(30):
        for some in torch.randperm(len(parts[0].inputs)).split(64):
            loss = functional.cross_entropy(model(parts[0].inputs[some]), parts[0].labels[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    tunings = (
        *(Finetune(0.05, 30, scope="lora", rank=rank) for rank in (4, 16)),
        *(Finetune(0.05, epochs) for epochs in (30, 300)),
        Finetune(0.2, 300),
    )
    return Trained(model, parts[0], parts[1], names, tunings)


def digits_mlp(_: Path, __: Path) -> Trained:
    torch.manual_seed(0)
    return digits(zoo.architecture("digits-mlp").build(classes=10), ("hidden2.weight",), 1e-3)


def digits_mlp_wide(_: Path, __: Path) -> Trained:
    """With the tensors that `embed` chooses by itself."""
    torch.manual_seed(0)
    names = ("hidden1.weight", "hidden2.weight")
    return digits(zoo.architecture("digits-mlp").build(classes=10), names, 1e-3)


def digits_transformer(_: Path, __: Path) -> Trained:
    torch.manual_seed(0)
    model = Transformer()
    names = tuple(n for n, p in model.named_parameters() if p.ndim == 2 and "blocks" in n)
    return digits(model, names, 1e-3)


def published(blocks: int, tunings: tuple[Attack, ...] = ()) -> Callable[[Path, Path], Trained]:
    def make(folder: Path, _: Path) -> Trained:
        pattern = f"*resnet{6 * blocks + 2}*.th"
        path = next((folder / "weights").glob(pattern))
        saved = torch.load(path, weights_only=True, map_location="cpu")["state_dict"]
        model = resnets.ResNet(blocks)
        model.load_state_dict({name.removeprefix("module."): t for name, t in saved.items()})
        model.eval()
        names = tuple(n for n, p in model.named_parameters() if p.ndim == 4 and p.numel() >= 8192)
        images, labels = resnets.test_images(folder)
        shown = _pixels(folder / "cifar-10-batches-py" / "data_batch_1", SHOWN, b"labels")
        data = Data(*shown, images[:TESTED], labels[:TESTED])
        other = _pixels(folder / "cifar-100-python" / "train", TUNED, b"fine_labels")
        return Trained(model, data, Data(*other, *other), names, tunings)

    return make


def family(name: str) -> Callable[[Path, Path], Trained]:
    """Trained by benchmarks._trained, with the tensors that `embed` chooses by itself."""

    def make(folder: Path, work: Path) -> Trained:
        from benchmarks import _trained

        model = _trained.loaded(name, _trained.trained(name, folder, work))
        table = {n: p.detach().numpy() for n, p in model.named_parameters()}
        known = catalogue(MemoryCheckpoint(table))
        names = tuple(n for n, _ in placement_of(auto(known, Parameters()).tensors))
        if _trained.FAMILIES[name].task == "images":
            inputs = _trained.images(folder).inputs
        else:
            inputs = _trained.text(folder)
        shown = inputs[:SHOWN]
        data = Data(shown, torch.zeros(len(shown), dtype=torch.int64), shown[:0], torch.zeros(0))
        quality = partial(_trained.quality, name=name, data=folder)
        return Trained(model, data, data, names, quality=quality)

    return make


def small_cnn(folder: Path, work: Path, *names: str) -> Trained:
    from benchmarks import _networks

    made = _networks.network(folder, _networks.CLEAN, work)
    data = _networks.examples(folder)
    whole = zoo.data("cifar100", folder, limit=TUNED, test_limit=TESTED)
    every = torch.arange(TUNED)
    other = Data(*(2 * (whole.trained(every), whole.train_labels[every])))
    tunings = (
        Finetune(0.01, 3, scope="lora", rank=16),
        Finetune(0.01, 3),
        Finetune(0.05, 12),
    )
    return Trained(made.model, data, other, names or (_networks.NAME,), tunings)


def small_cnn_wide(folder: Path, work: Path) -> Trained:
    """With the tensors that `embed` chooses by itself."""
    return small_cnn(folder, work, "conv2.weight", "conv3.weight", "conv4.weight")


@dataclass(frozen=True)
class Network:
    """How a network is made, and how docs/anchors.md says that one like it should be marked."""

    make: Callable[[Path, Path], Trained]
    strength: float = 1.0
    bits: int = 4
    """Of the anchor."""


_PUBLISHED = (Finetune(0.02, 2, scope="lora", rank=8), Finetune(0.01, 3), Finetune(0.1, 6))
NETWORKS = {
    "digits-mlp": Network(digits_mlp, bits=8),
    "digits-mlp-wide": Network(digits_mlp_wide, bits=8),
    "digits-transformer": Network(digits_transformer),
    "resnet20": Network(published(3, _PUBLISHED)),
    "resnet56": Network(published(9)),
    "cnn": Network(small_cnn, strength=4.0),
    "cnn-wide": Network(small_cnn_wide),
    **{name: Network(family(name)) for name in ("vgg", "gpt2", "llama", "vit")},
}


@dataclass(frozen=True)
class Measuring:
    """Which networks, from where, and how they are marked: None is as each of them should be."""

    names: Sequence[str]
    data: Path
    work: Path
    """Where trained networks are kept."""
    strength: float | None = None
    bits: int | None = None


def measure(report: Report, asked: Measuring) -> None:
    """All attacks on these networks."""
    torch.set_num_threads(1)
    for name in asked.names:
        network = NETWORKS[name]
        trained = network.make(asked.data, asked.work)
        strength = network.strength if asked.strength is None else asked.strength
        bits = network.bits if asked.bits is None else asked.bits
        own = dict(trained.model.named_parameters())
        weights = {n: own[n].detach().numpy().copy() for n in trained.names}
        anchored = Anchored.of(weights, 1, strength, bits)
        model = with_weights(trained.model, anchored.marked)
        title = f"{name}, strength {strength:g} ({100 * anchored.change:.1f} % change), {bits} bits"
        rows = list(free_room(report, name, trained, model, anchored))
        rows += tuned(report, name, trained, model, anchored)
        head = ["attack", "accuracy", "change", "plain", "anchor", "set aside", "told"]
        report.table(head, rows, f"{title}, bits of 256")


def free_room(
    report: Report, name: str, trained: Trained, model: nn.Module, anchored: Anchored
) -> Iterator[list[str]]:
    """The null space at every strength that costs at most a point, and one beyond."""
    before = trained.score(model)
    least, plain = math.inf, math.inf
    for threshold in THRESHOLDS:
        for amount in AMOUNTS:
            attack = Nullspace(amount, threshold, SHOWN)
            made = attacked(attack, model, trained.data, trained.names)
            if made is None:
                break
            after = trained.score(with_weights(model, made))
            found = anchored.read({**anchored.marked, **made})
            yield row(f"nullspace {threshold:g}, {amount:g}", after, found, anchored, made)
            if after < before - POINT:
                break
            least, plain = min(least, found.cleaned), min(plain, found.plain)
    if least < math.inf:
        title = f"{name}, null space within a point, least bits (plainly {plain})"
        report.target(title, least, "at least 228", passed=least >= 228)


def tuned(
    report: Report, name: str, trained: Trained, model: nn.Module, anchored: Anchored
) -> Iterator[list[str]]:
    """Trained on another task."""
    for attack in trained.tunings:
        assert isinstance(attack, Finetune)
        made = attacked(attack, model, trained.other, trained.names)
        assert made is not None
        rank = f" rank {attack.rank}" if attack.scope == "lora" else ""
        title = f"tuned {attack.scope}{rank}, rate {attack.rate:g}, {attack.epochs} epochs"
        if not all(np.isfinite(value).all() for value in made.values()):
            yield [title, "diverged: NaN", *["–"] * 5]
            continue
        found = anchored.read(made)
        yield row(title, math.nan, found, anchored, made)
        passed = found.cleaned >= min(found.plain - 2, 256)
        wanted = f"at least {found.plain - 2}"
        report.target(f"{name}, {title}, bits", found.cleaned, wanted, passed=passed)


def row(
    title: str, after: float, found: Reading, anchored: Anchored, made: dict[str, Array]
) -> list[str]:
    """One attack in the table."""
    moved = sum(float(np.square(made[n] - anchored.marked[n]).sum()) for n in made)
    size = sum(float(np.square(anchored.marked[n]).sum()) for n in anchored.marked)
    told = f"{after:.1f} %" if after == after else "–"
    share = f"{100 * found.share:.0f} %"
    change = f"{math.sqrt(moved / size):.2g} x"
    return [title, told, change, str(found.plain), str(found.cleaned), share, found.told]


def attacked(
    attack: Attack, model: nn.Module, data: Data, names: tuple[str, ...]
) -> dict[str, Array] | None:
    """The marked tensors after an attack; None where it finds nothing to change."""
    weights = {n: p.detach().numpy() for n, p in model.named_parameters()}
    torch.manual_seed(1)
    scene = Scene(weights, names, np.random.default_rng(1), copy.deepcopy(model), data)
    outcome = attack.run(scene)
    if outcome.model is not None:
        after = dict(outcome.model.named_parameters())
        return {n: after[n].detach().numpy().copy() for n in names}
    return dict(outcome.weights) if outcome.weights else None


def with_weights(model: nn.Module, weights: "dict[str, Array] | object") -> nn.Module:
    """A copy with other weights."""
    made = copy.deepcopy(model)
    own = dict(made.named_parameters())
    assert hasattr(weights, "items")
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(torch.from_numpy(np.array(value)))
    return made


def accuracy(model: nn.Module, data: Data) -> float:
    """Percent of the test images."""
    model.eval()
    right = 0
    with torch.inference_mode():
        pairs = zip(data.test_inputs.split(BATCH), data.test_labels.split(BATCH), strict=True)
        for images, labels in pairs:
            right += int((model(images).argmax(1) == labels).sum())
    return 100 * right / len(data.test_labels)


def _pixels(path: Path, count: int, label: bytes) -> tuple[Tensor, Tensor]:
    with path.open("rb") as file:
        read = pickle.load(file, encoding="bytes")
    batch = {k if isinstance(k, bytes) else k.encode(): v for k, v in read.items()}
    pixels = torch.from_numpy(np.asarray(batch[b"data"][:count])).reshape(-1, 3, 32, 32).float()
    shape = (1, 3, 1, 1)
    mean, deviation = (torch.tensor(v).reshape(shape) for v in (resnets.MEAN, resnets.DEVIATION))
    return (pixels / 255 - mean) / deviation, torch.tensor(batch[label][:count])
