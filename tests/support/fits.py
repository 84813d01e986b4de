"""A Lightning module and its data."""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader, TensorDataset


class Automatic(LightningModule):
    """Lightning computes the gradients, in a closure inside the optimizer's step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(16, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128)
        )

    def loss(self, batch: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor | None:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 16, generator=generator)
    y = torch.randint(128, (64,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=8)
