"""Runs before all tests and doctests: makes torchvision importable beside the CPU build of torch.

transformers, lightning and peft import torchvision wherever it is installed; see
neuralmark.torchvision_loading for what is wrong with the pair that pip finds.
"""

import neuralmark.torchvision_loading  # noqa: F401
