"""Files that are mistaken for a checkpoint: what they are, and what to run instead."""

from neuralmark.storage.places import Place

_LFS = b"version https://git-lfs.github.com/spec/"
_ANCHOR = b"NMANCHR1"
_SUFFIXES = {
    ".h5": "an HDF5 file: save the weights as safetensors or npz",
    ".keras": "a Keras archive: save the weights as safetensors or npz",
    ".msgpack": "a Flax file: save the weights as safetensors",
    ".tflite": "a TensorFlow Lite model: mark the model that it was converted from",
}
FOREIGN = (*_SUFFIXES, ".gguf", ".ggml", ".ot", ".mlmodel", ".pb", ".engine", ".distcp")
"""Endings of model files that can neither be read nor marked, at least not by themselves."""
PARTITIONS = "_optim_states.pt"
"""How the names of DeepSpeed's partitions end, which hold the weights once more."""


def hint(path: Place, head: bytes) -> str | None:
    """What this is and how to make a checkpoint of it, or None."""
    if head.startswith(_LFS):
        return "is a git-LFS pointer, not the model: run 'git lfs pull' in its folder"
    if head.startswith(_ANCHOR):
        return "is an anchor, not a model: give the model, and the anchor as anchor=..."
    if head.startswith(b"GGUF"):
        return "is a GGUF file: mark the model that it was made from, then convert again"
    if path.suffix == ".distcp":
        return "is a part of a distributed checkpoint: give its folder"
    what = _SUFFIXES.get(path.suffix.lower()) if path.is_file() else None
    return None if what is None else f"is {what}"
