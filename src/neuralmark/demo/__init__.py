"""The product's main job on something real: handwritten digits, a small network, one mark."""

from neuralmark.errors import MissingExtraError

try:
    import sklearn as _sklearn  # noqa: F401 - the digits
    import torch as _torch  # noqa: F401 - the network
except ImportError as error:
    raise MissingExtraError(
        f"the demo needs {error.name}: pip install 'neuralmark[demo]'"
    ) from None
