"""What the onnx package writes: initialisers in the graph, as raw bytes and as lists."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.makers import Arrays

WRITES = True


def make(arrays: Arrays, where: Path) -> Path:
    tensors = []
    for number, (name, array) in enumerate(arrays.items()):
        if number % 2:
            tensors.append(numpy_helper.from_array(array, name))
        else:
            floats = np.asarray(array, np.float32).reshape(-1).tolist()
            tensors.append(helper.make_tensor(name, TensorProto.FLOAT, array.shape, floats))
    nodes = [helper.make_node("Identity", [name], [f"{name}/out"]) for name in arrays]
    shown = [
        helper.make_tensor_value_info(f"{name}/out", TensorProto.FLOAT, array.shape)
        for name, array in arrays.items()
    ]
    graph = helper.make_graph(nodes, "arrays", [], shown, tensors)
    onnx.save(helper.make_model(graph), where / "model.onnx")
    return where / "model.onnx"


def victim(path: Path) -> Path:
    return path
