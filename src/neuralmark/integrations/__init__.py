"""Thin bridges to training frameworks, one file each."""

import neuralmark.torchvision_loading  # noqa: F401 - before transformers and lightning import torchvision
