"""A mark in weights that no process has whole (FSDP2).

Run it with: torchrun --nproc-per-node 2 examples/fsdp2.py
"""

import torch
from sklearn.datasets import load_digits
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import neuralmark


def main() -> None:
    """Train on handwritten digits, verify what was trained."""
    dist.init_process_group("gloo")  # "nccl" on GPUs
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 10),
    )
    for module in (model[2], model):
        fully_shard(module)

    # One key for all: load the same file in every process, or send the first one's as here.
    keys = [neuralmark.Key.new(neuralmark.Parameters(rounds=2), owner="Acme")]
    dist.broadcast_object_list(keys)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    options = neuralmark.AttachOptions(tensors=["2.weight"], mode="projection")
    mark = neuralmark.attach(model, optimizer, keys[0], options)

    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    train, test = slice(rank, 1400, world), slice(1400, None)
    for _ in range(8):
        for images, digits in zip(x[train].split(32), y[train].split(32), strict=True):
            cross_entropy(model(images), digits).backward()
            optimizer.step()
            optimizer.zero_grad()

    accuracy = (model(x[test]).argmax(dim=1) == y[test]).float().mean()
    claim = mark.claim()  # all processes call these two, one writes
    verdict = neuralmark.verify(model, keys[0], claim=claim)
    if rank == 0:
        print(f"accuracy {accuracy:.3f}, smallest margin {mark.margin:.2f}")
        print(f"{verdict.status}: {verdict.reason}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
