"""Networks of six families trained here on real data, kept on disk and shared by benchmarks.

    python -m benchmarks._trained --data DIR --work DIR

trains all of them on one core (about half an hour; DIR holds CIFAR-10 and E2E as the laboratory
unpacks them) and may be killed at any time: what is finished stays. Two seeds of each, so that
there is another training of the same network.
"""

import csv
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import neuralmark.torchvision_loading  # noqa: F401, isort: skip - transformers imports torchvision
import numpy as np
import numpy.typing as npt
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import _cifar
from benchmarks._common import parser
from benchmarks.resnets import ResNet

HF: Any = transformers  # most of its functions have no types
Arrays = dict[str, npt.NDArray[np.float32]]
SEEDS = (0, 1)
IMAGES, TEST_IMAGES = 10_000, 2_000
LENGTH = 64
TUNED, GENTLY = 60, 0.5
"""Steps of fine-tuning, and its rate in units of the first training's."""
VOCABULARY = 512
"""Words of E2E: the commonest; the rest is one."""


class Chain(nn.Module):
    """Features and a classifier."""

    def __init__(self, layers: list[nn.Module]) -> None:
        """The features; the classifier reads four values of each of 192 channels."""
        super().__init__()
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(4 * 192, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.classifier(self.features(x))
        return scores


def vgg() -> nn.Module:
    """A chain of six convolutions with batch norms, as torchvision names them."""
    layers: list[nn.Module] = []
    before = 3
    for width, pool in ((32, True), (64, True), (128, False), (128, True), (192, False)):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pool else []
        before = width
    layers += [nn.Conv2d(before, 192, 3, padding=1), nn.BatchNorm2d(192), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return Chain(layers)


def gpt2() -> nn.Module:
    """Four layers of GPT-2, 128 wide."""
    config = HF.GPT2Config(VOCABULARY, n_positions=LENGTH, n_embd=128, n_layer=4, n_head=4)
    model: nn.Module = HF.GPT2LMHeadModel(config)
    return model


def llama() -> nn.Module:
    """Four layers of Llama with two key heads for four of queries."""
    config = HF.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
    )
    model: nn.Module = HF.LlamaForCausalLM(config)
    return model


def vit() -> nn.Module:
    """Four layers of a vision transformer on patches of 4 x 4."""
    config = HF.ViTConfig(
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=384,
        image_size=32,
        patch_size=4,
        num_labels=10,
    )
    model: nn.Module = HF.ViTForImageClassification(config)
    return model


def bert() -> nn.Module:
    """Four layers of BERT that fill in words left out."""
    config = HF.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=384,
        max_position_embeddings=LENGTH,
    )
    model: nn.Module = HF.BertForMaskedLM(config)
    return model


@dataclass(frozen=True)
class Family:
    """A network, what it is trained on, and for how many steps (0: published, not trained here)."""

    make: Callable[[], nn.Module]
    task: str
    steps: int
    rate: float = 1e-3


FAMILIES = {
    "resnet20": Family(lambda: ResNet(3), "images", 0),
    "resnet56": Family(lambda: ResNet(9), "images", 0),
    "vgg": Family(vgg, "images", 600),
    "gpt2": Family(gpt2, "text", 1000),
    "llama": Family(llama, "text", 1000),
    "vit": Family(vit, "images", 800),
    "bert": Family(bert, "masked", 1000),
}


@cache
def images(data: Path) -> Any:
    """CIFAR-10."""
    return _cifar.load(data, "cifar10", IMAGES, TEST_IMAGES)


@cache
def text(data: Path) -> Tensor:
    """E2E as blocks of word numbers: the last tenth is for testing."""
    rows = next((data / "e2e").rglob("trainset.csv")).read_text(encoding="utf-8").splitlines()
    words = [w for row in csv.DictReader(rows) for w in f"{row['mr']} | {row['ref']} .".split()]
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    common = sorted(counts, key=lambda w: (-counts[w], w))[: VOCABULARY - 2]
    numbers = {word: i + 2 for i, word in enumerate(common)}
    stream = torch.tensor([numbers.get(word, 1) for word in words])
    return stream[: len(stream) // LENGTH * LENGTH].reshape(-1, LENGTH)


def scores(model: nn.Module, pixels: Tensor) -> Tensor:
    """Class scores of either kind of network."""
    out: Any = model(pixels)
    found: Tensor = getattr(out, "logits", out)
    return found


def loss_of(model: nn.Module, task: str, batch: tuple[Tensor, Tensor]) -> Tensor:
    """What is trained on."""
    given, wanted = batch
    if task == "images":
        return functional.cross_entropy(scores(model, given), wanted)
    loss: Tensor = model(input_ids=given, labels=wanted).loss
    return loss


def batches(data: Path, task: str, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random batches of training data."""
    rng = torch.Generator().manual_seed(seed)
    if task == "images":
        found = images(data)
        for _ in range(steps):
            chosen = torch.randint(len(found.labels), (64,), generator=rng)
            yield found.inputs[chosen], found.labels[chosen]
        return
    blocks = text(data)
    most = len(blocks) * 9 // 10
    for _ in range(steps):
        chosen = blocks[torch.randint(most, (32,), generator=rng)]
        yield (chosen, chosen) if task == "text" else masked(chosen, rng)


def masked(blocks: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Blocks with a seventh of the words left out, and those words."""
    out = torch.rand(blocks.shape, generator=rng) < 1 / 7
    return blocks.masked_fill(out, 0), blocks.masked_fill(~out, -100)


def train(name: str, data: Path, seed: int) -> nn.Module:
    """One network from scratch."""
    family = FAMILIES[name]
    torch.manual_seed(seed)
    model = family.make().train()
    fit(model, family.task, batches(data, family.task, family.steps, seed), family.rate)
    return model.eval()


def fit(model: nn.Module, task: str, given: Iterator[tuple[Tensor, Tensor]], rate: float) -> None:
    """Plain AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for batch in given:
        loss_of(model, task, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def tuned(name: str, weights: Arrays, data: Path, seed: int) -> Arrays:
    """The weights of a network after some fine-tuning of all of them."""
    family = FAMILIES[name]
    model: Any = with_weights(name, {n: torch.from_numpy(v.copy()) for n, v in weights.items()})
    given = batches(data, family.task, TUNED, 1000 + seed)
    fit(model.train(), family.task, given, GENTLY * family.rate)
    state = model.state_dict()
    return {n: state[n].numpy().copy() if n in state else v for n, v in weights.items()}


@torch.no_grad()
def quality(model: nn.Module, name: str, data: Path) -> float:
    """Accuracy on test images, or on the next (or missing) word of test blocks, in percent."""
    task = FAMILIES[name].task
    model.eval()
    if task == "images":
        found = images(data)
        return float(
            (scores(model, found.test_inputs).argmax(1) == found.test_labels).float().mean() * 100
        )
    blocks = text(data)
    test = blocks[len(blocks) * 9 // 10 :][:200]
    if task == "text":
        guess = model(input_ids=test).logits[:, :-1].argmax(-1)
        return float((guess == test[:, 1:]).float().mean() * 100)
    given, wanted = masked(test, torch.Generator().manual_seed(0))
    guess = model(input_ids=given).logits.argmax(-1)
    return float((guess == wanted)[wanted != -100].float().mean() * 100)


def folder_of(work: Path, name: str, seed: int) -> Path:
    """Where a trained network is kept: a folder as transformers reads it."""
    return work / f"{name}-{seed}"


def trained(name: str, data: Path, work: Path, seed: int = 0) -> Path:
    """The folder of a trained network; trained now if it is not there yet."""
    folder = folder_of(work, name, seed)
    if (folder / "quality.json").exists():
        return folder
    model: Any = train(name, data, seed)
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder)
    else:
        save_file(model.state_dict(), folder / "model.safetensors")
    found = quality(model, name, data)
    (folder / "quality.json").write_text(json.dumps({"quality": found}))
    print(f"{name}, seed {seed}: {found:.1f} %", flush=True)
    return folder


def loaded(name: str, folder: Path) -> nn.Module:
    """A trained network as a live module."""
    return with_weights(name, load_file(folder / "model.safetensors"))


def with_weights(name: str, state: dict[str, Tensor]) -> nn.Module:
    """A live module with these weights."""
    model: Any = FAMILIES[name].make()
    model.load_state_dict(state, strict=False)
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    found: nn.Module = model.eval()
    return found


def main(arguments: list[str] | None = None) -> int:
    """Train whatever is missing."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--work", type=Path, required=True)
    chosen = options.parse_args(arguments)
    torch.set_num_threads(1)
    for seed in SEEDS:
        for name in (n for n, family in FAMILIES.items() if family.steps):
            trained(name, chosen.data, chosen.work, seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
