"""Thin bridges to training frameworks, one file each."""

import neuralmark._torchvision  # noqa: F401 - before transformers and lightning import torchvision
