"""Lightning on scikit-learn's digits: a callback trains, logs and claims the mark.

python examples/lightning_digits.py --mode projection
"""

import argparse
from pathlib import Path
from typing import Any

import neuralmark.torchvision_loading  # isort: skip - first: others import torchvision
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from neuralmark.integrations.lightning import AttachOptions, NeuralMarkCallback


class Digits(LightningModule):
    """Knows nothing of the mark."""

    def __init__(self) -> None:
        """Two hidden layers."""
        super().__init__()
        sizes = (nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        self.net = nn.Sequential(*sizes)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """The task's loss alone."""
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Any optimizer will do."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    """Fit, with rate, loss and margin in metrics.csv; verify the checkpoint by its claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("gradient", "projection"), default="gradient")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--output", type=Path, default=Path("lightning-output"))
    options = parser.parse_args()
    seed_everything(0)
    x, y = map(torch.tensor, load_digits(return_X_y=True))
    rows = TensorDataset(x.float() / 16, y)
    key, out = neuralmark.Key.new(owner="Acme"), options.output
    mark = NeuralMarkCallback(key, AttachOptions(tensors=["net.2.weight"], mode=options.mode))
    saver = ModelCheckpoint(out, "model", enable_version_counter=False)
    trainer = Trainer(max_epochs=options.epochs, callbacks=[mark, saver], logger=CSVLogger(out))
    trainer.fit(Digits(), DataLoader(rows, batch_size=64, shuffle=True))
    verdict = neuralmark.verify(out / "model.ckpt", key, claim=f"{out}.claim.json")
    print(f"{verdict.status}: {verdict.matched}/{verdict.bits} bits, 2^{verdict.bound_log2:.0f}")


if __name__ == "__main__":
    main()
