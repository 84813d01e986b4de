"""Plain PyTorch on scikit-learn's digits: one line puts the mark into the training.

python examples/plain.py --mode projection
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn

import neuralmark


def train(model: nn.Module, key: neuralmark.Key, mode: str, epochs: int) -> neuralmark.Claim:
    """A loop like any other, but for the lines with `mark`."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images))
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]
    train_x, train_y, test_x, test_y = x[:1500], y[:1500], x[1500:], y[1500:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    options = neuralmark.AttachOptions(tensors=["2.weight"], mode=mode)
    mark = neuralmark.attach(model, optimizer, key, options)
    for epoch in range(epochs):
        for batch in torch.randperm(len(train_x)).split(64):
            loss = nn.functional.cross_entropy(model(train_x[batch]), train_y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = (model(test_x).argmax(1) == test_y).float().mean()
        print(f"epoch {epoch}: accuracy {accuracy:.3f}, bits {mark.rate:.1%}, {mark.margin:.2f} σz")
    claim = mark.claim()
    mark.detach()
    return claim


def main() -> None:
    """Train, save, verify the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("gradient", "projection"), default="gradient")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--output", type=Path, default=Path("plain-output"))
    options = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    key = neuralmark.Key.new(owner="Acme")  # key.save("acme.nmkey", passphrase) keeps it
    claim = train(model, key, options.mode, options.epochs)
    options.output.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), options.output / "model.safetensors")
    claim.save(f"{options.output}.claim.json", overwrite=True)
    verdict = neuralmark.verify(options.output / "model.safetensors", key, claim=claim)
    print(f"{verdict.status}: {verdict.matched}/{verdict.bits} bits, 2^{verdict.bound_log2:.0f}")


if __name__ == "__main__":
    main()
