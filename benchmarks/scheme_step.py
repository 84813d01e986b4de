"""What each scheme costs in training: ResNet-18 (CIFAR form), layer3.0.conv2.

    python -m benchmarks.scheme_step [--batch 64] [--steps 3] [--repeats 15] [--json]

Times the hook that adds a scheme's gradient to the layer, cold (the weights were just changed), and
a clean training step in the same run, in turn. Prints the hook as a share of the step beside what
the paper's table F.8 gives for whole epochs (GPU, its own code). No target: a comparison.
"""

import sys

import torch
from torch.nn import functional

import neuralmark
from benchmarks._common import Report, median, parser, seconds_of
from benchmarks.training_step import NAME, ResNet18
from neuralmark import Key, schemes

PAPER = {"neuralmark": 6.7, "vanillamark": 3.1, "greedymark": 101.0, "votemark": 49.0}
"""Percent more time for an epoch (R=4 for NeuralMark)."""


def main(arguments: list[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--batch", type=int, default=64)
    made.add_argument("--steps", type=int, default=3)
    made.add_argument("--repeats", type=int, default=15)
    options = made.parse_args(arguments)
    report = Report("what each scheme costs in training", options.json)
    torch.manual_seed(0)
    model = ResNet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs = torch.randn(options.batch, 3, 32, 32)
    labels = torch.randint(0, 10, (options.batch,))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    step()
    marks = {
        name: neuralmark.attach(
            model,
            optimizer,
            Key.new(schemes.parameters(name)),
            options=neuralmark.AttachOptions(tensors=[NAME]),
        )
        for name in PAPER
    }
    for mark in marks.values():
        mark.detach()  # timed at the hook itself
    hooks: dict[str, list[float]] = {name: [] for name in marks}
    steps = [seconds_of(step) for _ in range(options.steps)]
    weight = model.get_parameter(NAME)
    for _ in range(options.repeats):
        for name, mark in marks.items():
            with torch.no_grad():
                weight.mul_(1.0001)
            hooks[name].append(seconds_of(lambda mark=mark: mark._add_gradient(None)))  # type: ignore[misc]
    steps += [seconds_of(step) for _ in range(options.steps)]
    whole = median(steps)
    report.note(f"a clean step at batch {options.batch}: {whole:.2f} s")
    rows = [
        [
            name,
            f"{1000 * median(times):.2f} ms",
            f"{100 * median(times) / whole:.3f} %",
            f"{median(times) / median(hooks['neuralmark']):.1f}",
            f"+{PAPER[name]:g} %",
        ]
        for name, times in hooks.items()
    ]
    report.table(["scheme", "hook", "of a step", "x neuralmark", "paper, of an epoch"], rows)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
