"""Marking while training: one line in any PyTorch loop, one process or many (extra: torch)."""

from neuralmark.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401 - everything below needs it
except ImportError:
    raise MissingExtraError(
        "marking live models needs torch: pip install 'neuralmark[torch]'"
    ) from None
