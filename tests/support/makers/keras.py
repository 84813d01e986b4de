"""What Keras 2 writes as weights: groups of layers, and the weights of the model itself."""

from pathlib import Path

import h5py

from tests.support.makers import Arrays

WRITES = False


def make(arrays: Arrays, where: Path) -> Path:
    path = where / "model.h5"
    with h5py.File(path, "w") as file:
        layers = sorted({name.partition(".")[0] for name in arrays if "." in name})
        file.attrs["layer_names"] = [layer.encode() for layer in layers]
        file.attrs["backend"], file.attrs["keras_version"] = b"tensorflow", b"2.15.0"
        for layer in (*layers, "top_level_model_weights"):
            file.create_group(layer)
        for name, array in arrays.items():
            layer = name.partition(".")[0] if "." in name else "top_level_model_weights"
            file[layer][name.replace(".", "/") + ":0"] = array
        for layer in (*layers, "top_level_model_weights"):
            names: list[bytes] = []
            file[layer].visititems(
                lambda name, found, names=names: (
                    names.append(name.encode()) if isinstance(found, h5py.Dataset) else None
                )
            )
            file[layer].attrs["weight_names"] = names
    return path


def victim(path: Path) -> Path:
    return path
