"""Files that are mistaken for a checkpoint: what they are, and what to run instead."""

from neuralmark.storage.places import Place

_LFS = b"version https://git-lfs.github.com/spec/"
_ANCHOR = b"NMANCHR1"
_SUFFIXES = {
    ".tflite": "a TensorFlow Lite model: mark the model that it was converted from",
}
FOREIGN = (
    *_SUFFIXES,
    *(".gguf", ".msgpack", ".h5", ".hdf5", ".keras", ".distcp"),
    *(".ggml", ".ot", ".mlmodel", ".pb", ".engine"),
)
"""Endings of model files that are not marked along with the model that they were made from."""
PARTITIONS = "_optim_states.pt"
"""How the names of DeepSpeed's partitions end, which hold the weights once more."""


def hint(path: Place, head: bytes) -> str | None:
    """What this is and how to make a checkpoint of it, or None."""
    if head.startswith(_LFS):
        return "is a git-LFS pointer, not the model: run 'git lfs pull' in its folder"
    if head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")):
        return "is a web page, not a model: if it lists a folder, end the address with /"
    if head.startswith(_ANCHOR):
        return "is an anchor, not a model: give the model, and the anchor as anchor=..."
    if path.suffix == ".distcp":
        return "is a part of a distributed checkpoint: give its folder"
    what = _SUFFIXES.get(path.suffix.lower()) if path.is_file() else None
    return None if what is None else f"is {what}"
