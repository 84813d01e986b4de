"""ONNX models written by hand, as protocol buffers: also such as no writer would write."""

from pathlib import Path

import numpy as np

RAW, INT32 = 9, 5
"""Fields of a tensor that hold its numbers: as bytes, or one by one."""


def varint(value: int) -> bytes:
    """A number, 7 bits a byte."""
    out = b""
    value &= (1 << 64) - 1
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: bytes | str | int) -> bytes:
    """A field of bytes or text, or a number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(name: str, dims: tuple[int, ...], code: int, data: bytes, held: int = RAW) -> bytes:
    """A TensorProto of an element type of ONNX."""
    shape = b"".join(field(1, length) for length in dims)
    return shape + field(2, code) + field(8, name) + field(held, data)


def floats(name: str, *dims: int) -> bytes:
    """Ones, as float32."""
    return tensor(name, dims, 1, np.ones(dims, "<f4").tobytes())


def node(op: str, inputs: list[str], outputs: list[str], **numbers: int) -> bytes:
    """A NodeProto with attributes that are numbers."""
    names = [field(1, name) for name in inputs] + [field(2, name) for name in outputs]
    told = [field(5, field(1, name) + field(3, value)) for name, value in numbers.items()]
    return b"".join([*names, field(4, op), *told])


def model(*tensors: bytes, nodes: tuple[bytes, ...] = (), more: bytes = b"") -> bytes:
    """A ModelProto: its graph, and further fields at the top."""
    graph = [field(1, each) for each in nodes] + [field(5, each) for each in tensors]
    return field(1, 10) + field(7, b"".join(graph)) + more


def written(folder: Path, data: bytes) -> Path:
    """The file of a model."""
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path
